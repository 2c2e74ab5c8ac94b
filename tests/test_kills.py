"""kill -9 at any moment, and two processes at one folder: nothing is lost, doubled or mixed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from made_up_prompts import EXACT, run_simulated, use_made_up_prompts

from dflash.errors import UsageError
from dflash.results.store import Run, RunWriter, load_run

SETTINGS: dict[str, Any] = {"datasets": ("quickstart", "gsm8k"), "block_sizes": (2, 4), "repeats": 2}
NUM_REQUESTS = 3 * 2 * 3 * 2 * 2  # prompts, turns, arms, data sets, rounds
MOMENTS = 20


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    use_made_up_prompts(monkeypatch, num_prompts=3, num_turns=2)


class KilledFile:
    """A file that lets through so many bytes of all that is written, and kills this process within the next write."""

    def __init__(self, file: IO[bytes], left: list[int]) -> None:
        self._file, self._left = file, left

    def write(self, data: bytes) -> int:
        if len(data) > self._left[0]:
            self._file.write(data[: self._left[0]])
            self._file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        self._left[0] -= len(data)
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> KilledFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()


def run_until_killed(folder: Path, num_bytes: int) -> int:
    """The sweep in a process of its own, killed once it has written so many bytes; how that process ended."""
    child = os.fork()
    if child == 0:
        left = [num_bytes]
        opened, fdopen = Path.open, os.fdopen
        Path.open = lambda path, mode="r", *args, **options: (  # type: ignore[method-assign,assignment]
            KilledFile(opened(path, mode, *args, **options), left)
            if mode == "ab"
            else opened(path, mode, *args, **options)
        )
        os.fdopen = lambda *args, **options: KilledFile(fdopen(*args, **options), left)  # type: ignore[assignment]
        try:
            run_simulated(folder, **SETTINGS)
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def measured(run: Run) -> list[tuple[Any, ...]]:
    """What every request came to; the clock of a process begins anew, so stamps are told from the request's start."""
    return sorted(
        (
            *(record.cell_id, *record.unit, record.round, record.order, record.finish_reason),
            *(
                record.num_output_tokens,
                record.num_decode_steps,
                record.num_accepted_tokens,
                record.output_digest,
            ),
            *((record.first_ns or 0) - (record.sent_ns or 0), (record.last_ns or 0) - (record.sent_ns or 0)),
            *(record.draft_ns, record.verify_ns),
        )
        for record in run.records
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_made_up_prompts(monkeypatch, num_prompts=3, num_turns=2)
        yield run_simulated(tmp_path_factory.mktemp("whole"), **SETTINGS)[0].run


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork, and no SIGKILL")
@pytest.mark.parametrize("seed", range(MOMENTS))
def test_a_sweep_killed_at_any_moment_ends_as_if_it_had_not_been(
    tmp_path: Path, whole: Run, seed: int
) -> None:
    """The moments are bytes: in the middle of a line, of `run.json`, between two files. Each run is killed twice."""
    assert EXACT.jitter == 0.0, "scripted times are the same in every process"
    size = sum(path.stat().st_size for path in whole.folder.iterdir())
    moments = random.Random(seed)
    ends = [run_until_killed(tmp_path, moments.randrange(1, size)) for _ in range(2)]
    assert ends[0] == signal.SIGKILL
    assert ends[1] in (signal.SIGKILL, 0), "what was left may have been less"
    outcome, _ = run_simulated(tmp_path, **SETTINGS)
    assert outcome.error is None
    assert measured(outcome.run) == measured(whole)
    assert len({(record.cell_id, record.unit) for record in outcome.run.records}) == NUM_REQUESTS
    assert len(outcome.run.records) == len(list(outcome.run.outputs())) == len(list(outcome.run.chunks()))
    assert [cell.status for cell in outcome.run.info.cells] == ["completed"] * 6
    assert [item.name for item in (tmp_path / "run").iterdir() if item.name.endswith(".tmp")] == []
    finished, backend = run_simulated(tmp_path, **SETTINGS)
    assert backend.requests == []
    assert finished.run.records == outcome.run.records


def test_half_a_record_is_cut_with_a_notice(tmp_path: Path) -> None:
    run_simulated(tmp_path, **SETTINGS)
    for name in ("records", "outputs", "chunks"):
        path = tmp_path / f"run/{name}.jsonl"
        path.write_bytes(path.read_bytes()[:-9])
    notes = run_simulated(tmp_path, **SETTINGS)[0].run.info.notes
    assert len([note for note in notes if "was cut off when the run was resumed" in note]) == 3


OTHER = """
import sys
from pathlib import Path
from dflash.results.store import RunWriter
try:
    RunWriter(Path(sys.argv[1]))
except Exception as error:
    print(error)
"""


def other_process(folder: Path) -> str:
    command = [sys.executable, "-c", OTHER, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_two_processes_at_one_folder_refuse_each_other_in_every_order(tmp_path: Path) -> None:
    """A new run, one that goes on, one that has ended; and another folder is nobody's business."""
    writer = RunWriter(tmp_path / "run")
    assert "is being written by another process" in other_process(tmp_path / "run"), (
        "before there is a run.json"
    )
    with pytest.raises(UsageError, match="is being written by another process"):
        run_simulated(tmp_path)
    writer.close()
    run_simulated(tmp_path)
    assert other_process(tmp_path / "run") == "", "it has ended, and let go"
    writer = RunWriter(tmp_path / "run")
    before = load_run(tmp_path / "run")
    with pytest.raises(UsageError, match="is being written by another process"):
        run_simulated(tmp_path, repeats=2)
    assert load_run(tmp_path / "run") == before, "the one that was refused has changed nothing"
    assert other_process(tmp_path / "elsewhere") == ""
    writer.close()


def test_two_runs_at_once_in_different_folders_do_not_meet(tmp_path: Path) -> None:
    errors: list[BaseException | None] = []

    def run(name: str | None) -> None:
        errors.append(run_simulated(tmp_path, run_name=name, repeats=3)[0].error)

    threads = [threading.Thread(target=run, args=(name,)) for name in (None, None, "a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [None] * 4
    folders = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(folders) == 4
    assert {len(load_run(folder).records) for folder in folders} == {3 * 2 * 2 * 3}
