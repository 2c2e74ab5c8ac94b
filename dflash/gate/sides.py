"""One cell of one run, as the gate reads it, cut down to what both runs completed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy

from dflash.results.columns import Mask, RequestTable, table_of
from dflash.results.goodput import Slo
from dflash.results.pairing import Pairing, pairs_of
from dflash.results.records import Cell, RunInfo
from dflash.results.summary import RunSummary
from dflash.results.task_scores import NOT_SCORED, Outcomes

Turn = tuple[str, int]  # prompt, turn


@dataclass(frozen=True, slots=True, eq=False)
class SideFacts:
    """What some quantities need beside the requests."""

    cell: Cell | None = None
    slo: Slo | None = None  # the run's limits
    outcomes: Outcomes = field(default_factory=lambda: NOT_SCORED)  # of the run's requests
    references_digest: str | None = None  # of what the outputs are scored by


_NO_FACTS = SideFacts()


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The requests of a cell, and its pairs with the baseline of its own run."""

    records: RequestTable
    pairing: Pairing | None = None  # None: the baseline itself, or a run without one
    facts: SideFacts = _NO_FACTS

    @classmethod
    def empty(cls) -> Side:
        return cls(RequestTable(()))

    @property
    def repeats(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.records.integers("repeat").values.tolist())))

    def of_repeat(self, repeat: int) -> Side:
        """What belongs to one repeat."""
        return self._restricted(lambda table: table.integers("repeat").values == repeat)

    def of_turns(self, turns: set[Turn]) -> Side:
        """What belongs to these turns."""
        return self._restricted(lambda table: _mask([turn in turns for turn in _turns(table)]))

    def of_prompts(self, prompt_ids: set[str]) -> Side:
        """What belongs to these prompts."""
        return self._restricted(
            lambda table: _mask([name in prompt_ids for name in table.texts("prompt_id").tolist()])
        )

    def _restricted(self, keep: Callable[[RequestTable], Mask]) -> Side:
        records = self.records.take(keep(self.records))
        if self.pairing is None:
            return replace(self, records=records)
        pairs, completed = pairs_of(self.pairing.pairs), pairs_of(self.pairing.completed_pairs)
        pairing = replace(
            self.pairing,
            pairs=pairs.take(keep(pairs.arm)),
            completed_pairs=completed.take(keep(completed.arm)),
        )
        return replace(self, records=records, pairing=pairing)


def sides_of(info: RunInfo, summary: RunSummary, outcomes: Outcomes = NOT_SCORED) -> dict[str, Side]:
    """Every cell's side, by cell id."""
    references = {dataset.name: dataset.references_digest for dataset in info.datasets}
    return {
        cell.cell.cell_id: Side(
            table_of(cell.records),
            cell.pairing,
            SideFacts(cell.cell, summary.slo, outcomes, references.get(cell.cell.workload.dataset)),
        )
        for cell in summary.cells
    }


@lru_cache(maxsize=4)  # every gate of a pair of cells asks for the same
def cut_to_common(sides: tuple[Side, ...], *, paired: bool = False) -> tuple[tuple[Side, ...], int]:
    """The sides with only the turns that can be compared, and how many turns cannot.

    Those that completed in every repeat of all runs; of later turns, those that followed the same answers.

    Args:
        sides: of the base, or of each run that it is made of, and last of the new run.
        paired: only those that were also completed by the run's own baseline in every repeat.
    """
    *bases, new = sides
    whole = set.intersection(*(whole_turns(side, paired) for side in sides))
    for base in bases:
        whole -= _turns_after_other_answers(base, new)
    seen = {turn for side in sides for turn in _turns(side.records)}
    if len(whole) == len(seen):
        return sides, 0
    return tuple(side.of_turns(whole) for side in sides), len(seen) - len(whole)


def first_unlike_prompt(base: Side, new: Side) -> tuple[str, str, str] | None:
    """The first prompt whose first turn was rendered to other tokens, with both digests.

    Later turns hold the answers of their own run, which may differ where outputs vary.
    """
    first = next((item for item in _unlike_prompts(base, new) if item[0][1] == 0), None)
    return None if first is None else (first[0][0], first[1], first[2])


def _turns_after_other_answers(base: Side, new: Side) -> set[Turn]:
    return {turn for turn, _, _ in _unlike_prompts(base, new) if turn[1] > 0}


def _unlike_prompts(base: Side, new: Side) -> Iterator[tuple[Turn, str, str]]:
    """The turns of which the two runs rendered other prompt tokens in the same repeat, with both digests."""
    digests = dict(_prompt_digests(base.records))
    for unit, digest in _prompt_digests(new.records):
        known = digests.get(unit)
        if known is not None and digest is not None and known != digest:
            yield unit[0], known, digest


def _prompt_digests(table: RequestTable) -> Iterator[tuple[tuple[Turn, int], str | None]]:
    repeats = table.integers("repeat").values.tolist()
    digests = table.texts("prompt_digest").tolist()
    return zip(zip(_turns(table), repeats, strict=True), digests, strict=True)


def whole_turns(side: Side, paired: bool) -> set[Turn]:
    """The turns that completed in every repeat of a run; `paired`: by its baseline too."""
    if paired:
        table = pairs_of(side.pairing.completed_pairs if side.pairing is not None else ()).arm
    else:
        table = side.records.take(side.records.completed)
    num_repeats = len(side.repeats)
    return {turn for turn, count in Counter(_turns(table)).items() if count == num_repeats}


def _turns(table: RequestTable) -> list[Turn]:
    return list(zip(table.texts("prompt_id").tolist(), table.integers("turn").values.tolist(), strict=True))


def _mask(values: list[bool]) -> Mask:
    return numpy.array(values, dtype=bool)
