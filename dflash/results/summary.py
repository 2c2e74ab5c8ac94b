"""A run -> its numbers:

Every metric of every cell, paired with its baseline, with findings and in parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dflash.results import metrics
from dflash.results.breakdowns import Breakdowns, TwoArms, break_down
from dflash.results.cell_metrics import arm_metrics, pair_metrics
from dflash.results.goodput import Slo
from dflash.results.load_metrics import load_metrics as load_metrics
from dflash.results.measured import Measured
from dflash.results.missing_numbers import why_no_agreement, why_no_speed, why_no_speedup, why_no_task_score
from dflash.results.output_comparison import Basis, Comparison, TextDifference, compare_outputs
from dflash.results.paired_metrics import Pairing, pair_units
from dflash.results.records import Cell, DifferenceRecord, RequestRecord
from dflash.results.run_facts import RunFacts, read_facts
from dflash.results.server_counters import CacheMark, ServerCounts, cache_mark
from dflash.results.stats import arithmetic_mean, geometric_mean
from dflash.results.store import Run
from dflash.results.task_scores import Outcome, unscored_counts
from dflash.results.verify import Finding, check_cell
from dflash.results.verify_loads import check_loads
from dflash.results.verify_pair import check_pair
from dflash.results.verify_scores import check_pair_scores, check_scores
from dflash.results.verify_server import check_load


@dataclass(frozen=True, slots=True)
class CellSummary(Measured):
    """One cell: a row of the report."""

    cell: Cell
    records: tuple[RequestRecord, ...]
    pairing: Pairing | None  # None: the baseline itself, or no baseline to pair with
    baseline_cell_id: str | None
    why_no_speed: str | None  # why decode_tok_s is None
    why_no_speedup: str | None  # why speedup is None
    why_no_agreement: str | None
    why_no_task_score: str | None
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
    """Cells that may be compared: equal workload and backend. Baseline first, then by block size."""

    cells: tuple[CellSummary, ...]
    # Where an interval shows it: by speedup (the baseline counts as 1), by decode speed where nothing is paired.
    fastest_cell_id: str | None

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
    def fastest(self) -> CellSummary | None:
        return next((cell for cell in self.cells if cell.cell.cell_id == self.fastest_cell_id), None)


def all_at_limit(cells: Sequence[CellSummary]) -> bool:
    """Whether every completed request ended at the limit of new tokens: then lengths tell nothing apart."""
    reasons = [record.finish_reason for cell in cells for record in cell.records if record.completed]
    return bool(reasons) and set(reasons) == {"length"}


@dataclass(frozen=True, slots=True)
class Average:
    """One arm over several data sets: geometric mean of speedups, arithmetic mean of acceptance lengths."""

    backend: str
    arm_label: str
    concurrency: int
    request_rate: float | None  # open loop
    num_datasets: int
    speedup: float | None
    acceptance_length: float | None
    cells: tuple[CellSummary, ...] = ()  # one per data set


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Everything that a report, a table, a picture or a JSON document prints about a run."""

    groups: tuple[Group, ...]
    averages: tuple[Average, ...] = ()
    slo: Slo | None = None

    @property
    def cells(self) -> tuple[CellSummary, ...]:
        return tuple(cell for group in self.groups for cell in group.cells)

    @property
    def server_groups(self) -> tuple[Group, ...]:
        """Those whose arms are servers."""
        return tuple(group for group in self.groups if group.on_server)


def summarise_run(run: Run) -> RunSummary:
    """Compute every metric of `run` from its records; answers are scored by what its folder holds.

    Raises:
        UsageError: a file in the folder is damaged.
    """
    members: dict[tuple[str, str], list[Cell]] = {}
    for cell in run.info.cells:
        members.setdefault((cell.workload_id, cell.backend), []).append(cell)
    for cells in members.values():
        cells.sort(key=lambda cell: (not cell.arm.is_baseline, cell.arm.name, cell.arm.block_size or 0))
    facts = read_facts(run, list(members.values()))
    groups = _with_load_findings([_summarise_group(cells, facts) for cells in members.values()])
    return RunSummary(groups, _averages(groups), facts.slo)


def _with_load_findings(groups: Sequence[Group]) -> tuple[Group, ...]:
    """What only several groups together show."""
    found = check_loads([cell for group in groups for cell in group.cells])
    return tuple(
        replace(
            group,
            cells=tuple(
                replace(cell, findings=(*cell.findings, found[cell.cell.cell_id]))
                if cell.cell.cell_id in found
                else cell
                for cell in group.cells
            ),
        )
        for group in groups
    )


