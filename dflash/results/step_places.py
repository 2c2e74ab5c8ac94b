"""How the acceptance length moves along an output, from its chunks; read only where a picture asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from dflash.results.store import Run
from dflash.results.summary import RunSummary

MAX_BUCKETS = 16
_MIN_WIDTH = 8  # tokens
CellKey = tuple[int, str]  # run, cell id


@dataclass(slots=True)
class PlaceCurve:
    """Delivered tokens and decode steps by where in the output the step began: bucket k begins at k * width tokens."""

    width: int
    tokens: list[int] = field(default_factory=lambda: [0] * MAX_BUCKETS)
    steps: list[int] = field(default_factory=lambda: [0] * MAX_BUCKETS)
    num_left_out: int = 0  # completed requests whose chunks are not their decode steps

    def points(self) -> list[tuple[float, float]]:
        """(middle of the bucket in tokens, tokens / steps) of every bucket with a step."""
        return [
            ((place + 0.5) * self.width, tokens / steps)
            for place, (tokens, steps) in enumerate(zip(self.tokens, self.steps, strict=True))
            if steps
        ]


def place_curves(runs: Sequence[Run], summary: RunSummary) -> dict[CellKey, PlaceCurve]:
    """Of every arm that drafts, over completed requests whose chunks after the first are their decode steps."""
    curves: dict[CellKey, PlaceCurve] = {}
    steps_of: dict[CellKey, dict[tuple[str, int, int], int | None]] = {}
    width = _width(summary)
    for cell in summary.cells:
        if not cell.cell.arm.is_baseline:
            key = (cell.run, cell.cell.cell_id)
            curves[key] = PlaceCurve(width)
            steps_of[key] = {
                record.unit: record.num_decode_steps for record in cell.records if record.completed
            }
    for place, run in enumerate(runs):
        if any(run_of == place for run_of, _ in curves):
            _add_chunks(run, place, curves, steps_of)
    return {key: curve for key, curve in curves.items() if any(curve.steps)}


def _width(summary: RunSummary) -> int:
    """A power of two with which the longest output fits into the buckets."""
    longest = max(
        (record.num_output_tokens or 0 for cell in summary.cells for record in cell.records), default=0
    )
    width = _MIN_WIDTH
    while width * MAX_BUCKETS < longest:
        width *= 2
    return width


def _add_chunks(
    run: Run,
    place: int,
    curves: Mapping[CellKey, PlaceCurve],
    steps_of: Mapping[CellKey, Mapping[tuple[str, int, int], int | None]],
) -> None:
    for chunk in run.chunks():
        key = (place, chunk.cell_id)
        unit = (chunk.prompt_id, chunk.turn, chunk.repeat)
        if key not in curves or unit not in steps_of[key]:
            continue
        curve, delivered = curves[key], chunk.num_tokens[1:]
        if not chunk.num_tokens or steps_of[key][unit] != len(delivered):
            curve.num_left_out += 1
            continue
        for begin, tokens in zip(accumulate(chunk.num_tokens), delivered, strict=False):
            bucket = min(begin // curve.width, MAX_BUCKETS - 1)
            curve.tokens[bucket] += tokens
            curve.steps[bucket] += 1
