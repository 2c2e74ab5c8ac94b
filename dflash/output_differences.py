"""Where an arm's outputs leave the baseline's, found in what a run has kept: outputs need not stay in memory."""

from __future__ import annotations

from dflash.asking import first_difference
from dflash.plan import Group
from dflash.recorder import RunRecorder
from dflash.results.records import DifferenceRecord, OutputRecord, RequestRecord
from dflash.results.store import load_run

Key = tuple[str, str, int, int]  # cell, prompt, turn, repeat


def record_differences(group: Group, recorder: RunRecorder) -> None:
    """Write the first difference of every output whose digest is not the baseline's, once.

    Only where token ids were saved: the digests, by which agreement is counted, are there in any case.
    """
    workload_id = group.workload_id
    baseline = recorder.baseline_cell(workload_id)
    if baseline is None:
        return
    run = load_run(recorder.folder)
    live = (cell for cell in run.info.cells if cell.workload_id == workload_id and not cell.is_retired)
    others = {cell.cell_id for cell in live} - {baseline.cell_id}
    records = {_key(record): record for record in run.records if record.completed}
    known = {_key(difference) for difference in run.differences}
    differing: set[Key] = set()
    for key, record in records.items():
        expected = records.get((baseline.cell_id, *key[1:]))
        if key[0] not in others or key in known or expected is None:
            continue
        known_digests = None not in (record.output_digest, expected.output_digest)
        if known_digests and record.output_digest != expected.output_digest:
            differing.add(key)
    if not differing:
        return
    wanted = differing | {(baseline.cell_id, *key[1:]) for key in differing}
    ids = {_key(output): output.output_ids for output in run.outputs() if _key(output) in wanted}
    for key in sorted(differing):
        expected_ids, given_ids = ids.get((baseline.cell_id, *key[1:])), ids.get(key)
        position = first_difference(expected_ids, given_ids)
        if position is None or expected_ids is None or given_ids is None:
            continue
        cell_id, prompt_id, turn, repeat = key
        recorder.add_difference(
            DifferenceRecord(
                cell_id=cell_id,
                prompt_id=prompt_id,
                turn=turn,
                repeat=repeat,
                segment=records[key].segment,
                position=position,
                baseline_token_id=expected_ids[position] if position < len(expected_ids) else None,
                arm_token_id=given_ids[position] if position < len(given_ids) else None,
            )
        )


def _key(record: RequestRecord | OutputRecord | DifferenceRecord) -> Key:
    return (record.cell_id, record.prompt_id, record.turn, record.repeat)
