from __future__ import annotations

import random
from dataclasses import replace

import pytest
from made_up_run import MS, cell, made_up_run, workload
from made_up_server_run import server_request

from dflash.results import arrivals, metrics
from dflash.results.arrivals import collect_arrivals, least_peak_tok_s
from dflash.results.in_flight import busy_intervals, steady_windows
from dflash.results.records import ChunkRecord, RequestRecord

S = 1000 * MS


def collected(pairs):
    """The arrivals of requests that are all of the cell "a"."""
    records = [record for record, *_ in pairs]
    return collect_arrivals({"a": records}, [chunk for _, chunk, *_ in pairs])["a"]


def request(prompt, sent_s, gaps_s, sizes, **changes):
    """A request whose first chunk comes when it is sent."""
    sent = round(sent_s * S)
    gaps = tuple(round(gap * S) for gap in gaps_s)
    record = RequestRecord(
        "a",
        f"p/{prompt}",
        sent_ns=sent,
        first_ns=sent,
        last_ns=sent + sum(gaps),
        num_output_tokens=sum(sizes),
        num_first_chunk_tokens=sizes[0],
        finish_reason="stop",
    )
    chunk = ChunkRecord("a", f"p/{prompt}", gaps_ns=gaps, num_tokens=tuple(sizes))
    return replace(record, **changes), chunk


def test_inter_chunk_latency_is_over_all_gaps_of_completed_requests():
    pairs = [
        request(0, 0, (0.01, 0.03), (1, 4, 4)),
        request(1, 0, (0.02,), (1, 1)),
        request(2, 0, (9.0,), (1, 1), finish_reason="error"),
    ]
    found = collected(pairs)
    assert arrivals.icl_s(found) == pytest.approx(0.02)
    assert arrivals.icl_percentiles_s(found, (0, 50, 75, 100)) == pytest.approx([0.01, 0.02, 0.025, 0.03])


def test_without_chunks_nothing_is_measured():
    record, _ = request(0, 0, (1.0,), (1, 9))
    found = collect_arrivals({"a": [record]}, [])["a"]
    assert arrivals.icl_s(found) is None
    assert arrivals.icl_percentiles_s(found, (50, 99)) == [None, None]
    assert arrivals.peak_output_tok_s([record], found) is None


def test_the_peak_is_the_best_second_of_tokens_as_they_arrive():
    pairs = [request(0, 0, (0.4, 0.4, 2.0, 0.1), (1, 4, 4, 8, 3))]
    records = [record for record, _ in pairs]
    assert arrivals.peak_output_tok_s(records, collected(pairs)) == 11
    assert metrics.output_tok_s(records, metrics.busy_time_s(records)) == pytest.approx(20 / 2.9)


def test_a_window_of_the_peak_does_not_hold_its_own_end():
    pairs = [request(0, 0, (0.25,) * 40, (4,) * 41)]
    assert arrivals.peak_output_tok_s([pairs[0][0]], collected(pairs)) == 16  # 4 chunks a second, not 5


def test_idle_time_between_requests_is_not_in_the_peak():
    """In process other arms run in between; on servers other blocks."""
    pairs = [request(i, 100 * i, (0.25, 0.25), (2, 2, 2)) for i in range(4)]
    records = [record for record, _ in pairs]
    # on the clock 6 tokens lie within any second; of the busy time a second holds two requests
    assert arrivals.peak_output_tok_s(records, collected(pairs)) == 12


def test_runs_of_less_than_a_second_have_no_peak():
    pairs = [request(0, 0, (0.9,), (1, 50))]
    assert arrivals.peak_output_tok_s([pairs[0][0]], collected(pairs)) is None


def test_clocks_of_two_processes_are_kept_apart():
    pairs = [request(0, 0, (0.5, 0.6), (1, 1, 1)), request(1, 0, (0.5, 0.6), (5, 5, 5), segment=1)]
    assert arrivals.peak_output_tok_s([record for record, _ in pairs], collected(pairs)) == 10


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_is_never_below_what_the_mean_makes_necessary(seed):
    generator = random.Random(seed)
    pairs = []
    for prompt in range(generator.randrange(1, 30)):
        num_gaps = generator.randrange(1, 60)
        gaps = [generator.choice((0.0, 0.01, 0.3)) * generator.random() for _ in range(num_gaps)]
        sizes = [generator.randrange(1, 8) for _ in range(num_gaps + 1)]
        pairs.append(request(prompt, generator.random() * 20, gaps, sizes))
    pairs.append(request(99, 0, (2.0,), (1, 1)))
    records = [record for record, _ in pairs]
    peak = arrivals.peak_output_tok_s(records, collected(pairs))
    assert peak >= least_peak_tok_s(records)
    # an independent count, window by window, over busy time laid end to end
    times = []
    for record, chunk in pairs:
        at = record.first_ns
        for place, size in enumerate(chunk.num_tokens):
            at += chunk.gaps_ns[place - 1] if place else 0
            offset = sum(min(at, end) - start for start, end in busy_intervals(records)[0] if start <= at)
            times.append((offset, size))
    assert peak == max(sum(size for at, size in times if begin <= at < begin + S) for begin, _ in times)


