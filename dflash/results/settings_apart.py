"""Workloads that differ in more than their data set and their load: what tells them apart, in words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from dflash.results.records import Workload

# What makes other figures of the same prompts: named on every workload wherever two of one engine differ in it, so
# that nothing is averaged over it.
_EVERYWHERE = ("target", "target_revision", "dtype", "temperature", "top_p", "top_k", "reasoning")
# What may well differ from data set to data set: named where two workloads differ in nothing that is named before.
_OF_TWINS = ("max_new_tokens", "seed")
_OF_PROMPTS = ("num_prompts", "prompts_digest")  # only on those two: every data set has its own
_DIGEST_LENGTH = 8

_WORDS: dict[str, Callable[[object], str]] = {
    "target": lambda value: f"target {value}",
    "target_revision": lambda value: f"revision {value}",
    "dtype": lambda value: "dtype n/a" if value is None else str(value),
    "temperature": lambda value: f"temperature {value:g}",
    "top_p": lambda value: "no top-p" if value is None else f"top-p {value:g}",
    "top_k": lambda value: "no top-k" if value is None else f"top-k {value}",
    "reasoning": lambda value: f"reasoning {value}",
    "max_new_tokens": lambda value: f"at most {value} new tokens",
    "seed": lambda value: f"seed {value}",
    "num_prompts": lambda value: "1 prompt" if value == 1 else f"{value} prompts",
    "prompts_digest": lambda value: f"prompts {str(value)[:_DIGEST_LENGTH]}",
}


def settings_apart(workloads: Sequence[tuple[str, Workload]]) -> list[str]:
    """For every (backend, workload) the settings that tell it from the others: `temperature 1 · at most 512 new
    tokens`; empty where data set, backend and load do so.

    Equal workloads (of two machines) have equal words.
    """
    named: list[list[str]] = [
        [name for name in _EVERYWHERE if _differs(name, backend, workloads)] for backend, _ in workloads
    ]
    for name in _OF_TWINS:
        split = {backend for backend, _ in _pairs_that_differ(name, workloads, named)}
        named = [
            [*names, name] if backend in split else names
            for names, (backend, _) in zip(named, workloads, strict=True)
        ]
    for name in _OF_PROMPTS:
        split_pairs = _pairs_that_differ(name, workloads, named)
        named = [
            [*names, name] if pair in split_pairs else names
            for names, pair in zip(named, workloads, strict=True)
        ]
    return [
        " · ".join(_WORDS[name](getattr(workload, name)) for name in names)
        for names, (_, workload) in zip(named, workloads, strict=True)
    ]


def _differs(name: str, backend: str, workloads: Sequence[tuple[str, Workload]]) -> bool:
    return len({getattr(workload, name) for other, workload in workloads if other == backend}) > 1


def _pairs_that_differ(
    name: str, workloads: Sequence[tuple[str, Workload]], named: Sequence[Sequence[str]]
) -> set[tuple[str, Workload]]:
    """Those that another one is like in all that is named, and unlike in this."""
    places = [
        (backend, _place(workload), *(getattr(workload, known) for known in names))
        for names, (backend, workload) in zip(named, workloads, strict=True)
    ]
    values = Counter(
        place
        for place, _ in {
            (place, getattr(workload, name)) for place, (_, workload) in zip(places, workloads, strict=True)
        }
    )
    return {pair for place, pair in zip(places, workloads, strict=True) if values[place] > 1}


def _place(workload: Workload) -> tuple[object, ...]:
    return workload.dataset, workload.concurrency, workload.request_rate
