"""The answer of a run in words: what drafting gives, how sure that is, and what must be known first. Pure.

Without an interval there is no verdict either way; where the interval includes 1 the two cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from dflash.results.finding import plural, requests_of
from dflash.results.formats import format_bounds, format_number, format_times, format_with_bounds
from dflash.results.pairing import pairs_of
from dflash.results.stats import MIN_PROMPTS_FOR_INTERVAL, Interval
from dflash.results.summary import Average, CellSummary, Group, RunSummary
from dflash.results.titles import capped

NOTHING_CONCLUDED = (
    f"too few prompts for an interval ({MIN_PROMPTS_FOR_INTERVAL} or more give one), so nothing can be "
    "concluded"
)


def headline(group: Group) -> str:
    """The answer in words: what drafting gives over plain decoding, how sure that is, and what failed."""
    failed = [f"{cell.label} {cell.num_failed}" for cell in group.cells if cell.num_failed]
    if not failed:
        return _verdict(group)
    total = sum(len(cell.records) for cell in group.cells)
    return (
        f"{_verdict(group)} {group.num_failed} of {total} requests failed ({', '.join(failed)}): every figure is over "
        "the completed ones alone."
    )


def _verdict(group: Group) -> str:
    drafting = [cell for cell in group.cells if not cell.cell.arm.is_baseline]
    paired = [(cell, value) for cell in drafting if (value := cell.interval("speedup")) is not None]
    if not paired:
        return _no_speedup(group, drafting)
    best, interval = max(paired, key=lambda item: item[1].value)
    label, compared = best.label, f"over {_compared(best)}"
    subject = label if len(paired) == 1 else f"{label}, the highest of {len(paired)} arms,"
    ratio = f"decodes {_times_as_fast(interval)}"
    if interval.low is None or interval.high is None:
        return f"{subject} {ratio} {compared}: {NOTHING_CONCLUDED}."
    if interval.high < 1:
        return _plain_is_fastest(paired, best, f"{format_number(interval.value)} times as fast", compared)
    if interval.low < 1:
        return f"{subject} {ratio} {compared}: the interval includes 1, so the two cannot be told apart."
    if len(paired) == 1:
        return f"{label} {ratio} {compared}."
    close = [cell.label for cell, other in paired if cell is not best and other.value >= interval.low]
    within = (
        f" {', '.join(close)} {'is' if len(close) == 1 else 'are'} within that interval." if close else ""
    )
    return f"{label} is fastest: it {ratio} {compared}.{within}"


def _plain_is_fastest(
    paired: Sequence[tuple[CellSummary, Interval]], best: CellSummary, ratio: str, compared: str
) -> str:
    label = best.label
    bounds = format_bounds(best.interval("speedup"))
    subject = label if len(paired) == 1 else f"no arm beats it; the best, {label},"
    unclear = [cell.label for cell, other in paired if other.high is not None and other.high >= 1]
    end = (
        f"{', '.join(unclear)} cannot be told apart from it."
        if unclear
        else "Here drafting makes this model slower."
    )
    return f"Plain decoding is fastest: {subject} decodes {ratio} {bounds} {compared}. {end}"


def _times_as_fast(interval: Interval) -> str:
    """`1.35 times as fast as plain decoding [1.30, 1.40]`."""
    return (
        f"{format_number(interval.value)} times as fast as plain decoding {format_bounds(interval)}".strip()
    )


def _compared(cell: CellSummary) -> str:
    pairs = pairs_of(() if cell.pairing is None else cell.pairing.pairs)
    return requests_of(len(pairs), pairs.arm.num_prompts, "paired request")


def _no_speedup(group: Group, drafting: Sequence[CellSummary]) -> str:
    if not drafting:
        add = "--base-url of a server that drafts" if group.on_server else "--arms baseline,dflash"
        return f"Only plain decoding was run, so there is no speedup. Add an arm that drafts: {add}."
    reasons = dict.fromkeys(cell.why_no_speedup or "" for cell in drafting)
    words = f"There is no speedup to report: {'; '.join(reason for reason in reasons if reason)}."
    fastest = group.fastest
    if fastest is not None:
        speed = format_with_bounds(fastest.interval("decode_tok_s"), 1)
        words += f" {fastest.label} decodes fastest, at {speed} tok/s."
    return words


# --- over several data sets


def overall(summary: RunSummary) -> list[str]:
    """The answer over several data sets, for every engine and load; nothing where there is one data set."""
    best: dict[tuple[object, ...], Average] = {}
    num_arms: dict[tuple[object, ...], int] = {}
    for average in summary.averages:
        key = (average.backend, average.concurrency, average.request_rate, average.settings)
        num_arms[key] = num_arms.get(key, 0) + 1
        if key not in best or (average.speedup or 0) > (best[key].speedup or 0):
            best[key] = average
    return [_overall(average, num_arms[key]) for key, average in best.items()]


def _overall(average: Average, num_arms: int) -> str:
    where = f"Over {average.num_datasets} data sets{average_load(average)}"
    if average.speedup is None:
        without = [cell.cell.workload.dataset for cell in average.cells if cell.number("speedup") is None]
        return f"{where} there is no average speedup of {average.arm_label}: none is known on {', '.join(without)}."
    subject = average.arm_label if num_arms == 1 else f"{average.arm_label}, the highest of {num_arms} arms,"
    ranked = sorted(average.cells, key=lambda cell: cell.number("speedup") or 0)
    low, high = (
        f"{format_times(cell.number('speedup'))} ({cell.cell.workload.dataset})"
        for cell in (ranked[0], ranked[-1])
    )
    ratio = (
        f"decodes {format_number(average.speedup)} times as fast as plain decoding (geometric mean; {low} to "
        f"{high})"
    )
    if all(_clearness(cell) == _NO_INTERVAL for cell in average.cells):
        return f"{where} {subject} {ratio}: {NOTHING_CONCLUDED}."
    return f"{where} {subject} {ratio}: {clear_words(average)}."


_CLEARNESS = ("clearly faster", "not to be told apart", "clearly slower", "without an interval")
_NO_INTERVAL = _CLEARNESS[3]


def clear_words(average: Average) -> str:
    """`clearly faster on 7 data sets, not to be told apart on 2`: by the interval of each."""
    kinds = [_clearness(cell) for cell in average.cells]
    found = [(kind, kinds.count(kind)) for kind in _CLEARNESS if kind in kinds]
    (kind, count), *others = found
    first = f"{kind} on {'all' if not others else plural(count, 'data set')}"
    return ", ".join([first, *(f"{kind} on {count}" for kind, count in others)])


def _clearness(cell: CellSummary) -> str:
    interval = cell.interval("speedup")
    if interval is None or interval.low is None or interval.high is None:
        return _NO_INTERVAL
    return _CLEARNESS[0] if interval.low >= 1 else _CLEARNESS[2] if interval.high < 1 else _CLEARNESS[1]


def average_load(average: Average) -> str:
    """` at concurrency 8 (temperature 1)`; no load in process, where one request runs at a time."""
    return _load(average) + (f" ({average.settings})" if average.settings else "")


def _load(average: Average) -> str:
    if average.request_rate is not None:
        cap = capped(average.concurrency, average.request_rate)
        return f" at {average.request_rate:g} requests/s{'' if cap is None else f' and concurrency {cap}'}"
    on_server = any(cell.cell.on_server for cell in average.cells)
    return f" at concurrency {average.concurrency}" if on_server or average.concurrency > 1 else ""


def average_line(average: Average) -> str:
    """One arm over several data sets, for the terminal."""
    return (
        f"{average.arm_label} over {average.num_datasets} data sets{average_load(average)}: speedup "
        f"{format_times(average.speedup)} (geometric mean), acceptance length "
        f"{format_number(average.acceptance_length)} (arithmetic mean)."
    )
