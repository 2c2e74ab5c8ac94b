"""What a run's folder says, by cell: each of its files is read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflash.results.arrivals import Arrivals, collect_arrivals
from dflash.results.goodput import Slo, slo_of
from dflash.results.load_metrics import LoadFacts
from dflash.results.output_comparison import OutputKey, SavedOutputs, differing_keys, read_outputs
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
    saved: SavedOutputs
    slo: Slo | None

    def of_load(self, cell: Cell) -> LoadFacts:
        records, windows = self.records[cell.cell_id], self.windows.get(cell.cell_id, ())
        counts = count_server(records, windows) if cell.on_server else None
        return LoadFacts(self.arrivals[cell.cell_id], counts, self.slo)


def read_facts(run: Run, groups: Sequence[Sequence[Cell]]) -> RunFacts:
    """Each file is read once, and chunks and outputs one by one."""
    records: dict[str, list[RequestRecord]] = {cell.cell_id: [] for cell in run.info.cells}
    for record in run.records:
        if record.cell_id in records:
            records[record.cell_id].append(record)
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
        saved=_saved_outputs(run, groups, records, on_server),
        slo=slo_of(run.info.config),
    )


def _saved_outputs(
    run: Run,
    groups: Sequence[Sequence[Cell]],
    records: Mapping[str, Sequence[RequestRecord]],
    on_server: set[str],
) -> SavedOutputs:
    """In process all outputs have ids, and differences were recorded: nothing is read."""
    if not on_server:
        return SavedOutputs()
    differing: set[OutputKey] = set()
    for cells in groups:
        baseline = next((cell for cell in cells if cell.arm.is_baseline), None)
        for cell in cells:
            if baseline is not None and cell.cell_id in on_server and not cell.arm.is_baseline:
                differing |= differing_keys(records[baseline.cell_id], records[cell.cell_id])
    return read_outputs(run.outputs(), on_server, differing)
