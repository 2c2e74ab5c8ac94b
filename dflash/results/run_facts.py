"""What a run's folder says, by cell: each of its files is read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.results.arrivals import Arrivals, collect_arrivals
from dflash.results.baselines import PlacedCell
from dflash.results.columns import RequestKey, table_of
from dflash.results.goodput import Slo, slo_of
from dflash.results.load_metrics import LoadFacts
from dflash.results.output_comparison import SavedOutputs, differing_keys, read_outputs
from dflash.results.records import Cell, DifferenceRecord, RequestRecord, WindowRecord
from dflash.results.server_counters import count_server
from dflash.results.store import Run
from dflash.results.task_scores import Outcomes, score_run


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run's folder says, by cell."""

    records: Mapping[str, Sequence[RequestRecord]]
    differences: Mapping[str, Sequence[DifferenceRecord]]
    outcomes: Outcomes
    arrivals: Mapping[str, Arrivals]
    windows: Mapping[str, Sequence[WindowRecord]]
    slo: Slo | None
    stamped_by: str | None  # see `LoadFacts`

    def of_load(self, cell: Cell) -> LoadFacts:
        records, windows = self.records[cell.cell_id], self.windows.get(cell.cell_id, ())
        counts = count_server(records, windows) if cell.on_server else None
        return LoadFacts(self.arrivals[cell.cell_id], counts, self.slo, self.stamped_by)


def read_facts(run: Run) -> RunFacts:
    """Each file is read once, and chunks and outputs one by one."""
    requests = table_of(run.records)
    cell_ids = requests.texts("cell_id")
    records = {cell.cell_id: requests.take(cell_ids == cell.cell_id) for cell in run.info.cells}
    differences: dict[str, list[DifferenceRecord]] = {}
    for difference in run.differences:
        differences.setdefault(difference.cell_id, []).append(difference)
    on_server = {cell.cell_id for cell in run.info.cells if cell.on_server}
    windows: dict[str, list[WindowRecord]] = {}
    for window in run.windows() if on_server else ():
        windows.setdefault(window.cell_id, []).append(window)
    return RunFacts(
        records=records,
        differences=differences,
        outcomes=score_run(run),
        arrivals=collect_arrivals(records, run.chunks()),
        windows=windows,
        slo=slo_of(run.info.config),
        stamped_by=_stamped_by(run.info.environment),
    )


def _stamped_by(environment: Mapping[str, Any]) -> str | None:
    """Of any engine of the run: it is this machine's doing."""
    told = (
        engine.get("arrivals_stamped_by") for engine in environment.values() if isinstance(engine, Mapping)
    )
    return next((str(value) for value in told if value), None)


def read_saved_outputs(
    run: Run,
    place: int,
    pairs: Sequence[tuple[PlacedCell, PlacedCell]],
    facts: Sequence[RunFacts],
) -> SavedOutputs:
    """What must be known of the outputs of one run to compare arms with their baselines.

    Within one run in process all outputs have ids, and differences were recorded: nothing is read.

    Args:
        place: which of the runs it is.
        pairs: baseline and arm, of all runs.
        facts: of every run.
    """
    cell_ids: set[str] = {cell.cell_id for cell in run.info.cells if cell.on_server}
    differing: set[RequestKey] = set()
    for pair in pairs:
        if pair[1].cell.on_server or pair[0].run != pair[1].run:
            baseline, arm = (facts[placed.run].records[placed.cell.cell_id] for placed in pair)
            differing |= differing_keys(baseline, arm)
            cell_ids |= {placed.cell.cell_id for placed in pair if placed.run == place}
    return read_outputs(run.outputs(), cell_ids, differing) if cell_ids else SavedOutputs()
