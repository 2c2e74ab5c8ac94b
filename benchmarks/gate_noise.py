"""How often the gate cries wolf, and how often it finds what is there: on made-up runs with a known noise.

The noise of times, fixed: every request is off by a log-normal factor of 5 %, 1 % of the requests take half as long
again (bursts), every run has a factor of its own of 0.7 %, and drifts linearly by up to 1 % either way from its first
request to its last. 128 prompts, 3 repeats. The factor of a run is one of each repeat, which is what repeats are there
to show; rows of their own say what happens where it is one of all repeats together, and nothing in the run shows it.
Acceptance has no clock: where it varies at all (bfloat16, load), every request's steps are off by 5 %.

Each row is many independent pairs of runs, made as request records and judged by the gate's own code:

- A/A pairs: nothing changed. A false alarm is a verdict `worse`; at most 10 of 1,000 are wanted per comparison.
- changed pairs: step time 5 % higher and a least change of 2.5 %, acceptance 2 % lower and 1 %. At least 95 % of 200
  are to be found.

The same seed gives the same table, on one core in some minutes.

    python benchmarks/gate_noise.py [--seed 0] [--num-same 1000] [--num-changed 200]
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy
from numpy.typing import NDArray

from dflash.gate.estimates import estimate
from dflash.gate.expressions import parse_gate
from dflash.gate.families import Member, judge_family
from dflash.gate.quantities import QUANTITIES
from dflash.gate.records import CalibratedSpread, Gate, Verdict
from dflash.gate.sides import Side
from dflash.results.columns import RequestTable
from dflash.results.pairing import pair_units
from dflash.results.records import RequestRecord

NUM_PROMPTS = 128
NUM_REPEATS = 3
REQUEST_SIGMA = 0.05
RUN_SIGMA = 0.007
MAX_DRIFT = 0.01
BURST_SHARE, BURST = 0.01, 1.5
NS_PER_S = 1_000_000_000
BASELINE_TOKEN_S, STEP_S, PREFILL_S = 0.020, 0.030, 0.040
WANTED_FALSE_ALARMS, WANTED_FOUND = 0.01, 0.95

Floats = NDArray[numpy.float64]


@dataclass(frozen=True)
class Truth:
    """What is really so, before noise."""

    step_factor: float = 1.0  # of the drafting arm's step time
    acceptance_factor: float = 1.0
    num_prompts: int = NUM_PROMPTS
    num_repeats: int = NUM_REPEATS
    steps_sigma: float = 0.0  # of a request's number of steps; 0: counts do not vary, as in float32 on a CPU
    factor_per_run: bool = (
        False  # one factor for a whole run instead of one per repeat: what repeats cannot show
    )
    arms_share_factor: bool = True  # in process the arms alternate; servers run one after the other


def make_side(truth: Truth, prompts_seed: int, noise: numpy.random.Generator, *, paired: bool = True) -> Side:
    """A run's drafting arm with its baseline, as records. Prompts are the same for the same `prompts_seed`."""
    fixed = numpy.random.default_rng(prompts_seed)
    tokens = fixed.integers(64, 512, size=truth.num_prompts)
    lengths = numpy.exp(fixed.normal(numpy.log(3.5), 0.25, size=truth.num_prompts)) * truth.acceptance_factor
    shared = run_factors(truth, noise)
    others = shared if truth.arms_share_factor else run_factors(truth, noise)
    plain_s = BASELINE_TOKEN_S * time_factors(truth, noise) * others
    step_s = STEP_S * truth.step_factor * time_factors(truth, noise) * shared
    off = numpy.exp(noise.normal(0, truth.steps_sigma, size=(truth.num_repeats, truth.num_prompts)))
    steps = numpy.maximum(1, numpy.rint((tokens - 1) / lengths * off)).astype(int)
    units = [(repeat, prompt) for repeat in range(truth.num_repeats) for prompt in range(truth.num_prompts)]
    drafted = RequestTable(
        [_record(unit, int(tokens[unit[1]]), int(steps[unit]), float(step_s[unit])) for unit in units]
    )
    if not paired:
        return Side(drafted)
    plain = [
        _record(unit, int(tokens[unit[1]]), int(tokens[unit[1]]) - 1, float(plain_s[unit])) for unit in units
    ]
    return Side(drafted, pair_units(plain, drafted))


def time_factors(truth: Truth, noise: numpy.random.Generator) -> Floats:
    """What single requests are off by, bursts included. [repeats, prompts]"""
    shape = (truth.num_repeats, truth.num_prompts)
    factors = numpy.exp(noise.normal(0, REQUEST_SIGMA, size=shape))
    burst: Floats = factors * numpy.where(noise.random(shape) < BURST_SHARE, BURST, 1.0)
    return burst


def run_factors(truth: Truth, noise: numpy.random.Generator) -> Floats:
    """What whole repeats or runs are off by, and the drift. [repeats, prompts]"""
    shape = (truth.num_repeats, truth.num_prompts)
    offsets = noise.normal(0, RUN_SIGMA, size=(1 if truth.factor_per_run else truth.num_repeats, 1))
    drift = noise.uniform(-MAX_DRIFT, MAX_DRIFT)
    ramp = numpy.linspace(0, 1, truth.num_repeats * truth.num_prompts).reshape(shape)
    factors: Floats = numpy.exp(offsets) * (1 + drift * ramp)
    return factors


