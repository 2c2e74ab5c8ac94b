"""Goodput: how many requests a second were answered within limits that a user sets (`--slo ttft:500ms,tpot:50ms`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dflash.errors import UsageError
from dflash.results.columns import Mask, RequestTable, table_of
from dflash.results.metrics import load_time_s
from dflash.results.records import Cell, RequestRecord
from dflash.results.request_metrics import (
    Records,
    decode_token_counts,
    e2els_from_due_s,
    e2els_s,
    tpots_s,
    ttfts_from_due_s,
    ttfts_s,
)


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in seconds; None: not limited. At least one is."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2el_s: float | None = None


def slo_of(config: Mapping[str, Any]) -> Slo | None:
    """The limits among a run's settings: `{"slo": {"ttft_s": 0.5, "tpot_s": 0.05}}`; None: no limit was set.

    Raises:
        UsageError: a limit of another name, or one that is no positive number.
    """
    limits = config.get("slo")
    if not limits:
        return None
    names = [item.name for item in fields(Slo)]
    if not isinstance(limits, Mapping) or not set(limits) <= set(names):
        raise UsageError(f"the run's limits are {limits!r}", f"limits are named {', '.join(names)}")
    known = {name: value for name, value in limits.items() if value is not None}
    for name, value in known.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise UsageError(f"the run's limit {name} is {value!r}", "a limit is a number of seconds above 0")
    return Slo(**known) if known else None


def meets(cell: Cell, record: RequestRecord, slo: Slo) -> bool:
    """Whether a request completed within every limit that is set.

    In an open loop TTFT and E2EL count from when the request was due: a client that could not send it in time must
    not make the server look better. An output without a decode token has no TPOT, and so keeps that limit. What was
    not measured is not met.
    """
    return bool(_within(cell, RequestTable((record,)), slo)[0])


def _within(cell: Cell, requests: RequestTable, slo: Slo) -> Mask:
    """[requests]: `meets` of each."""
    from_due = cell.workload.request_rate is not None
    tokens = decode_token_counts(requests)
    has_no_tpot = tokens.known & (tokens.values == 0)
    within = requests.completed
    for figure, limit, is_met in (
        (ttfts_from_due_s if from_due else ttfts_s, slo.ttft_s, False),
        (e2els_from_due_s if from_due else e2els_s, slo.e2el_s, False),
        (tpots_s, slo.tpot_s, has_no_tpot),
    ):
        if limit is not None:
            values = figure(requests)
            within = within & (is_met | (values.known & (values.values <= limit)))
    return within


def num_within_slo(cell: Cell, records: Records, slo: Slo | None) -> int | None:
    """Completed requests that meet every limit; failed ones never do."""
    if slo is None or not records:
        return None
    return int(_within(cell, table_of(records), slo).sum())


def goodput_req_s(cell: Cell, records: Records, slo: Slo | None) -> float | None:
    """Completed requests that meet every limit / `load_time_s`; None without limits."""
    count, load_s = num_within_slo(cell, records, slo), load_time_s(cell, records)
    return None if count is None or load_s is None else count / load_s