def _summarise_group(cells: Sequence[Cell], facts: RunFacts) -> Group:
    baseline = next((cell for cell in cells if cell.arm.is_baseline), None)
    summaries = tuple(
        _summarise_cell(cell, None if baseline is None or cell.arm.is_baseline else baseline, facts)
        for cell in cells
    )
    return Group(summaries, _fastest(summaries))


def _compare(cell: Cell, baseline: Cell | None, facts: RunFacts) -> Comparison:
    """The cell's records and its baseline's, with digests that can be compared."""
    records = facts.records[cell.cell_id]
    known = tuple(facts.differences.get(cell.cell_id, ()))
    baseline_records = () if baseline is None else facts.records[baseline.cell_id]
    if not cell.on_server or baseline is None:
        return Comparison(baseline_records, records, differences=known)
    return compare_outputs(baseline_records, records, facts.saved, known)


def _summarise_cell(cell: Cell, baseline: Cell | None, facts: RunFacts) -> CellSummary:
    compared, load, outcomes = _compare(cell, baseline, facts), facts.of_load(cell), facts.outcomes
    records = compared.arm
    pairing = None if baseline is None else pair_units(compared.baseline, records)
    values = arm_metrics(cell, records, outcomes) | load_metrics(cell, records, load)
    values |= pair_metrics(cell, pairing, compared.baseline, records, outcomes)
    findings = check_cell(cell, records) + check_scores(cell, records, outcomes)
    findings += check_load(cell, records, Measured(values), load)
    if pairing is not None:
        findings += check_pair(cell, pairing, compared.differences, len(compared.text_differences))
        findings += check_pair_scores(cell, pairing, outcomes)
    return CellSummary(
        metrics=values,
        cell=cell,
        records=tuple(records),
        pairing=pairing,
        baseline_cell_id=None if baseline is None else baseline.cell_id,
        why_no_speed=why_no_speed(cell, records) if values["decode_tok_s"] is None else None,
        why_no_speedup=why_no_speedup(cell, pairing) if values["speedup"] is None else None,
        why_no_agreement=why_no_agreement(cell, pairing) if values["agreement"] is None else None,
        why_no_task_score=why_no_task_score(cell, records, outcomes)
        if values["task_score"] is None
        else None,
        findings=findings,
        differences=compared.differences,
        breakdowns=break_down(TwoArms(cell, records, compared.baseline, pairing, outcomes)),
        unscored=unscored_counts(records, outcomes),
        finish_reasons=metrics.finish_reason_counts(records),
        error_kinds=metrics.error_kind_counts(records),
        counts=load.counts,
        agreement_basis=compared.basis,
        text_differences=compared.text_differences,
    )


def _fastest(cells: Sequence[CellSummary]) -> str | None:
    """Only what an interval shows: None where the arms cannot be told apart, or there are too few prompts to say."""
    paired = [(value, cell) for cell in cells if (value := cell.interval("speedup")) is not None]
    if paired:
        best, cell = max(paired, key=lambda item: item[0].value)
        if best.low is not None and best.low >= 1:
            return cell.cell.cell_id
        slower = all(value.high is not None and value.high < 1 for value, _ in paired)
        return next((cell.baseline_cell_id for _, cell in paired), None) if slower else None
    speeds = [(value, cell) for cell in cells if (value := cell.interval("decode_tok_s")) is not None]
    if len(speeds) < 2:
        return None
    (first, cell), (second, _), *_ = sorted(speeds, key=lambda item: -item[0].value)
    clear = first.low is not None and second.high is not None and first.low > second.high
    return cell.cell.cell_id if clear else None


def _averages(groups: Sequence[Group]) -> tuple[Average, ...]:
    members: dict[tuple[str, str, int, float | None], list[CellSummary]] = {}
    for group in groups:
        for cell in group.cells:
            if not cell.cell.arm.is_baseline:
                workload = cell.cell.workload
                key = (cell.cell.backend, cell.cell.arm.label, workload.concurrency, workload.request_rate)
                members.setdefault(key, []).append(cell)
    averages = []
    for (backend, label, concurrency, request_rate), cells in members.items():
        datasets = {cell.cell.workload.dataset for cell in cells}
        if len(datasets) < 2 or len(datasets) != len(cells):
            continue
        speedups = [value for cell in cells if (value := cell.number("speedup")) is not None]
        lengths = [value for cell in cells if (value := cell.number("acceptance_length")) is not None]
        averages.append(
            Average(
                backend,
                label,
                concurrency,
                request_rate,
                len(datasets),
                geometric_mean(speedups) if len(speedups) == len(cells) else None,
                arithmetic_mean(lengths) if len(lengths) == len(cells) else None,
                tuple(cells),
            )
        )
    return tuple(averages)