def _record(unit: tuple[int, int], num_tokens: int, num_steps: int, step_s: float) -> RequestRecord:
    first = round(PREFILL_S * NS_PER_S)
    return RequestRecord(
        cell_id="made-up",
        prompt_id=f"made-up/{unit[1]}",
        repeat=unit[0],
        sent_ns=0,
        first_ns=first,
        last_ns=first + round(num_steps * step_s * NS_PER_S),
        num_output_tokens=num_tokens,
        num_first_chunk_tokens=1,
        finish_reason="stop",
        num_decode_steps=num_steps,
    )


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    name: str
    gate: str
    truth: Truth
    changed: Callable[[Truth], Truth]
    num_cells: int = 1  # that are judged, and corrected, together; only the first changes
    num_calibrating: int = 0  # A/A runs that the spread of whole runs is taken from
    num_base_runs: int = 1  # that the baseline is made of


def slower(truth: Truth) -> Truth:
    return replace(truth, step_factor=1.05)


def accepting_less(truth: Truth) -> Truth:
    return replace(truth, acceptance_factor=0.98)


ROWS = (
    Row("TPOT", "tpot_s:+2.5%", Truth(), slower),
    Row("acceptance length, varying", "acceptance_length:-1%", Truth(steps_sigma=0.05), accepting_less),
    Row("acceptance length, not varying", "acceptance_length:-1%", Truth(), accepting_less),
    Row("speedup, arms interleaved", "speedup:-2.5%", Truth(), slower),
    Row("speedup, arms one after the other", "speedup:-2.5%", Truth(arms_share_factor=False), slower),
    Row("TPOT, 8 cells judged together", "tpot_s:+2.5%", Truth(), slower, num_cells=8),
    Row("TPOT, 1 repeat", "tpot_s:+2.5%", Truth(num_repeats=1), slower),
    Row("TPOT, 5 repeats", "tpot_s:+2.5%", Truth(num_repeats=5), slower),
    Row("TPOT, factor of a whole run", "tpot_s:+2.5%", Truth(factor_per_run=True), slower),
    Row(
        "the same, calibrated by 10 runs",
        "tpot_s:+2.5%",
        Truth(factor_per_run=True),
        slower,
        num_calibrating=10,
    ),
    *(
        Row(
            f"the same, a baseline of {number} runs",
            "tpot_s:+2.5%",
            Truth(factor_per_run=True),
            slower,
            num_base_runs=number,
        )
        for number in (5, 8, 10, 20)
    ),
    Row(
        "the same, 8 cells, a baseline of 5 runs",
        "tpot_s:+2.5%",
        Truth(factor_per_run=True),
        slower,
        num_cells=8,
        num_base_runs=5,
    ),
    Row(
        "speedup, arms one after the other, a baseline of 10 runs",
        "speedup:-2.5%",
        Truth(factor_per_run=True, arms_share_factor=False),
        slower,
        num_base_runs=10,
    ),
)


def judge_pairs(row: Row, num_pairs: int, seed: int, *, is_changed: bool) -> list[Verdict]:
    """The verdicts of so many pairs; of A/A pairs those of every cell, of changed pairs that of the changed one."""
    noise = numpy.random.default_rng([seed, is_changed])
    gate = parse_gate(row.gate)
    verdicts: list[Verdict] = []
    for number in range(num_pairs if is_changed else -(-num_pairs // row.num_cells)):
        found = _judge_page(row, gate, number * row.num_cells, noise, is_changed=is_changed)
        verdicts += found[:1] if is_changed else found
    return verdicts[:num_pairs]


def _judge_page(
    row: Row, gate: Gate, prompts_seed: int, noise: numpy.random.Generator, *, is_changed: bool
) -> list[Verdict]:
    """What one comparison of two runs says of each of its cells."""
    quantity = QUANTITIES[gate.quantity]
    members = []
    for cell in range(row.num_cells):
        truth = row.changed(row.truth) if is_changed and cell == 0 else row.truth
        base, *others, new = (
            make_side(each, prompts_seed + cell, noise, paired=quantity.is_paired)
            for each in (*(row.truth,) * row.num_base_runs, truth)
        )
        calibrated = _calibrated(row, prompts_seed + cell, noise)
        change = estimate(quantity, base, new, others=others, calibrated=calibrated)
        assert change is not None
        members.append(Member(gate, change, cell))
    return [item.judged.verdict for item in judge_family(members)]


def _calibrated(row: Row, prompts_seed: int, noise: numpy.random.Generator) -> CalibratedSpread | None:
    """The spread of whole runs, from A/A runs of their own."""
    if not row.num_calibrating:
        return None
    quantity = QUANTITIES[parse_gate(row.gate).quantity]
    values = [
        quantity.value(make_side(row.truth, prompts_seed, noise, paired=quantity.is_paired))
        for _ in range(row.num_calibrating)
    ]
    return CalibratedSpread(statistics.variance(math.log(value) for value in values if value), len(values))


def table_row(row: Row, num_same: int, num_changed: int, seed: int) -> str:
    same = Counter(judge_pairs(row, num_same, seed, is_changed=False))
    changed = Counter(judge_pairs(row, num_changed, seed, is_changed=True))
    alarms, found = same["worse"], changed["worse"]
    reached = alarms <= WANTED_FALSE_ALARMS * num_same and found >= WANTED_FOUND * num_changed
    return (
        f"| {row.name} | `{row.gate}` | {alarms} of {num_same} | {same['better']} | {same['inconclusive']} | "
        f"{found} of {num_changed} ({100 * found / num_changed:.1f} %) | {'yes' if reached else 'no'} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="False alarms and power of the gate under a known noise.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-same", type=int, default=1000, help="A/A pairs of each row")
    parser.add_argument("--num-changed", type=int, default=200, help="changed pairs of each row")
    options = parser.parse_args()
    print("| quantity | gate | false alarms | called better | inconclusive | change found | reached |")
    print("| :-- | :-- | --: | --: | --: | --: | :-- |")
    for row in ROWS:
        print(table_row(row, options.num_same, options.num_changed, options.seed), flush=True)


if __name__ == "__main__":
    main()
