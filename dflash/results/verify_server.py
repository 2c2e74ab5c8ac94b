"""Are a cell's load and a server's own counters believable? Findings beside those of `verify.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dflash.results import acceptance_metrics, metrics
from dflash.results.arrivals import Arrivals, least_peak_tok_s
from dflash.results.columns import table_of
from dflash.results.finding import Finding, Severity, of, plural
from dflash.results.formats import format_percent
from dflash.results.identities import check_throughput
from dflash.results.load_metrics import LoadFacts
from dflash.results.measured import Measured
from dflash.results.records import Cell, RequestRecord
from dflash.results.request_metrics import num_completed
from dflash.results.server_counters import COUNTER_WORDS, CountersVerdict, ServerCounts, cache_mark
from dflash.results.verify import LOW_ACCEPTANCE_LENGTH
from dflash.results.verify_client import check_client

MAX_SEVERAL_SHARE = 0.5  # of a baseline's chunks: with more that hold several tokens it is none
FEW_SEVERAL_SHARE = 0.1  # a server that is a little ahead of its client


def check_load(
    cell: Cell, records: Sequence[RequestRecord], measured: Measured, facts: LoadFacts
) -> tuple[Finding, ...]:
    """Findings about one cell's chunk times, load and server; none that `check_cell` gives already.

    Args:
        measured: every metric of the cell.
    """
    peak, mean = measured.number("peak_output_tok_s"), measured.number("output_tok_s")
    findings: list[Finding | None] = [
        check_throughput(mean, peak, least_peak_tok_s(records)),
        _contradicted_chunks(facts.arrivals, records),
        _baseline_not_plain(cell, records, facts),
        _retried(records),
        *check_client(cell, records, measured, facts),
    ]
    if facts.counts is not None:
        findings += [
            check_counters(facts.counts),
            _not_covered(facts.counts),
            _cached(measured, facts.counts),
            _low_acceptance(cell, records, facts.counts),
            _never_drafted(cell, records, facts.counts),
            _other_block_size(cell, records, facts.counts),
            _acceptance_unknown(cell, records, facts.counts),
        ]
    return tuple(finding for finding in findings if finding is not None)


def baseline_fault(cell: Cell, records: Sequence[RequestRecord], facts: LoadFacts) -> str:
    """Why what is called the baseline is none, after "the baseline"; empty where nothing speaks against it.

    Plain decoding makes one token a step and sends it. A server that is ahead of its client merges some chunks; where
    most hold several tokens it drafts, or sends the tokens of several steps together and does not say so.
    """
    if not cell.on_server or not cell.arm.is_baseline:
        return ""
    requests = table_of(records)
    drafts = {
        "says": requests.integers("num_verify_steps").where(requests.completed).total(),
        "counts": None if facts.counts is None else facts.counts.trusted_total("num_drafts"),
    }
    for verb, number in drafts.items():
        if number:
            return f"{verb} {plural(number, 'step')} with a draft: it drafts"
    arrivals = facts.arrivals
    if arrivals.num_several_unexplained <= MAX_SEVERAL_SHARE * arrivals.num_decode_chunks:
        return ""
    return (
        f"sent several tokens in {arrivals.num_several:,} of {arrivals.num_decode_chunks:,} chunks after the first: it "
        "drafts, or sends the tokens of several steps together"
    )


def check_counters(counts: ServerCounts) -> Finding | None:
    """Identity 6: what a server counted is what our own requests make; None where it is."""
    if counts.verdict == "reconciled" or not counts.num_completed:
        return None
    severity, words = _COUNTER_SENTENCES[counts.verdict]
    return Finding(f"counters_{counts.verdict}", severity, words(counts))


def compared_words(counts: ServerCounts) -> str:
    """`generation tokens 5,120 where our own requests make 4,096; …`: every counter that is not ours."""
    return "; ".join(
        f"{COUNTER_WORDS[item.name]} {item.server:,} where our own requests make {item.own:,}"
        for item in counts.mismatches
    )


def _contaminated(counts: ServerCounts) -> str:
    return (
        f"Acceptance from the server's counters is contaminated: {compared_words(counts)}. Someone else used the "
        "server in between."
    )


def _too_low(counts: ServerCounts) -> str:
    return (
        f"The server counted less than our own requests make ({compared_words(counts)}): its counters began anew in "
        "between, belong to another server (--metrics-url), or are wrong. Acceptance from them is not to be trusted."
    )


def _unlike(counts: ServerCounts) -> str:
    return (
        f"The server's tokens and requests are our own, but its drafts are not what its own answers say: "
        f"{compared_words(counts)}."
    )


def _not_checkable(counts: ServerCounts) -> str:
    if counts.num_not_completed:
        number = plural(counts.num_not_completed, "request")
        why = f"{number} did not complete, and what the server made of them is in its counters"
    elif counts.mismatches:
        why = "a later process ran some requests again, and what they were before is in its counters"
    else:
        why = "it counts nothing that our own requests tell as well"
    numbers = compared_words(counts)
    return f"The server's counters are not checkable: {why}{f' ({numbers})' if numbers else ''}."


def _unsettled(counts: ServerCounts) -> str:
    return "The server's counters still moved when they were read for the last time" + _why(counts)


def _reset(counts: ServerCounts) -> str:
    number = sum(window.counters == "reset" for window in counts.windows)
    return (
        f"The server's counters began anew in {plural(number, 'block')} of load (of {len(counts.windows)}): it was "
        f"restarted. What it counted there is not known{_why(counts)}"
    )


def _unreadable(counts: ServerCounts) -> str:
    return "The server's counters could not be read, so nothing from them is known" + _why(counts)


def _missing(counts: ServerCounts) -> str:
    if not counts.windows:
        return "No stretch of load came to its end, so the server's counters are not known."
    return "The server shows no counters, so nothing from them is known" + _why(counts)


def _why(counts: ServerCounts) -> str:
    return f" ({'; '.join(counts.reasons)})." if counts.reasons else "."


_COUNTER_SENTENCES: dict[CountersVerdict, tuple[Severity, Callable[[ServerCounts], str]]] = {
    "contaminated": ("error", _contaminated),
    "too_low": ("error", _too_low),
    "unlike": ("error", _unlike),
    "not_checkable": ("info", _not_checkable),
    "unsettled": ("warning", _unsettled),
    "reset": ("error", _reset),
    "unreadable": ("warning", _unreadable),
    "missing": ("info", _missing),
}


def _not_covered(counts: ServerCounts) -> Finding | None:
    """Where counters stand for a part of the requests only."""
    if not 0 < counts.num_covered < counts.num_completed:
        return None
    sentence = (
        f"The server's counters stand for {counts.num_covered} of the {counts.num_completed} completed requests: in "
        "the other stretches of load they are not known."
    )
    return Finding("counters_not_complete", "warning", sentence)


def _cached(measured: Measured, counts: ServerCounts) -> Finding | None:
    share = measured.number("cached_prompt_share")
    mark = cache_mark(share, counts.prefix_cache)
    if mark == "cached":
        sentence = (
            f"{format_percent(share)} of the prompt tokens came from the server's prefix cache: TTFT is not that of "
            "new prompts."
        )
        return Finding("prompts_cached", "warning", sentence)
    if mark == "cache_unknown":
        sentence = (
            "Nobody knows whether prompts came from the server's prefix cache: it could not be emptied, and answers "
            "do not tell. TTFT may be that of prompts seen before."
        )
        return Finding("prefix_cache_unknown", "warning", sentence)
    return None


def _contradicted_chunks(arrivals: Arrivals, records: Sequence[RequestRecord]) -> Finding | None:
    count = arrivals.num_contradicted
    if not count:
        return None
    sentence = f"In {of(count, num_completed(records))} the chunks hold more tokens than the usage counts."
    return Finding("chunks_do_not_add_up", "error", sentence)


def _baseline_not_plain(cell: Cell, records: Sequence[RequestRecord], facts: LoadFacts) -> Finding | None:
    fault = baseline_fault(cell, records, facts)
    if fault:
        sentence = (
            f"This is no baseline: it {fault}. Nothing is compared with it. Name the arm as what it is "
            "(--arm NAME=URL), or start its server without a draft and with one step in a chunk."
        )
        return Finding("baseline_not_plain", "error", sentence)
    several, total = facts.arrivals.num_several, facts.arrivals.num_decode_chunks
    if not cell.arm.is_baseline or not cell.on_server:
        return None
    if not FEW_SEVERAL_SHARE * total < several <= MAX_SEVERAL_SHARE * total:
        return None
    sentence = (
        f"The baseline sent several tokens in {several:,} of {total:,} chunks after the first: its server was ahead of "
        "this client and merged them, or it drafts."
    )
    return Finding("baseline_chunks_merged", "warning", sentence)


def _retried(records: Sequence[RequestRecord]) -> Finding | None:
    refusals = metrics.num_retries(records)
    if not refusals:
        return None
    count = int((table_of(records).integers("num_retries").values > 0).sum())
    sentence = (
        f"{of(count, len(records))} were refused at first ({plural(refusals, 'refusal')}): the time until the server "
        "took them is part of their TTFT and E2EL."
    )
    return Finding("retried_requests", "warning", sentence)


def _low_acceptance(cell: Cell, records: Sequence[RequestRecord], counts: ServerCounts) -> Finding | None:
    """Where the requests do not tell; what they tell is in `check_cell`."""
    length = counts.acceptance_length_untrimmed() or counts.acceptance_length()
    is_told = acceptance_metrics.acceptance_length(records) is not None
    if cell.arm.is_baseline or is_told or length is None or length >= LOW_ACCEPTANCE_LENGTH:
        return None
    if counts.is_distrusted:
        return None
    sentence = (
        f"The acceptance length, by the server's counters, is {length:.2f}: the draft gives next to nothing. Check "
        "that it was made for this target, its quantisation, and the prompt template."
    )
    return Finding("low_acceptance_length", "warning", sentence)


def _never_drafted(cell: Cell, records: Sequence[RequestRecord], counts: ServerCounts) -> Finding | None:
    drafts = [counts.trusted_total("num_drafts")]
    requests = table_of(records)
    drafts += requests.integers("num_verify_steps").where(requests.completed).numbers().tolist()
    known = [number for number in drafts if number is not None]
    if cell.arm.is_baseline or not known or any(known):
        return None
    sentence = "Not one step had a draft: this arm decoded plainly, and says nothing about drafting."
    return Finding("never_drafted", "warning", sentence)


def _other_block_size(cell: Cell, records: Sequence[RequestRecord], counts: ServerCounts) -> Finding | None:
    """B as the server tells it, beside what it drafts: a whole block in most requests, and never more."""
    block = cell.arm.block_size
    if cell.arm.is_baseline or block is None:
        return None
    requests = table_of(records)
    drafted, steps = (
        requests.integers(name).where(requests.completed) for name in ("num_draft_tokens", "num_verify_steps")
    )
    known = (drafted / steps).numbers().tolist()
    most, source = max(known, default=None), "answers"
    if most is None or known.count(most) * 2 < len(known):
        windows = () if counts.is_distrusted else counts.known
        positions = [len(window.num_accepted_tokens_per_position or ()) for window in windows]
        most, source = max(positions, default=0) or None, "counters"
    if most is None or most >= block - 1 or most != int(most):
        return None
    sentence = (
        f"B = {block} was read, so {block - 1} draft tokens a step, but the server's {source} show {most:.0f}: figures "
        f"that depend on B are not to be trusted. Find out which of the two the server was started with."
    )
    return Finding("other_block_size", "warning", sentence)


def _acceptance_unknown(cell: Cell, records: Sequence[RequestRecord], counts: ServerCounts) -> Finding | None:
    known = (
        counts.trusted_total("num_drafts"),
        acceptance_metrics.acceptance_length(records),
        acceptance_metrics.acceptance_length_untrimmed(records),
    )
    if cell.arm.is_baseline or not counts.num_completed or any(value is not None for value in known):
        return None
    tell = (
        "its counters are not to be trusted" if counts.is_distrusted else "its counters tell nothing either"
    )
    sentence = (
        f"Nothing is known of acceptance: the server's answers do not tell, and {tell}. Start it with counts per "
        "request (vLLM: --per-request-spec-decode-metrics) or with metrics (SGLang: --enable-metrics), or name where "
        "they are by --metrics-url."
    )
    return Finding("acceptance_unknown", "warning", sentence)
