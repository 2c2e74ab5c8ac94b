"""What is seen while a run is made: a bar on a terminal, a line now and then elsewhere, nothing with --quiet.

Nothing here runs on its own: the bar is drawn between requests only, so it never takes time from one.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol

from dflash.results.finding import plural
from dflash.results.records import Cell, RequestRecord
from dflash.results.titles import load_words, short_load_words

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

SLOW_S = 3.0  # without a sign of life
SECONDS_BETWEEN_DRAWINGS = 0.25
SECONDS_BETWEEN_LINES = 30.0
NS_PER_S = 1_000_000_000


class Progress(Protocol):
    """What the runner tells; a unit is one prompt with all its arms."""

    def start(self, num_units: int) -> None:
        """So many units are to come, beside those that were announced before: an engine was opened."""

    def start_group(self, cells: Sequence[Cell], num_units: int) -> None:
        """`num_units` of this group are to be run now; those that an earlier process did are not counted."""

    def add(self, record: RequestRecord) -> None: ...

    def end_unit(self) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


def make_progress(quiet: bool, stream: IO[str] | None = None) -> Progress:
    """The fitting kind for `stream` (standard error)."""
    stream = sys.stderr if stream is None else stream
    if quiet:
        return SilentProgress()
    return BarProgress(stream) if stream.isatty() else LineProgress(stream)


@contextmanager
def said_if_slow(progress: Progress, text: str) -> Iterator[None]:
    """Tell what is waited for once it takes long; nothing is being timed yet."""
    timer = threading.Timer(SLOW_S, progress.say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class SilentProgress:
    """Shows nothing."""

    def start(self, num_units: int) -> None:
        return None

    def start_group(self, cells: Sequence[Cell], num_units: int) -> None:
        return None

    def add(self, record: RequestRecord) -> None:
        return None

    def end_unit(self) -> None:
        return None

    def say(self, text: str) -> None:
        return None

    def close(self) -> None:
        return None


@dataclass(slots=True)
class _Sums:
    """Of one arm on a server: of a long run the records themselves are not kept."""

    decode_tokens: float = 0.0
    decode_ns: float = 0.0
    delivered: int = 0  # tokens of decode steps
    steps: int = 0

    def add(self, record: RequestRecord) -> None:
        from dflash.results.request_metrics import decode_terms

        if not record.completed or record.num_output_tokens is None:
            return
        decode_ns, decode_tokens = decode_terms(record) or (0.0, 0.0)
        self.decode_ns += decode_ns
        self.decode_tokens += decode_tokens
        if record.num_decode_steps:
            self.delivered += record.num_output_tokens - 1
            self.steps += record.num_decode_steps

    def words(self, cell: Cell) -> str | None:
        if not self.decode_ns:
            return None
        speed = f"{cell.arm.label} {self.decode_tokens / self.decode_ns * NS_PER_S:.1f} tok/s"
        drafted = not cell.arm.is_baseline and self.steps
        return f"{speed}, length {self.delivered / self.steps:.2f}" if drafted else speed


class RunningFigures:
    """Speed and acceptance length of the arms of one group so far, by the formulas of the report: in process the
    speedup, on servers, which take turns, the decode speed of each."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells = cells
        self._records: dict[str, list[RequestRecord]] = {cell.cell_id: [] for cell in cells}
        self._sums = {cell.cell_id: _Sums() for cell in cells if cell.on_server}
        self.num_failed = 0

    def add(self, record: RequestRecord) -> None:
        self.num_failed += record.finish_reason == "error"
        sums = self._sums.get(record.cell_id)
        if sums is None:
            self._records[record.cell_id].append(record)
        else:
            sums.add(record)

    def words(self) -> str:
        """`dflash B=4 1.21x, length 2.31`; of several arms the two fastest."""
        if self._sums:
            known = [self._sums[cell.cell_id].words(cell) for cell in self._cells]
            return "; ".join([*filter(None, known), *self._failed()])
        from dflash.results.metrics import acceptance_length, decode_tok_s
        from dflash.results.paired_metrics import pair_units, speedup

        baseline = next((cell for cell in self._cells if cell.arm.is_baseline), None)
        figures: list[tuple[float, str]] = []
        for cell in self._cells:
            records = self._records[cell.cell_id]
            length = acceptance_length(records)
            if baseline is None or cell.arm.is_baseline:
                value, unit = decode_tok_s(records), " tok/s"
                if baseline is not None and len(self._cells) > 1:
                    continue
            else:
                value, unit = speedup(pair_units(self._records[baseline.cell_id], records)), "x"
            if value is None:
                continue
            drafted = "" if cell.arm.is_baseline or length is None else f", length {length:.2f}"
            figures.append((value, f"{cell.arm.label} {value:.2f}{unit}{drafted}"))
        figures.sort(key=lambda figure: -figure[0])
        words = [text for _, text in figures[:2]]
        return "; ".join([*words, *self._failed()])

    def _failed(self) -> list[str]:
        return [f"{self.num_failed} failed"] if self.num_failed else []


