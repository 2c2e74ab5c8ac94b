"""Runs -> their numbers:

Every metric of every cell, paired with its baseline, with findings and in parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dflash.results import baselines, metrics
from dflash.results.arrivals import why_no_steady_state
from dflash.results.averages import Average as Average
from dflash.results.averages import averages_of
from dflash.results.baselines import PlacedCell
from dflash.results.breakdowns import TwoArms, break_down
from dflash.results.cell_metrics import arm_metrics, intervals_of, pair_metrics, pooled_metrics
from dflash.results.cell_summary import CellSummary as CellSummary
from dflash.results.cell_summary import Group as Group
from dflash.results.cell_summary import all_at_limit as all_at_limit
from dflash.results.columns import table_of
from dflash.results.goodput import Slo
from dflash.results.load_metrics import load_metrics as load_metrics
from dflash.results.measured import Measured
from dflash.results.missing_numbers import why_no_agreement, why_no_speed, why_no_speedup, why_no_task_score
from dflash.results.output_comparison import Comparison, SavedOutputs, compare_outputs
from dflash.results.paired_metrics import Pairing, pair_units
from dflash.results.pairing import refused_pairing
from dflash.results.records import RunInfo
from dflash.results.repeats import between_repeats
from dflash.results.run_facts import read_facts, read_saved_outputs
from dflash.results.store import Run
from dflash.results.task_scores import unscored_counts
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


class _Summariser:
    """What is known of all runs while their cells are summed up, one after the other."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.infos = tuple(run.info for run in runs)
        self.grouped = baselines.group_cells(self.infos)
        facts = [read_facts(run) for run in runs]
        self.slo = next((item.slo for item in facts if item.slo is not None), None)
        self.facts = [replace(item, slo=self.slo) for item in facts]  # goodput by one set of limits for all
        self.saved = self._read_saved_outputs(runs)
        self.shared_arms: set[str] = set()  # names of those of which several runs hold the same label
        for group in self.grouped:
            arms = [placed.cell.arm for placed in group]
            labels = Counter(arm.label for arm in arms)
            self.shared_arms |= {arm.name for arm in arms if labels[arm.label] > 1}

    def summarise(self) -> RunSummary:
        groups = [self._summarise_group(group) for group in self.grouped]
        groups = _with_runs_named(_with_load_findings(groups, len(self.infos)), self.infos)
        return RunSummary(tuple(groups), averages_of(groups), self.slo, self.infos)

    def _read_saved_outputs(self, runs: Sequence[Run]) -> list[SavedOutputs]:
        pairs = []
        for group in self.grouped:
            for placed in group:
                baseline = baselines.baseline_for(placed, group)
                if baseline is not None:
                    pairs.append((baseline, placed))
        return [read_saved_outputs(run, place, pairs, self.facts) for place, run in enumerate(runs)]

    def _summarise_group(self, group: Sequence[PlacedCell]) -> Group:
        summaries = tuple(
            self._summarise_cell(placed, baselines.baseline_for(placed, group)) for placed in group
        )
        return Group(summaries, _fastest(summaries))

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

    def _summarise_cell(self, placed: PlacedCell, baseline: PlacedCell | None) -> CellSummary:
        cell, facts = placed.cell, self.facts[placed.run]
        compared, load = self._compare(placed, baseline), facts.of_load(cell)
        outcomes = facts.outcomes
        if baseline is not None and baseline.run != placed.run:
            outcomes = {**self.facts[baseline.run].outcomes, **outcomes}
        records = compared.arm
        pairing = None if baseline is None else self._pair(baseline, compared)
        (known,) = intervals_of([pooled_metrics(cell, records, pairing, outcomes)])
        values = arm_metrics(cell, records, outcomes, known) | load_metrics(cell, records, load)
        values |= pair_metrics(cell, pairing, compared.baseline, records, outcomes, known)
        findings = check_cell(cell, records) + check_scores(cell, records, outcomes)
        findings += check_load(cell, records, Measured(values), load)
        if baseline is not None and pairing is not None:
            findings += check_pair(cell, pairing, compared.differences, len(compared.text_differences), known)
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
            why_no_steady=why_no_steady_state(cell, records, load.arrivals)
            if values["steady_output_tok_s"] is None
            else None,
            why_no_agreement=why_no_agreement(cell, pairing, no_speedup)
            if values["agreement"] is None
            else None,
            why_no_task_score=why_no_task_score(cell, records, outcomes)
            if values["task_score"] is None
            else None,
            findings=findings,
            differences=compared.differences,
            breakdowns=break_down(TwoArms(cell, records, compared.baseline, pairing, outcomes), known),
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
        load = self.facts[baseline.run].of_load(baseline.cell)
        fault = baseline_fault(baseline.cell, compared.baseline, load)
        return refused_pairing(compared.arm, fault) if fault else pair_units(compared.baseline, compared.arm)

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


def _with_runs_named(groups: Sequence[Group], infos: Sequence[RunInfo]) -> list[Group]:
    """Groups of different runs whose titles would read the same bear the names of their runs."""
    titles = Counter(title for title, _ in short_titles(groups))
    return [
        replace(group, from_runs=", ".join(dict.fromkeys(infos[cell.run].name for cell in group.cells)))
        if titles[title] > 1
        else group
        for title, group in short_titles(groups)
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
