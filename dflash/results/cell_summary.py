"""One cell with all its numbers, and cells that may be compared: what pages, tables and pictures show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dflash.results.breakdowns import Breakdowns
from dflash.results.finding import Finding
from dflash.results.measured import Measured
from dflash.results.output_comparison import Basis, TextDifference
from dflash.results.paired_metrics import Pairing
from dflash.results.records import Cell, DifferenceRecord, RequestRecord
from dflash.results.repeats import RepeatSpread
from dflash.results.server_counters import CacheMark, ServerCounts, cache_mark
from dflash.results.task_scores import Outcome


@dataclass(frozen=True, slots=True)
class CellSummary(Measured):
    """One cell: a row of the report."""

    cell: Cell
    records: Sequence[RequestRecord]
    pairing: Pairing | None  # None: the baseline itself, or no baseline to pair with
    baseline_cell_id: str | None
    why_no_speed: str | None  # why decode_tok_s is None
    why_no_speedup: str | None  # why speedup is None
    why_no_agreement: str | None
    why_no_task_score: str | None
    why_no_steady: str | None = None  # why steady_output_tok_s is None
    why_no_peak: str | None = None  # why peak_output_tok_s is None
    findings: tuple[Finding, ...] = ()
    differences: tuple[DifferenceRecord, ...] = ()
    breakdowns: Breakdowns = field(default_factory=Breakdowns)
    unscored: Mapping[Outcome, int] = field(
        default_factory=dict
    )  # what could have been scored, by why it is not
    finish_reasons: Mapping[str, int] = field(default_factory=dict)
    error_kinds: Mapping[str, int] = field(default_factory=dict)
    counts: ServerCounts | None = None  # what the server itself counted; None in process
    agreement_basis: Mapping[Basis, int] = field(
        default_factory=dict
    )  # of servers: pairs by what is compared
    text_differences: tuple[TextDifference, ...] = ()
    between_repeats: Mapping[str, RepeatSpread] = field(default_factory=dict)  # by metric; 3 repeats or more
    run: int = 0  # index into `RunSummary.infos`: where it was measured
    run_name: str = ""  # where it tells this cell from another of the same arm
    baseline_run: int = 0

    @property
    def label(self) -> str:
        """The arm; of several runs that hold it, with the run."""
        return f"{self.cell.arm.label} ({self.run_name})" if self.run_name else self.cell.arm.label

    @property
    def num_completed(self) -> int:
        return sum(self.finish_reasons.get(reason, 0) for reason in ("stop", "length"))

    @property
    def num_failed(self) -> int:
        return self.finish_reasons.get("error", 0)

    @property
    def cache_mark(self) -> CacheMark | None:
        """What must stand beside this cell's TTFT."""
        prefix_cache = None if self.counts is None else self.counts.prefix_cache
        return cache_mark(self.number("cached_prompt_share"), prefix_cache)


@dataclass(frozen=True, slots=True)
class Group:
    """Cells that may be compared: equal workload, backend and machine. Baseline first, then by block size."""

    cells: tuple[CellSummary, ...]
    # Where an interval shows it: by speedup (the baseline counts as 1), by decode speed where nothing is paired.
    fastest: CellSummary | None
    settings: str = ""  # where they tell this group from another of equal data set, backend and load
    from_runs: str = ""  # where it tells this group from another of the same workload

    @property
    def first(self) -> Cell:
        return self.cells[0].cell

    @property
    def on_server(self) -> bool:
        return any(cell.cell.on_server for cell in self.cells)

    @property
    def num_failed(self) -> int:
        return sum(cell.num_failed for cell in self.cells)

    @property
    def fastest_cell_id(self) -> str | None:
        return None if self.fastest is None else self.fastest.cell.cell_id

    def is_fastest(self, cell: CellSummary) -> bool:
        return self.fastest is not None and _place(cell) == _place(self.fastest)

    def baseline_of(self, cell: CellSummary) -> CellSummary | None:
        """What the arm is compared with."""
        place = (cell.baseline_run, cell.baseline_cell_id)
        return next((other for other in self.cells if _place(other) == place), None)


def _place(cell: CellSummary) -> tuple[int, str]:
    return cell.run, cell.cell.cell_id


def all_at_limit(cells: Sequence[CellSummary]) -> bool:
    """Whether every completed request ended at the limit of new tokens: then lengths tell nothing apart."""
    num_at_limit = sum(cell.finish_reasons.get("length", 0) for cell in cells)
    return 0 < num_at_limit == sum(cell.num_completed for cell in cells)
