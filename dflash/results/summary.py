"""Runs -> their numbers:

Every metric of every cell, paired with its baseline, with findings and in parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dflash.results import baselines, metrics
from dflash.results.arrivals import why_no_peak, why_no_steady_state
from dflash.results.averages import Average as Average
from dflash.results.averages import averages_of
from dflash.results.baselines import PlacedCell
from dflash.results.breakdowns import Parts, break_down, pooled_of_parts, split
from dflash.results.cell_metrics import (
    Intervals,
    arm_metrics,
    intervals_of,
    pair_metrics,
    pooled_metrics,
)
from dflash.results.cell_summary import CellSummary as CellSummary
from dflash.results.cell_summary import Group as Group
from dflash.results.cell_summary import all_at_limit as all_at_limit
from dflash.results.columns import table_of
from dflash.results.goodput import Slo
from dflash.results.load_metrics import LoadFacts
from dflash.results.load_metrics import load_metrics as load_metrics
from dflash.results.measured import Measured
from dflash.results.missing_numbers import why_no_agreement, why_no_speed, why_no_speedup, why_no_task_score
from dflash.results.output_comparison import Comparison, SavedOutputs, compare_outputs
from dflash.results.paired_metrics import Pairing, pair_units
from dflash.results.pairing import refused_pairing
from dflash.results.records import RunInfo
from dflash.results.repeats import between_repeats
from dflash.results.run_facts import read_facts, read_saved_outputs
from dflash.results.settings_apart import settings_apart
from dflash.results.stats import Pooled
from dflash.results.store import Run
from dflash.results.task_scores import Outcomes, unscored_counts
from dflash.results.titles import short_titles
from dflash.results.verify import check_cell
from dflash.results.verify_loads import check_loads
from dflash.results.verify_pair import check_pair, check_runs
from dflash.results.verify_scores import check_pair_scores, check_scores
from dflash.results.verify_server import baseline_fault, check_load


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Everything that a report, a table, a picture or a JSON document prints about a run, or about several."""

    groups: tuple[Group, ...]
    averages: tuple[Average, ...] = ()
    slo: Slo | None = None  # of the first run that has limits; goodput of all runs is by these
    infos: tuple[RunInfo, ...] = ()

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
    return summarise_runs([run])


def summarise_runs(runs: Sequence[Run]) -> RunSummary:
    """The same of several runs together: an arm without a baseline in its own run is paired with that of another run,
    where workload, backend and machine are equal.

    Raises:
        UsageError: a file in a folder is damaged.
    """
    return _Summariser(runs).summarise()


@dataclass(frozen=True, slots=True)
class _Gathered:
    """A cell beside its baseline and in parts, before its figures."""

    placed: PlacedCell
    baseline: PlacedCell | None
    compared: Comparison
    load: LoadFacts
    outcomes: Outcomes
    pairing: Pairing | None
    parts: Parts

    def pooled(self) -> list[dict[str, Pooled]]:
        """What intervals are drawn from: of the cell, then of its parts."""
        cell, compared = self.placed.cell, self.compared
        whole = pooled_metrics(cell, compared.arm, self.pairing, self.outcomes, compared.baseline)
        return [whole, *pooled_of_parts(cell, self.parts, self.outcomes)]