class LineProgress:
    """A plain line when a group begins or ends, and one now and then between."""

    def __init__(self, stream: IO[str], seconds_between: float = SECONDS_BETWEEN_LINES) -> None:
        self._stream = stream
        self._seconds_between = seconds_between
        self._num_units = self._num_done = 0
        self._figures: RunningFigures | None = None
        self._last_s = self._started_s = time.monotonic()
        self._group_left = 0

    def start(self, num_units: int) -> None:
        if not self._num_units:
            self._started_s = self._last_s = time.monotonic()
        self._num_units += num_units

    def start_group(self, cells: Sequence[Cell], num_units: int) -> None:
        self._figures, self._group_left = RunningFigures(cells), num_units
        if not num_units:
            return  # of a run that goes on: nothing of this group is left
        arms = ", ".join(cell.arm.label for cell in cells)
        # On servers a prompt counts once in every arm: the arms do not take turns prompt by prompt.
        counted = ", all arms together," if cells[0].on_server and len(cells) > 1 else ""
        title = f"{cells[0].workload.dataset}, {load_words(cells[0])}"
        self.say(f"{title}: {plural(num_units, 'prompt')}{counted} in {arms}")

    def add(self, record: RequestRecord) -> None:
        if self._figures is not None:
            self._figures.add(record)

    def end_unit(self) -> None:
        self._num_done += 1
        self._group_left -= 1
        now_s = time.monotonic()
        if self._group_left and now_s - self._last_s < self._seconds_between:
            return
        self._last_s = now_s
        figures = "" if self._figures is None else self._figures.words()
        left_s = (now_s - self._started_s) / self._num_done * (self._num_units - self._num_done)
        left = f" · {_duration(left_s)} left" if self._num_done < self._num_units else ""
        self.say(f"{self._num_done}/{self._num_units}{left}{' · ' if figures else ''}{figures}")

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        return None


class BarProgress:
    """A bar with the figures so far and the time left."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._bar: RichProgress | None = None
        self._figures: RunningFigures | None = None
        self._title = ""
        self._drawn_s = 0.0

    def start(self, num_units: int) -> None:
        if self._bar is not None:
            task = self._bar.tasks[0]
            self._bar.update(task.id, total=(task.total or 0) + num_units)
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            console=Console(file=self._stream),
            auto_refresh=False,  # no thread that draws while a request is being timed
        )
        self._bar.add_task("", total=num_units, figures="")
        self._bar.start()

    def start_group(self, cells: Sequence[Cell], num_units: int) -> None:
        self._figures = RunningFigures(cells)
        self._title = f"{cells[0].workload.dataset} {short_load_words(cells[0].workload)}"
        self._draw(0, force=True)

    def add(self, record: RequestRecord) -> None:
        if self._figures is not None:
            self._figures.add(record)

    def end_unit(self) -> None:
        self._draw(1)

    def say(self, text: str) -> None:
        if self._bar is None:
            print(text, file=self._stream, flush=True)
        else:
            self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        if self._bar is not None:
            self._draw(0, force=True)
            self._bar.stop()
            self._bar = None

    def _draw(self, advance: int, force: bool = False) -> None:
        if self._bar is None:
            return
        task = self._bar.task_ids[0]
        self._bar.advance(task, advance)
        if force or time.monotonic() - self._drawn_s >= SECONDS_BETWEEN_DRAWINGS:
            figures = "" if self._figures is None else self._figures.words()
            self._bar.update(task, description=self._title, figures=figures)
            self._bar.refresh()
            self._drawn_s = time.monotonic()


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
