"""Counters before and after a window: sums over engines, resets, and what is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dflash.backends.prometheus import (
    MetricsSnapshot,
    SpecDecodeCounters,
    difference,
    parse_metrics,
    read_settled,
    spec_decode_counters,
)
from dflash.errors import RequestError


def drafts(
    *engines: int, created: Sequence[float] = (), declared: bool = True, suffix: str = "_total"
) -> str:
    """`/metrics` of vLLM engines 0, 1 … that have made so many drafts of 3 tokens."""
    lines = []
    for name, factor in (("num_drafts", 1), ("num_draft_tokens", 3)):
        full = f"vllm:spec_decode_{name}{suffix}"
        lines += [f"# HELP {full} Number.", f"# TYPE {full} counter"] if declared else []
        lines += [
            f'{full}{{engine="{index}",model_name="m"}} {factor * n}' for index, n in enumerate(engines)
        ]
        bare = f"vllm:spec_decode_{name}_created"
        lines += [f"# TYPE {bare} gauge"] if created and declared else []
        lines += [f'{bare}{{engine="{index}",model_name="m"}} {start}' for index, start in enumerate(created)]
    return "\n".join(lines) + "\n"


def snapshot(*engines: int, **more) -> MetricsSnapshot:
    return parse_metrics(drafts(*engines, **more))


# --- recorded answers


def test_recorded_vllm_counters(shared_folder):
    folder = shared_folder / "samples" / "vllm-0.32.0"
    read = {
        name: parse_metrics((folder / f"dflash.metrics.{name}.txt").read_text())
        for name in ("before", "after")
    }
    assert spec_decode_counters(read["after"]) == SpecDecodeCounters(
        num_drafts=213,
        num_draft_tokens=1491,
        num_accepted_tokens=0,
        num_accepted_tokens_per_position=(0,) * 7,
        num_generation_tokens=219,
        num_prompt_tokens=241,
        num_requests=6,
    )
    found = difference(read["before"], read["after"])
    assert not found.was_reset
    assert found.appeared == ()
    added = found.added
    assert added.num_requests == 2
    assert added.num_drafts is not None
    assert added.num_draft_tokens == 7 * added.num_drafts
    # every request drafted at each step and nothing was accepted: the prefill's token and one per step
    assert added.num_generation_tokens == added.num_requests + added.num_drafts + (
        added.num_accepted_tokens or 0
    )


def test_recorded_vllm_without_speculation_has_no_such_counters(shared_folder):
    folder = shared_folder / "samples" / "vllm-0.32.0"
    found = spec_decode_counters(parse_metrics((folder / "base.metrics.after.txt").read_text()))
    assert (found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens_per_position) == (
        None,
        None,
        None,
    )
    assert found.num_generation_tokens


@pytest.mark.parametrize(("name", "drafts_made", "size"), [("draftmodel", 37, 3), ("tinydflash", 252, 7)])
def test_recorded_counters_without_declared_types(shared_folder, name, drafts_made, size):
    text = (shared_folder / "samples" / "vllm-0.32.0" / f"{name}.metrics.spec.txt").read_text()
    found = spec_decode_counters(parse_metrics(text))
    assert (found.num_drafts, found.num_draft_tokens) == (drafts_made, drafts_made * size)
    assert found.num_accepted_tokens_per_position is not None
    assert len(found.num_accepted_tokens_per_position) == size
    assert sum(found.num_accepted_tokens_per_position) == found.num_accepted_tokens


def test_recorded_sglang_counters(shared_folder):
    folder = shared_folder / "samples" / "sglang-0.5.23"
    text = (folder / "dflash-metrics.txt").read_text().removeprefix("HTTP 200\n")
    metrics = parse_metrics(text)
    found = spec_decode_counters(metrics)
    assert found == SpecDecodeCounters(
        num_verify_calls=114, num_generation_tokens=120, num_prompt_tokens=194, num_requests=6
    )  # summed over is_streaming
    assert (120 - 6) / 114 == 1.0  # nothing accepted, as recorded
    # gauges are not counters, and are never summed
    assert metrics.counter("sglang:spec_accept_length") is None
    assert metrics.gauge("sglang:spec_accept_length") == (1.0,)
    assert metrics.gauge("sglang:spec_num_draft_tokens") == (8.0,)
    base = parse_metrics((folder / "base-metrics.txt").read_text().removeprefix("HTTP 200\n"))
    assert spec_decode_counters(base).num_verify_calls is None


# --- parsing


@pytest.mark.parametrize("declared", [True, False])
def test_counters_are_summed_over_engines_and_found_under_both_names(declared):
    metrics = snapshot(10, 5, created=(1.5e9, 1.6e9), declared=declared)
    assert metrics.counter("vllm:spec_decode_num_drafts_total") == 15
    assert metrics.counter("vllm:spec_decode_num_drafts") == 15
    assert metrics.counter_by("vllm:spec_decode_num_drafts", "engine") == {"0": 10, "1": 5}
    assert metrics.counter("vllm:spec_decode_num_drafts_created") is None
    assert spec_decode_counters(metrics).num_draft_tokens == 45


def test_a_declared_counter_without_total_in_its_name_is_found():
    assert snapshot(10, 5, suffix="").counter("vllm:spec_decode_num_drafts_total") == 15


def test_a_gauge_of_the_same_name_does_not_enter_the_sum():
    text = '# TYPE a gauge\na{x="1"} 5\na{x="2"} 7\n# TYPE a_total counter\na_total 2\n'
    metrics = parse_metrics(text)
    assert metrics.counter("a") == 2
    assert metrics.gauge("a") == (5, 7)
    assert metrics.gauge("a_total") is None


def test_what_is_missing_is_none_and_not_zero():
    metrics = parse_metrics("")
    assert metrics.counter("a") is None
    assert metrics.counter_by("a", "x") is None
    assert metrics.gauge("a") is None
    assert spec_decode_counters(metrics) == SpecDecodeCounters()


def test_accepted_tokens_by_position_are_ordered_by_number_and_summed_over_engines():
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines = [
        f'{name}{{engine="{engine}",position="{position}"}} {100 * engine + position}'
        for engine in (0, 1)
        for position in reversed(range(12))
    ]
    found = spec_decode_counters(parse_metrics("\n".join(lines)))
    assert found.num_accepted_tokens_per_position == tuple(100 + 2 * position for position in range(12))


@pytest.mark.parametrize(
    "text",
    [
        "<html>404</html>",
        'a_total{x="1} 3',
        "a_total three",
        "a_total NaN",
        "a_total +Inf",
        "a_total -1",
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 3',
        "vllm:spec_decode_num_drafts_total 1.5",
    ],
)
def test_what_cannot_be_counted_is_an_error(text):
    with pytest.raises(RequestError) as caught:
        spec_decode_counters(parse_metrics(text))
    assert caught.value.kind == "bad_metrics"
    assert "\n" not in str(caught.value)


# --- differences


def test_the_difference_is_what_was_added():
    found = difference(snapshot(10, 5, created=(1.0, 2.0)), snapshot(17, 5, created=(1.0, 2.0)))
    assert found.added == SpecDecodeCounters(num_drafts=7, num_draft_tokens=21)
    assert (found.reset, found.appeared) == ((), ())


def test_nothing_added_is_zero():
    assert difference(snapshot(10), snapshot(10)).added.num_drafts == 0


def test_an_engine_that_joins_counts_from_zero():
    assert difference(snapshot(10), snapshot(12, 5)).added.num_drafts == 7


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (snapshot(10), snapshot(9)),
        (snapshot(100, 100), snapshot(10, 900)),  # the sum has grown
        (snapshot(10, 5), snapshot(30)),  # an engine is gone
        (snapshot(10), parse_metrics("")),
        (
            snapshot(10, created=[1.0]),
            snapshot(90, created=[2.0]),
        ),  # restarted, and past its old value already
    ],
)
def test_a_counter_reset_is_recognised_and_said(before, after):
    found = difference(before, after)
    assert found.was_reset
    assert found.reset[0] == "vllm:spec_decode_num_drafts"
    assert found.added == SpecDecodeCounters()


def test_after_a_reset_of_one_counter_none_is_believed():
    before = parse_metrics(drafts(10) + "vllm:generation_tokens_total 50\n")
    after = parse_metrics(drafts(20) + "vllm:generation_tokens_total 5\n")
    found = difference(before, after)
    assert found.reset == ("vllm:generation_tokens",)
    assert found.added.num_drafts is None


def test_a_counter_that_only_the_second_reading_has_is_not_known():
    found = difference(
        parse_metrics("vllm:generation_tokens_total 50\n"),
        parse_metrics(drafts(20) + "vllm:generation_tokens_total 55\n"),
    )
    assert not found.was_reset
    assert found.added == SpecDecodeCounters(num_generation_tokens=5)
    assert found.appeared == ("vllm:spec_decode_num_drafts", "vllm:spec_decode_num_draft_tokens")


def test_counters_of_no_interest_may_fall():
    before, after = (
        parse_metrics(drafts(n) + f"http_requests_total {value}\n") for n, value in ((1, 9), (2, 3))
    )
    assert difference(before, after).added.num_drafts == 1


# --- reading until it stands still


class Server:
    """Publishes one reading after the other; the clock moves only when somebody waits."""

    def __init__(self, *readings: MetricsSnapshot) -> None:
        self.readings = list(readings)
        self.now_s = 100.0
        self.num_reads = 0

    async def read(self) -> MetricsSnapshot:
        self.num_reads += 1
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def settled(self, **more):
        return asyncio.run(read_settled(self.read, clock=lambda: self.now_s, sleep=self.sleep, **more))


def test_counters_are_read_until_they_stand_still_for_a_second():
    server = Server(snapshot(1), snapshot(2), snapshot(2), snapshot(3), snapshot(4))
    found = server.settled()
    assert found.is_settled
    assert spec_decode_counters(found.snapshot).num_drafts == 4
    assert found.waited_s == 2.0  # the last change came after 4 waits of 0.25 s
    assert server.num_reads == 9


def test_a_server_that_never_stands_still_is_left_after_ten_seconds():
    server = Server(*(snapshot(number) for number in range(1000)))
    found = server.settled()
    assert not found.is_settled
    assert found.waited_s == 10.0
    assert spec_decode_counters(found.snapshot).num_drafts == 40


def test_what_the_reading_itself_changes_does_not_count_as_a_change():
    one = snapshot(5)
    others = [replace(one, counters={**one.counters, "http_requests": {frozenset(): n}}) for n in range(100)]
    found = Server(*others).settled()
    assert found.is_settled
    assert found.waited_s == 1.0


def test_a_failed_reading_is_passed_on():
    async def read() -> MetricsSnapshot:
        raise RequestError("http_404", "no metrics here")

    with pytest.raises(RequestError, match="no metrics here"):
        asyncio.run(read_settled(read))
