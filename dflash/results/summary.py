"""A run -> its numbers:

Every metric of every cell, paired with its baseline, with findings and per category.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dflash.results import metrics, paired_metrics
from dflash.results.missing_numbers import why_no_agreement, why_no_speed, why_no_speedup
from dflash.results.paired_metrics import Pairing, pair_units
from dflash.results.records import Cell, DifferenceRecord, RequestRecord
from dflash.results.stats import Interval, arithmetic_mean, geometric_mean, percentile
from dflash.results.store import Run
from dflash.results.verify import Finding, check_cell
from dflash.results.verify_pair import check_pair

MetricValue = Interval | float | int | tuple[float | None, ...] | None
LATENCY_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Measured:
    """Metrics under their code names (see METHODOLOGY.md); None: not measured."""

    metrics: Mapping[str, MetricValue]

    def number(self, name: str) -> float | None:
        """The plain number, an interval's value included."""
        value = self.metrics.get(name)
        if isinstance(value, Interval):
            return value.value
        return value if isinstance(value, int | float) else None

    def interval(self, name: str) -> Interval | None:
        """The value with its interval; a plain number has none."""
        value = self.metrics.get(name)
        if isinstance(value, Interval):
            return value
        return Interval(value, None, None) if isinstance(value, int | float) else None

    def numbers(self, name: str) -> tuple[float | None, ...] | None:
        """A histogram or a curve."""
        value = self.metrics.get(name)
        return value if isinstance(value, tuple) else None


@dataclass(frozen=True, slots=True)
class CategorySummary(Measured):
    """The main metrics over the prompts of one category."""

    category: str
    num_completed: int


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
    findings: tuple[Finding, ...] = ()
    differences: tuple[DifferenceRecord, ...] = ()
    categories: tuple[CategorySummary, ...] = ()
    finish_reasons: Mapping[str, int] = field(default_factory=dict)
    error_kinds: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_completed(self) -> int:
        return sum(self.finish_reasons.get(reason, 0) for reason in ("stop", "length"))


@dataclass(frozen=True, slots=True)
class Group:
    """Cells that may be compared: equal workload and backend. Baseline first, then by block size."""

    cells: tuple[CellSummary, ...]
    fastest_cell_id: (
        str | None
    )  # by speedup (the baseline counts as 1); by decode speed where nothing is paired

    @property
    def first(self) -> Cell:
        return self.cells[0].cell

    @property
    def fastest(self) -> CellSummary | None:
        return next((cell for cell in self.cells if cell.cell.cell_id == self.fastest_cell_id), None)