class _Summariser:
    """What is known of all runs while their cells are summed up."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.infos = tuple(run.info for run in runs)
        self.grouped = baselines.group_cells(self.infos)
        facts = [read_facts(run) for run in runs]
        self.slo = next((item.slo for item in facts if item.slo is not None), None)
        self.facts = [replace(item, slo=self.slo) for item in facts]  # goodput by one set of limits for all
        self.saved = self._read_saved_outputs(runs)
        self.loads: dict[tuple[int, str], LoadFacts] = {}
        self.shared_arms: set[str] = set()  # names of those of which several runs hold the same label
        for group in self.grouped:
            arms = [placed.cell.arm for placed in group]
            labels = Counter(arm.label for arm in arms)
            self.shared_arms |= {arm.name for arm in arms if labels[arm.label] > 1}

    def summarise(self) -> RunSummary:
        """The intervals of all cells and parts are drawn together: those over equally many prompts share the draws."""
        gathered = [
            [self._gather(placed, baselines.baseline_for(placed, group)) for placed in group]
            for group in self.grouped
        ]
        pooled = [[item.pooled() for item in group] for group in gathered]
        known = iter(intervals_of([found for group in pooled for items in group for found in items]))
        groups = []
        for members, sums in zip(gathered, pooled, strict=True):
            cells = tuple(
                self._summarise_cell(item, [next(known) for _ in items])
                for item, items in zip(members, sums, strict=True)
            )
            groups.append(Group(cells, _fastest(cells)))
        groups = _told_apart(_with_load_findings(groups, len(self.infos)), self.infos)
        return RunSummary(tuple(groups), averages_of(groups), self.slo, self.infos)

    def _read_saved_outputs(self, runs: Sequence[Run]) -> list[SavedOutputs]:
        pairs = []
        for group in self.grouped:
            for placed in group:
                baseline = baselines.baseline_for(placed, group)
                if baseline is not None:
                    pairs.append((baseline, placed))
        return [read_saved_outputs(run, place, pairs, self.facts) for place, run in enumerate(runs)]

    def _compare(self, placed: PlacedCell, baseline: PlacedCell | None) -> Comparison:
        """The cell's records and its baseline's, with digests that can be compared."""
        cell, facts = placed.cell, self.facts[placed.run]
        records = facts.records[cell.cell_id]
        known = tuple(facts.differences.get(cell.cell_id, ()))
        if baseline is None:
            return Comparison((), records, differences=known)
        baseline_records = self.facts[baseline.run].records[baseline.cell.cell_id]
        saved = self.saved[placed.run]
        if baseline.run != placed.run:
            saved = self.saved[baseline.run].joined(saved)
        elif not cell.on_server:
            return Comparison(baseline_records, records, differences=known)
        return compare_outputs(baseline_records, records, saved, known, all_have_ids=not cell.on_server)

    def _gather(self, placed: PlacedCell, baseline: PlacedCell | None) -> _Gathered:
        compared, outcomes = self._compare(placed, baseline), self.facts[placed.run].outcomes
        if baseline is not None and baseline.run != placed.run:
            outcomes = {**self.facts[baseline.run].outcomes, **outcomes}
        pairing = None if baseline is None else self._pair(baseline, compared)
        parts = split(compared.arm, compared.baseline, pairing)
        return _Gathered(placed, baseline, compared, self._load_of(placed), outcomes, pairing, parts)

    def _summarise_cell(self, item: _Gathered, known: Sequence[Intervals]) -> CellSummary:
        """Args: `known`, the intervals of `item.pooled()`."""
        placed, baseline, pairing, outcomes = item.placed, item.baseline, item.pairing, item.outcomes
        cell, compared, load = placed.cell, item.compared, item.load
        whole, *of_parts = known
        records = compared.arm
        values = arm_metrics(cell, records, outcomes, whole) | load_metrics(cell, records, load)
        values |= pair_metrics(cell, pairing, compared.baseline, records, outcomes, whole)
        findings = check_cell(cell, records) + check_scores(cell, records, outcomes)
        findings += check_load(cell, records, Measured(values), load)
        if baseline is not None and pairing is not None:
            findings += check_pair(cell, pairing, compared.differences, len(compared.text_differences), whole)
            findings += check_pair_scores(cell, pairing, outcomes)
            findings += check_runs(placed, baseline, self.infos)
        no_speedup = self._why_no_speedup(placed, baseline, pairing)
        return CellSummary(
            metrics=values,
            cell=cell,
            records=table_of(records),
            pairing=pairing,
            baseline_cell_id=None if baseline is None else baseline.cell.cell_id,
            why_no_speed=why_no_speed(cell, records) if values["decode_tok_s"] is None else None,
            why_no_speedup=no_speedup if values["speedup"] is None else None,
            why_no_agreement=why_no_agreement(cell, pairing, no_speedup)
            if values["agreement"] is None
            else None,
            why_no_task_score=why_no_task_score(cell, records, outcomes)
            if values["task_score"] is None
            else None,
            why_no_steady=why_no_steady_state(cell, records, load.arrivals)
            if values["steady_output_tok_s"] is None
            else None,
            why_no_peak=why_no_peak(records, load.arrivals) if values["peak_output_tok_s"] is None else None,
            findings=findings,
            differences=compared.differences,
            breakdowns=break_down(item.parts, outcomes, whole, of_parts),
            unscored=unscored_counts(records, outcomes),
            finish_reasons=metrics.finish_reason_counts(records),
            error_kinds=metrics.error_kind_counts(records),
            counts=load.counts,
            agreement_basis=compared.basis,
            text_differences=compared.text_differences,
            between_repeats=between_repeats(self.infos[placed.run], records, pairing),
            run=placed.run,
            run_name=self.infos[placed.run].name if cell.arm.name in self.shared_arms else "",
            baseline_run=placed.run if baseline is None else baseline.run,
        )

    def _pair(self, baseline: PlacedCell, compared: Comparison) -> Pairing:
        fault = baseline_fault(baseline.cell, compared.baseline, self._load_of(baseline))
        return refused_pairing(compared.arm, fault) if fault else pair_units(compared.baseline, compared.arm)

    def _load_of(self, placed: PlacedCell) -> LoadFacts:
        place = (placed.run, placed.cell.cell_id)
        if place not in self.loads:
            self.loads[place] = self.facts[placed.run].of_load(placed.cell)
        return self.loads[place]

    def _why_no_speedup(
        self, placed: PlacedCell, baseline: PlacedCell | None, pairing: Pairing | None
    ) -> str:
        every = [other for group in self.grouped for other in group]
        refusal = None if baseline is not None else baselines.refusal_for(placed, self.infos, every)
        if refusal is None:
            return why_no_speedup(placed.cell, pairing)
        other = self.infos[refusal.baseline.run].name
        return why_no_speedup(placed.cell, pairing, f"that of run {other} is not compared: {refusal.words}")


def _with_load_findings(groups: Sequence[Group], num_runs: int) -> list[Group]:
    """What only several groups of a run together show."""
    found = [
        check_loads([cell for group in groups for cell in group.cells if cell.run == run])
        for run in range(num_runs)
    ]
    return [
        replace(
            group,
            cells=tuple(
                replace(cell, findings=(*cell.findings, found[cell.run][cell.cell.cell_id]))
                if cell.cell.cell_id in found[cell.run]
                else cell
                for cell in group.cells
            ),
        )
        for group in groups
    ]


def _told_apart(groups: Sequence[Group], infos: Sequence[RunInfo]) -> list[Group]:
    """Groups whose titles would read the same bear the settings that differ, and of several runs their names."""
    titled = short_titles(groups)
    runs = [", ".join(dict.fromkeys(infos[cell.run].name for cell in group.cells)) for group in groups]
    sources: dict[str, set[str]] = {}
    for (title, _), names in zip(titled, runs, strict=True):
        sources.setdefault(title, set()).add(names)
    words = settings_apart([(group.first.backend, group.first.workload) for group in groups])
    return [
        replace(group, settings=settings, from_runs=names if len(sources[title]) > 1 else "")
        for (title, group), settings, names in zip(titled, words, runs, strict=True)
    ]


def _fastest(cells: Sequence[CellSummary]) -> CellSummary | None:
    """Only what an interval shows: None where the arms cannot be told apart, or there are too few prompts to say."""
    paired = [(value, cell) for cell in cells if (value := cell.interval("speedup")) is not None]
    if paired:
        best, cell = max(paired, key=lambda item: item[0].value)
        if best.low is not None and best.low >= 1:
            return cell
        slower = all(value.high is not None and value.high < 1 for value, _ in paired)
        return next((cell for cell in cells if cell.cell.arm.is_baseline), None) if slower else None
    speeds = [(value, cell) for cell in cells if (value := cell.interval("decode_tok_s")) is not None]
    if len(speeds) < 2:
        return None
    (first, cell), (second, _), *_ = sorted(speeds, key=lambda item: -item[0].value)
    clear = first.low is not None and second.high is not None and first.low > second.high
    return cell if clear else None