def test_unknown_chunk_sizes_leave_the_gaps_and_no_peak():
    record, chunk = request(0, 0, (0.5, 0.7), (1, 4, 4))
    found = collected([(record, replace(chunk, num_tokens=()))])
    assert arrivals.icl_s(found) == pytest.approx(0.6)
    assert arrivals.peak_output_tok_s([record], found) is None


def test_one_request_without_sizes_is_enough_for_no_peak():
    first, second = request(0, 0, (0.5, 0.7), (1, 4, 4)), request(1, 0, (0.5, 0.7), (1, 4, 4))
    found = collected([first, (second[0], replace(second[1], num_tokens=()))])
    assert arrivals.peak_output_tok_s([first[0], second[0]], found) is None


def test_tokens_that_only_the_usage_counts_come_with_the_end():
    record, chunk = request(0, 0, (0.5, 0.7), (1, 4, 4), num_output_tokens=10)
    found = collected([(record, chunk)])
    assert found.num_late_tokens == 1
    assert sum(found.stretches[(0, 0)].num_tokens) == 10


def test_chunks_that_hold_more_than_the_usage_are_not_believed():
    record, chunk = request(0, 0, (0.5, 0.7), (1, 4, 4), num_output_tokens=8)
    found = collected([(record, chunk)])
    assert found.num_contradicted == 1
    assert arrivals.peak_output_tok_s([record], found) is None


def test_busy_intervals_are_joined_where_they_touch():
    def span(segment, start, end):
        return RequestRecord("c", "p", segment=segment, sent_ns=start, last_ns=end)

    records = [span(0, 0, 4), span(0, 1, 2), span(0, 4, 6), span(0, 9, 10), span(1, 3, 5)]
    assert busy_intervals(records) == {0: [(0, 6), (9, 10)], 1: [(3, 5)]}


def spans(*pairs, block=0):
    return [
        RequestRecord("a", f"p/{i}", block=block, sent_ns=start, last_ns=end, finish_reason="stop")
        for i, (start, end) in enumerate(pairs)
    ]


def test_steady_from_the_level_first_reached_to_last_left():
    records = spans((0, 10), (2, 12), (10, 20), (13, 25))
    assert steady_windows(records, 2) == {(0, 0): (2, 20)}
    assert steady_windows(records, 3) == {}
    assert steady_windows(records, 1) == {(0, 0): (0, 25)}


def test_a_request_that_ends_as_the_next_is_sent_makes_way_for_it():
    assert steady_windows(spans((0, 5), (5, 9)), 2) == {}
    assert steady_windows(spans((0, 5), (5, 9)), 1) == {(0, 0): (0, 9)}


def test_every_stretch_of_load_is_steady_for_itself():
    records = spans((0, 10), (2, 12)) + spans((100, 110), (104, 112), block=3)
    assert steady_windows(records, 2) == {(0, 0): (2, 10), (0, 3): (104, 110)}


def on_server(concurrency, **changes):
    return cell(cell_id="a", on_server=True, workload=workload(concurrency=concurrency, **changes))


def test_the_steady_state_leaves_out_filling_and_emptying():
    # a token every 0.1 s each; two at a time from 1 s to 4 s
    pairs = [request(0, 0.0, (0.1,) * 40, (1,) * 41), request(1, 1.0, (0.1,) * 40, (1,) * 41)]
    records = [record for record, _ in pairs]
    steady = arrivals.steady_state(on_server(2), records, collected(pairs))
    assert steady.seconds == pytest.approx(3.0)
    assert steady.output_tok_s == pytest.approx(20)
    assert steady.decode_tok_s == pytest.approx(10)
    mean = metrics.output_tok_s(records, metrics.busy_time_s(records))
    assert mean == pytest.approx(82 / 5)