@dataclass(frozen=True, slots=True)
class Average:
    """One arm over several data sets: geometric mean of speedups, arithmetic mean of acceptance lengths."""

    backend: str
    arm_label: str
    concurrency: int
    num_datasets: int
    speedup: float | None
    acceptance_length: float | None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Everything that a report, a table, a picture or a JSON document prints about a run."""

    groups: tuple[Group, ...]
    averages: tuple[Average, ...] = ()

    @property
    def cells(self) -> tuple[CellSummary, ...]:
        return tuple(cell for group in self.groups for cell in group.cells)


def summarise_run(run: Run) -> RunSummary:
    """Compute every metric of `run` from its records. Pure: nothing is read from the folder."""
    records: dict[str, list[RequestRecord]] = {cell.cell_id: [] for cell in run.info.cells}
    for record in run.records:
        if record.cell_id in records:
            records[record.cell_id].append(record)
    members: dict[tuple[str, str], list[Cell]] = {}
    for cell in run.info.cells:
        members.setdefault((cell.workload_id, cell.backend), []).append(cell)
    groups = tuple(_summarise_group(cells, records, run.differences) for cells in members.values())
    return RunSummary(groups, _averages(groups))


def arm_metrics(cell: Cell, records: Sequence[RequestRecord]) -> dict[str, MetricValue]:
    """Every metric of one arm alone, under its code name."""
    busy_s = _busy_s(cell, records)
    values: dict[str, MetricValue] = {
        "num_requests": len(records),
        "num_completed": len(metrics.completed(records)),
        "error_rate": metrics.error_rate(records),
        "decode_tok_s": metrics.pooled_decode_tok_s(records).interval(),
        "tpot_s": metrics.tpot_s(records),
        "tpot_s_request_mean": metrics.tpot_s_request_mean(records),
        "ttft_s": metrics.ttft_s(records),
        "e2el_s": metrics.e2el_s(records),
        "queue_s": metrics.queue_s(records),
        "ttft_from_due_s": metrics.ttft_from_due_s(records),
        "output_tok_s": metrics.output_tok_s(records, busy_s),
        "decode_step_s": metrics.decode_step_s(records),
        "draft_step_s": metrics.draft_step_s(records),
        "verify_step_s": metrics.verify_step_s(records),
        "acceptance_length": metrics.pooled_acceptance_length(records).interval(),
        "acceptance_length_request_mean": metrics.acceptance_length_request_mean(records),
        "acceptance_length_untrimmed": metrics.pooled_acceptance_length_untrimmed(records).interval(),
        "acceptance_length_untrimmed_request_mean": metrics.acceptance_length_untrimmed_request_mean(records),
        "acceptance_rate": metrics.acceptance_rate(records),
        "acceptance_rate_per_position": metrics.acceptance_rate_per_position(records),
        "acceptance_rate_per_position_conditional": metrics.acceptance_rate_per_position_conditional(records),
        "acceptance_histogram": metrics.acceptance_histogram(records),
        "acceptance_histogram_untrimmed": metrics.acceptance_histogram_untrimmed(records),
        "output_tokens_mean": metrics.output_tokens_mean(records),
        "peak_memory_bytes": metrics.peak_memory_bytes(records),
        "peak_memory_with_weights_bytes": metrics.peak_memory_bytes(records, cell.weights_bytes),
    }
    for name, metric in (
        ("ttft_s", metrics.request_ttft_s),
        ("tpot_s", metrics.request_tpot_s),
        ("e2el_s", metrics.request_e2el_s),
    ):
        each = [value for record in metrics.completed(records) if (value := metric(record)) is not None]
        for percent in LATENCY_PERCENTILES:
            values[f"{name}_p{percent}"] = percentile(each, percent)
    return values


def pair_metrics(
    cell: Cell, pairing: Pairing | None, baseline: Sequence[RequestRecord], arm: Sequence[RequestRecord]
) -> dict[str, MetricValue]:
    """Every metric of an arm beside its baseline; all None where there is no pairing or it was refused."""
    if pairing is None or pairing.unlike_prompts:
        return dict.fromkeys(PAIRED_METRICS)
    greedy = cell.workload.temperature == 0
    return {
        "speedup": paired_metrics.pooled_speedup(pairing).interval(),
        "speedup_agreeing": paired_metrics.speedup_agreeing(pairing) if greedy else None,
        "e2el_speedup": paired_metrics.pooled_e2el_speedup(pairing).interval(),
        "throughput_speedup": _throughput_speedup(cell, baseline, arm),
        "speedup_mean_tpot": paired_metrics.speedup_mean_tpot(pairing),
        "break_even_acceptance_length": paired_metrics.break_even_acceptance_length(pairing),
        "output_length_ratio": paired_metrics.output_length_ratio(pairing),
        "agreement": paired_metrics.pooled_agreement(pairing).interval() if greedy else None,
        "num_pairs": len(pairing.pairs),
    }


PAIRED_METRICS = (
    "speedup",
    "speedup_agreeing",
    "e2el_speedup",
    "throughput_speedup",
    "speedup_mean_tpot",
    "break_even_acceptance_length",
    "output_length_ratio",
    "agreement",
    "num_pairs",
)


def _summarise_group(
    cells: Sequence[Cell],
    records: Mapping[str, Sequence[RequestRecord]],
    differences: Sequence[DifferenceRecord],
) -> Group:
    ordered = sorted(
        cells, key=lambda cell: (not cell.arm.is_baseline, cell.arm.name, cell.arm.block_size or 0)
    )
    baseline = next((cell for cell in ordered if cell.arm.is_baseline), None)
    summaries = tuple(
        _summarise_cell(
            cell,
            records[cell.cell_id],
            None if baseline is None or cell.arm.is_baseline else baseline,
            () if baseline is None else records[baseline.cell_id],
            tuple(difference for difference in differences if difference.cell_id == cell.cell_id),
        )
        for cell in ordered
    )
    return Group(summaries, _fastest(summaries))


def _summarise_cell(
    cell: Cell,
    records: Sequence[RequestRecord],
    baseline: Cell | None,
    baseline_records: Sequence[RequestRecord],
    differences: tuple[DifferenceRecord, ...],
) -> CellSummary:
    pairing = None if baseline is None else pair_units(baseline_records, records)
    values = arm_metrics(cell, records) | pair_metrics(cell, pairing, baseline_records, records)
    findings = check_cell(cell, records)
    if pairing is not None:
        findings += check_pair(cell, pairing, differences)
    return CellSummary(
        metrics=values,
        cell=cell,
        records=tuple(records),
        pairing=pairing,
        baseline_cell_id=None if baseline is None else baseline.cell_id,
        why_no_speed=why_no_speed(cell, records) if values["decode_tok_s"] is None else None,
        why_no_speedup=why_no_speedup(cell, pairing) if values["speedup"] is None else None,
        why_no_agreement=why_no_agreement(cell, pairing) if values["agreement"] is None else None,
        findings=findings,
        differences=differences,
        categories=_categories(cell, records, baseline_records, pairing),
        finish_reasons=metrics.finish_reason_counts(records),
        error_kinds=metrics.error_kind_counts(records),
    )


def _categories(
    cell: Cell,
    records: Sequence[RequestRecord],
    baseline_records: Sequence[RequestRecord],
    pairing: Pairing | None,
) -> tuple[CategorySummary, ...]:
    names = sorted({record.category for record in records if record.category is not None})
    summaries = []
    for name in names:
        arm = [record for record in records if record.category == name]
        first = [record for record in baseline_records if record.category == name]
        refused = pairing is None or bool(pairing.unlike_prompts)
        values = arm_metrics(cell, arm) | pair_metrics(
            cell, None if refused else pair_units(first, arm), first, arm
        )
        summaries.append(CategorySummary(values, name, len(metrics.completed(arm))))
    return tuple(summaries)


def _busy_s(cell: Cell, records: Sequence[RequestRecord]) -> float | None:
    """None where requests run one at a time: then the sum of E2EL is the busy time."""
    workload = cell.workload
    one_at_a_time = workload.concurrency == 1 and workload.request_rate is None
    return None if one_at_a_time else metrics.busy_time_s(records)


def _throughput_speedup(
    cell: Cell, baseline: Sequence[RequestRecord], arm: Sequence[RequestRecord]
) -> Interval | None:
    if cell.workload.request_rate is not None:  # open loop: the load decides the throughput
        return None
    busy = _busy_s(cell, baseline), _busy_s(cell, arm)
    if busy == (None, None):
        return paired_metrics.pooled_throughput_speedup(baseline, arm).interval()
    value = paired_metrics.throughput_speedup(baseline, arm, *busy)
    return None if value is None else Interval(value, None, None)


def _fastest(cells: Sequence[CellSummary]) -> str | None:
    if any(cell.number("speedup") is not None for cell in cells):
        ranked = [(1.0 if cell.cell.arm.is_baseline else cell.number("speedup"), cell) for cell in cells]
    else:
        ranked = [(cell.number("decode_tok_s"), cell) for cell in cells]
    known = [(value, cell) for value, cell in ranked if value is not None]
    if len(known) < 2:
        return None
    return max(known, key=lambda item: item[0])[1].cell.cell_id


def _averages(groups: Sequence[Group]) -> tuple[Average, ...]:
    members: dict[tuple[str, str, int], list[CellSummary]] = {}
    for group in groups:
        for cell in group.cells:
            if not cell.cell.arm.is_baseline:
                key = (cell.cell.backend, cell.cell.arm.label, cell.cell.workload.concurrency)
                members.setdefault(key, []).append(cell)
    averages = []
    for (backend, label, concurrency), cells in members.items():
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
                len(datasets),
                geometric_mean(speedups) if len(speedups) == len(cells) else None,
                arithmetic_mean(lengths) if len(lengths) == len(cells) else None,
            )
        )
    return tuple(averages)
