"""What is computed over columns equals the formula written out, request by request, on random records with gaps."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import fields, replace
from itertools import pairwise

import pytest
from made_up_run import cell, dflash_arm

from dflash.errors import UsageError
from dflash.results import acceptance_metrics, metrics, paired_metrics, stats
from dflash.results.breakdowns import break_down, pooled_of_parts, prompt_length_bucket, split
from dflash.results.cell_metrics import intervals_of, pooled_metrics
from dflash.results.columns import RequestTable, table_of
from dflash.results.in_flight import busy_intervals, steady_windows
from dflash.results.line_format import decode_fields, encode_line
from dflash.results.paired_metrics import pair_units
from dflash.results.records import RequestRecord
from dflash.results.request_metrics import decode_terms, request_tpot_s
from dflash.results.stats import Pooled, ratio, ratio_of_ratios
from dflash.results.task_scores import NOT_SCORED
from dflash.results.verify import acceptance_fault, check_cell, histogram_fault, stamps_fault, tokens_fault

NS = 1_000_000_000
BLOCK_SIZE = 4


def random_records(seed: int, cell_id: str = "a", num: int = 300, gaps: float = 0.1) -> list[RequestRecord]:
    """Requests of which any number may be unknown, some failed, some twice, in two segments and three blocks."""
    rng = random.Random(seed)
    start = 10**15

    def or_none(value):
        return None if rng.random() < gaps else value

    def histogram():
        return tuple(rng.randrange(9) for _ in range(rng.randrange(BLOCK_SIZE + 2)))

    records = []
    for _ in range(num):
        sent = start + rng.randrange(50 * NS)
        first = sent + rng.randrange(-1000, NS)
        records.append(
            RequestRecord(
                cell_id,
                f"p/{rng.randrange(40)}",
                category=or_none(rng.choice("xyz")),
                turn=rng.randrange(2),
                repeat=rng.choice((0, 1, 7)),
                segment=rng.randrange(2),
                block=rng.randrange(3),
                due_ns=or_none(sent - rng.randrange(NS)),
                sent_ns=or_none(sent),
                first_ns=or_none(first),
                last_ns=or_none(first + rng.randrange(3 * NS)),
                num_output_tokens=or_none(rng.randrange(30)),
                num_first_chunk_tokens=or_none(1),
                finish_reason=rng.choice(("stop", "length", "stop", "error", "cancelled")),
                num_decode_steps=or_none(rng.randrange(12)),
                num_verify_steps=or_none(rng.randrange(12)),
                num_draft_tokens=or_none(rng.randrange(40)),
                num_accepted_tokens=or_none(rng.randrange(30)),
                acceptance_histogram=or_none(histogram()),
                acceptance_histogram_untrimmed=or_none(histogram()),
                output_digest=or_none(rng.choice("mn")),
                prompt_digest=or_none("d"),
            )
        )
    return records


def done(records):
    return [record for record in records if record.finish_reason in ("stop", "length")]


def decode_of(record):
    """(ns, tokens) where a request has a decode token."""
    if None in (record.num_output_tokens, record.first_ns, record.last_ns):
        return None
    first = 1 if record.num_first_chunk_tokens is None else record.num_first_chunk_tokens
    tokens = record.num_output_tokens - first
    return (record.last_ns - record.first_ns, tokens) if tokens > 0 else None


@pytest.mark.parametrize("seed", range(4))
def test_metrics_of_one_arm_are_their_formulas(seed):
    records = random_records(seed)
    decode = [terms for record in done(records) if (terms := decode_of(record)) is not None]
    tokens, time_ns = sum(n for _, n in decode), sum(ns for ns, _ in decode)
    assert metrics.decode_tok_s(records) == pytest.approx(tokens / (time_ns / NS), rel=1e-12)
    each = [ns / NS / n for ns, n in decode]
    assert metrics.tpot_s_request_mean(records) == math.fsum(each) / len(each)
    waits = [
        (record.first_ns - record.sent_ns) / NS
        for record in done(records)
        if record.first_ns is not None and record.sent_ns is not None
    ]
    assert metrics.ttft_s(records) == math.fsum(waits) / len(waits)
    steps = [
        (record.num_output_tokens - 1, record.num_decode_steps)
        for record in done(records)
        if record.num_output_tokens is not None and record.num_decode_steps
    ]
    expected = sum(n for n, _ in steps) / sum(n for _, n in steps)
    assert acceptance_metrics.acceptance_length(records) == expected
    expected = math.fsum(n / of for n, of in steps) / len(steps)
    assert acceptance_metrics.acceptance_length_request_mean(records) == expected
    bars: Counter[int] = Counter()
    for record in done(records):
        bars.update(dict(enumerate(record.acceptance_histogram or ())))
    assert acceptance_metrics.acceptance_histogram(records) == tuple(bars[k] for k in range(max(bars) + 1))
    assert metrics.error_rate(records) == sum(r.finish_reason == "error" for r in records) / len(records)


@pytest.mark.parametrize("seed", range(4))
def test_sums_by_prompt_come_in_the_order_of_the_prompts(seed):
    """Which draws fall on a prompt depends on its place."""
    records = random_records(seed)
    rows = [
        (record.prompt_id, (terms[1], terms[0] / NS))
        for record in done(records)
        if (terms := decode_of(record)) is not None
    ]
    expected, found = Pooled.of(rows, ratio), metrics.pooled_decode_tok_s(records)
    assert list(found.sums.items()) == list(expected.sums.items())
    assert found.interval() == expected.interval()


@pytest.mark.parametrize("seed", range(4))
def test_pairs_and_paired_metrics_are_their_formulas(seed):
    baseline, arm = random_records(seed, "a"), random_records(seed + 100, "b")
    first, second = ({record.unit: record for record in records} for records in (baseline, arm))
    units = dict.fromkeys([*first, *second])
    whole = [
        (first[unit], second[unit])
        for unit in units
        if unit in first and unit in second and done([first[unit]]) and done([second[unit]])
    ]
    paired = [pair for pair in whole if decode_of(pair[0]) and decode_of(pair[1])]
    pairing = pair_units(baseline, arm)
    assert list(pairing.completed_pairs) == whole
    assert list(pairing.pairs) == paired
    assert sum(pairing.left_out.values()) == len(units) - len(paired)
    one, other = ([decode_of(pair[side]) for pair in paired] for side in (0, 1))
    expected = ratio_of_ratios(*(sum(terms[i] for terms in arm) for arm in (one, other) for i in (0, 1)))
    assert paired_metrics.speedup(pairing) == pytest.approx(expected, rel=1e-12)
    known = [pair for pair in whole if pair[0].output_digest and pair[1].output_digest]
    unlike = {pair[0].prompt_id for pair in known if pair[0].output_digest != pair[1].output_digest}
    prompts = {pair[0].prompt_id for pair in known}
    assert paired_metrics.agreement(pairing) == (len(prompts) - len(unlike)) / len(prompts)
    agreeing = replace(pairing, pairs=[pair for pair in paired if pair[0].prompt_id in prompts - unlike])
    assert paired_metrics.speedup_agreeing(pairing) == paired_metrics.speedup(agreeing)


def bounds(interval):
    """Nothing where there are too few prompts."""
    return [bound for bound in (interval.low, interval.high) if bound is not None]


@pytest.mark.parametrize("seed", range(3))
def test_figures_of_parts_are_the_formulas_over_their_requests(seed):
    baseline, arm = (
        [replace(record, num_prompt_tokens=20 * int(record.prompt_id[2:])) for record in records]
        for records in (random_records(seed, "a", 900), random_records(seed + 100, "b", 900))
    )
    place, pairing = cell(dflash_arm(BLOCK_SIZE), cell_id="b"), pair_units(baseline, arm)
    parts = split(arm, baseline, pairing)
    known = intervals_of(pooled_of_parts(place, parts, NOT_SCORED))
    found = break_down(parts, NOT_SCORED, {}, known)
    num_parts = 0
    for members, part_of in (
        (found.categories, lambda record: record.category),
        (found.turns, lambda record: str(record.turn)),
        (found.prompt_lengths, lambda record: prompt_length_bucket(record.num_prompt_tokens)),
    ):
        for part in members:
            num_parts += 1
            own = [record for record in arm if part_of(record) == part.name]
            pairs = [pair for pair in pairing.pairs if part_of(pair[1]) == part.name]
            decode = [(r.prompt_id, (terms[1], terms[0] / NS)) for r in done(own) if (terms := decode_of(r))]
            both = [(one.prompt_id, (*decode_of(one), *decode_of(other))) for one, other in pairs]
            for name, rows, formula in (("decode_tok_s", decode, ratio), ("speedup", both, ratio_of_ratios)):
                expected, interval = Pooled.of(rows, formula).interval(), part.metrics[name]
                assert interval.value == expected.value
                assert bounds(interval) == pytest.approx(bounds(expected), rel=1e-12)
            assert part.metrics["ttft_s"] == metrics.ttft_s(own)
            assert part.metrics["num_pairs"] == len(pairs)
            assert (part.metrics["num_requests"], part.num_completed) == (len(own), len(done(own)))
    assert num_parts == 3 + 2 + 3


def test_a_part_that_is_the_whole_has_the_figures_of_the_whole():
    baseline, arm = (
        [replace(record, category="x") for record in random_records(seed, cell_id)]
        for seed, cell_id in ((1, "a"), (2, "b"))
    )
    place, pairing = cell(dflash_arm(BLOCK_SIZE), cell_id="b"), pair_units(baseline, arm)
    parts = split(arm, baseline, pairing)
    (whole,) = intervals_of([pooled_metrics(place, arm, pairing, NOT_SCORED, baseline)])
    known = intervals_of(pooled_of_parts(place, parts, NOT_SCORED))
    assert len(known) == 2  # the turns: no interval is drawn twice
    (part,) = break_down(parts, NOT_SCORED, whole, known).categories
    assert all(part.metrics[name] == whole[name] for name in ("decode_tok_s", "speedup", "agreement"))
    assert part.metrics["num_pairs"] == len(pairing.pairs)


@pytest.mark.parametrize("seed", range(4))
def test_reasons_come_in_the_order_of_the_requests(seed):
    baseline, arm = random_records(seed, "a"), random_records(seed + 100, "b")
    first, second = ({record.unit: record for record in records} for records in (baseline, arm))
    expected: Counter[str] = Counter()
    for unit in dict.fromkeys([*first, *second]):
        sides = (("baseline", first.get(unit)), ("arm", second.get(unit)))
        reasons = [_why_left_out(side, record) for side, record in sides]
        late = [
            f"no decode token in the {side}" for side, record in sides if record and not decode_of(record)
        ]
        reason = next((reason for reason in (*reasons, *late) if reason is not None), None)
        if reason is not None:
            expected[reason] += 1
    assert list(pair_units(baseline, arm).left_out.items()) == list(expected.items())


def _why_left_out(side, record):
    if record is None:
        return f"not run in the {side}"
    if record.finish_reason == "error":
        return f"failed in the {side}"
    return f"cancelled in the {side}" if record.finish_reason == "cancelled" else None


@pytest.mark.parametrize("seed", range(4))
def test_times_in_flight_are_found_second_by_second(seed):
    records = [
        replace(
            record,
            sent_ns=None if record.sent_ns is None else record.sent_ns // NS,
            last_ns=None if record.last_ns is None else record.last_ns // NS + 1,
        )
        for record in random_records(seed, num=30)
    ]
    known = [record for record in records if record.sent_ns is not None and record.last_ns is not None]
    for segment, intervals in busy_intervals(records).items():
        busy = {
            at
            for record in known
            if record.segment == segment
            for at in range(record.sent_ns, record.last_ns)
        }
        assert {at for start, end in intervals for at in range(start, end)} == busy
        assert all(end < start for (_, end), (start, _) in pairwise(intervals))
    for (segment, block), (start, end) in steady_windows(records, 2).items():
        own = [record for record in known if (record.segment, record.block) == (segment, block)]
        level = Counter(at for record in own for at in range(record.sent_ns, record.last_ns))
        assert start == min(at for at, count in level.items() if count >= 2)
        assert end > start


@pytest.mark.parametrize("seed", range(3))
def test_every_broken_identity_of_a_cell_is_one_of_its_requests(seed):
    place = cell(dflash_arm(BLOCK_SIZE), cell_id="a")
    records = random_records(seed, gaps=0.4)
    found = {finding.code: finding.sentence for finding in check_cell(place, records)}
    for code, fault in (
        ("tokens_do_not_add_up", lambda record: tokens_fault(place, record)),
        ("histogram_does_not_add_up", lambda record: histogram_fault(place, record)),
        ("acceptance_out_of_range", lambda record: acceptance_fault(place, record)),
        ("stamps_out_of_order", stamps_fault),
    ):
        faults = [text for record in records if (text := fault(record)) is not None]
        assert found[code].startswith(f"{len(faults)} of {len(records)} requests break an identity")
        assert found[code].endswith(f": {faults[0]}.")


def test_one_request_has_the_figures_of_its_row():
    records = random_records(5)
    assert [decode_terms(record) for record in records] == [decode_of(record) for record in records]
    expected = [
        None if (terms := decode_of(record)) is None else terms[0] / NS / terms[1] for record in records
    ]
    assert [request_tpot_s(record) for record in records] == expected


def test_intervals_of_many_metrics_are_those_of_each():
    rng = random.Random(1)
    many = [
        Pooled.of(((f"p{i}", (rng.uniform(1, 9), rng.uniform(1, 9))) for i in range(num)), ratio)
        for num in (0, 3, 40, 40, 7, 41, 40)
    ]
    for found, pooled in zip(stats.intervals(many), many, strict=True):
        alone = pooled.interval()
        assert (found is None, found and found.value) == (alone is None, alone and alone.value)
        if len(pooled.sums) >= 5:
            assert (found.low, found.high) == pytest.approx((alone.low, alone.high), rel=1e-12)


def test_draws_that_are_not_kept_are_the_same(monkeypatch):
    pooled = Pooled.of(((f"p{i}", (float(i), 2.0)) for i in range(50)), ratio)
    kept = pooled.interval()
    monkeypatch.setattr(stats, "_kept_counts", {})
    monkeypatch.setattr(stats, "_MAX_KEPT_BYTES", 0)
    assert pooled.interval() == kept
    assert not stats._kept_counts


def test_a_table_is_a_sequence_of_its_requests():
    records = random_records(2, num=20)
    table = RequestTable.of_lines([decode_fields(encode_line(record), RequestRecord) for record in records])
    assert table[3] == records[3]
    assert table.take(table.completed)[-1] == done(records)[-1]
    assert table == tuple(records)
    assert list(table.take(table.completed)) == done(records)
    assert table[2:4] == tuple(records[2:4])
    assert table_of(table) is table
    for item in fields(RequestRecord):
        if str(item.type).startswith("int"):
            column = table.take(table.completed).integers(item.name)
            known = [getattr(record, item.name) for record in done(records)]
            assert column.known.tolist() == [value is not None for value in known]
            assert column.numbers().tolist() == [value for value in known if value is not None]


def test_an_integer_beyond_any_clock_is_refused():
    records = [RequestRecord("a", "p", sent_ns=2**63)]
    with pytest.raises(UsageError, match="sent_ns"):
        metrics.ttft_s(records)