def test_steady_speeds_weigh_chunks_by_their_tokens():
    pairs = [request(i, 0.0, (0.1,) * 40, (1,) + (5,) * 40) for i in range(2)]
    records = [record for record, _ in pairs]
    steady = arrivals.steady_state(on_server(2), records, collected(pairs))
    assert steady.output_tok_s == pytest.approx(100)
    assert steady.decode_tok_s == pytest.approx(50)


@pytest.mark.parametrize(
    ("changed", "seconds"),
    [
        ({}, 3.0),
        ({"on_server": False}, None),
        ({"workload": workload(concurrency=3)}, None),  # never reached
        ({"workload": workload(concurrency=2, request_rate=2.0)}, None),  # an open loop has no level
    ],
)
def test_where_there_is_a_steady_state(changed, seconds):
    pairs = [request(0, 0.0, (0.1,) * 40, (1,) * 41), request(1, 1.0, (0.1,) * 40, (1,) * 41)]
    place = replace(on_server(2), **changed)
    steady = arrivals.steady_state(place, [record for record, _ in pairs], collected(pairs))
    assert (None if steady is None else steady.seconds) == seconds


def test_less_than_a_second_at_the_level_is_no_steady_state():
    pairs = [request(0, 0.0, (0.1,) * 40, (1,) * 41), request(1, 3.5, (0.1,) * 40, (1,) * 41)]
    assert arrivals.steady_state(on_server(2), [record for record, _ in pairs], collected(pairs)) is None


@pytest.mark.parametrize(
    ("starts", "place", "why"),
    [
        ((0.0, 1.0), on_server(3), "never were 3 requests in flight at once: a block of load held at most 2"),
        ((0.0, 9.0), on_server(2), "never were 2 requests in flight at once"),
        ((0.0, 3.5), on_server(2), "the load was at its level for 0.50 s, below 1 s: it takes more prompts"),
        (
            (0.0,),
            replace(on_server(1), workload=workload(request_rate=2.0)),
            "an open loop has no set number",
        ),
        ((0.0,), replace(on_server(1), on_server=False), "in process one request runs after the other"),
    ],
)
def test_why_there_is_no_steady_state(starts, place, why):
    pairs = [request(i, start, (0.1,) * 40, (1,) * 41) for i, start in enumerate(starts)]
    records, found = [record for record, _ in pairs], collected(pairs)
    assert arrivals.steady_state(place, records, found) is None
    assert arrivals.why_no_steady_state(place, records, found).startswith(why)


def test_why_there_is_no_peak():
    short = [request(0, 0.0, (0.1,) * 4, (1,) * 5)]
    unsized = [(record, replace(chunk, num_tokens=())) for record, chunk in short]
    for pairs, why in (
        (short, "no process was busy for 1 s"),
        (unsized, "not every chunk's tokens are known"),
    ):
        records, found = [record for record, _ in pairs], collected(pairs)
        assert arrivals.peak_output_tok_s(records, found) is None
        assert arrivals.why_no_peak(records, found) == why


def test_a_steady_state_without_chunk_sizes_has_a_length_only():
    pairs = [request(i, 0.0, (0.1,) * 40, (1,) * 41) for i in range(2)]
    found = collected([(record, replace(chunk, num_tokens=())) for record, chunk in pairs])
    steady = arrivals.steady_state(on_server(2), [record for record, _ in pairs], found)
    assert (steady.seconds, steady.output_tok_s, steady.decode_tok_s) == (4.0, None, None)
    why = arrivals.why_no_steady_state(on_server(2), [record for record, _ in pairs], found)
    assert why == "not every chunk's tokens are known"


def test_failed_requests_hold_their_place_and_give_no_tokens():
    pairs = [request(i, 0.0, (0.1,) * 40, (1,) * 41) for i in range(2)]
    failed = replace(pairs[1][0], finish_reason="error", num_output_tokens=None)
    records = [pairs[0][0], failed]
    found = collected([pairs[0], (failed, pairs[1][1])])
    steady = arrivals.steady_state(on_server(2), records, found)
    assert steady.output_tok_s == pytest.approx(10)


def test_made_up_requests_add_up():
    record, chunk, _ = server_request("a", 3, 0, (3, 0, 2, 1), 11)
    assert sum(chunk.num_tokens) == record.num_output_tokens
    assert (record.last_ns - record.first_ns) == sum(chunk.gaps_ns)


def test_a_run_without_chunks_has_none_of_it():
    run = made_up_run()
    assert list(run.chunks()) == []
