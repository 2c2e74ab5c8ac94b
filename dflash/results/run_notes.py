"""What a reader must know of a run before the numbers: how it ended, and the notes that it carries. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dflash.results.finding import cell_end
from dflash.results.records import Cell, RunInfo
from dflash.results.summary import Group, RunSummary
from dflash.results.titles import group_title

SIMULATED = "simulated"
_WHAT_REMAINS = "the figures cover what was measured"


@dataclass(frozen=True, slots=True)
class Note:
    """A fact that stands once, whatever number of cells it holds for."""

    text: str
    about: str = ""  # which cells; nothing where it holds for the whole run

    @property
    def words(self) -> str:
        return f"{self.about}: {self.text}" if self.about else self.text

    @property
    def comes_first(self) -> bool:
        """Whether it decides what the numbers are of: it stands above every verdict."""
        return SIMULATED in self.text.lower()


def of_run(summary: RunSummary, run: int) -> RunSummary:
    """What is of one run alone, of several that are summed up together."""
    if len(summary.infos) < 2:
        return summary
    groups = [
        replace(group, cells=tuple(cell for cell in group.cells if cell.run == run))
        for group in summary.groups
    ]
    return replace(summary, groups=tuple(group for group in groups if group.cells))


def notes_of_runs(infos: Sequence[RunInfo], summary: RunSummary) -> list[Note]:
    """The notes of all runs; of several, each with the names of its runs, and once where all say it."""
    if len(infos) < 2:
        return [note for info in infos for note in notes_of(info, summary)]
    found: dict[Note, list[str]] = {}
    for place, info in enumerate(infos):
        for note in notes_of(info, of_run(summary, place)):
            found.setdefault(note, []).append(info.name)
    notes = [
        note
        if len(runs) == len(infos)
        else replace(note, about=_joined(f"run {', '.join(runs)}", note.about))
        for note, runs in found.items()
    ]
    return sorted(notes, key=lambda note: not note.comes_first)


def how_they_ended(infos: Sequence[RunInfo], summary: RunSummary) -> list[str]:
    """The same of every run that is not complete; of several, behind its name."""
    ended = [how_it_ended(info, of_run(summary, place)) for place, info in enumerate(infos)]
    if len(infos) < 2:
        return [words for words in ended if words is not None]
    return [
        f"Run {info.name}: {words}" for info, words in zip(infos, ended, strict=True) if words is not None
    ]


def _joined(first: str, second: str) -> str:
    return f"{first}, {second}" if second else first


def notes_of(info: RunInfo, summary: RunSummary) -> list[Note]:
    """The notes of the run, then those of its cells that are none of them, each once; what comes first, first."""
    cells = [cell.cell for cell in summary.cells]
    found = {text: Note(text) for text in info.notes}
    for text in dict.fromkeys(text for cell in cells for text in cell.notes):
        if text not in found:
            found[text] = Note(text, _about(text, summary.groups))
    return sorted(found.values(), key=lambda note: not note.comes_first)


def _about(text: str, groups: Sequence[Group]) -> str:
    """Whole groups by their title, parts of one by their arms as well; nothing where all cells say so."""
    parts = []
    for group in groups:
        labels = [cell.label for cell in group.cells if text in cell.cell.notes]
        if len(labels) == len(group.cells):
            parts.append((group_title(group), ""))
        elif labels:
            parts.append((group_title(group), ", ".join(labels)))
    if len(parts) == len(groups) and not any(arms for _, arms in parts):
        return ""
    if len(groups) == 1:
        return parts[0][1]
    return "; ".join(f"{title}, {arms}" if arms else title for title, arms in parts)


def how_it_ended(info: RunInfo, summary: RunSummary) -> str | None:
    """That a run was interrupted, failed, or has not ended, and how far it came; None where it is complete."""
    cells = [cell.cell for cell in summary.cells]
    cut = next((cell for cell in cells if cell.status == "failed"), None)
    cut = cut or next((cell for cell in cells if cell.status == "interrupted"), None)
    cut = cut or next((cell for cell in cells if cell.status != "completed"), None)
    if cut is not None:
        return f"{cell_end(cut, _progress(info, summary.groups))}: {_WHAT_REMAINS}."
    missing = _arms_never_run(info, cells)
    if missing:
        return f"Not complete, as nothing was run of {', '.join(missing)}: {_WHAT_REMAINS}."
    return None


def _progress(info: RunInfo, groups: Sequence[Group]) -> str:
    """`105 of 400 prompts`: those that every arm of their group has a request of."""
    repeats = _number(info, "repeats")
    done = total = 0
    for group in groups:
        ran = [{(record.prompt_id, record.repeat) for record in cell.records} for cell in group.cells]
        done += len(set.intersection(*ran))
        total += _num_units(info, group.first) * repeats
    counted = (
        "" if total == sum(group.first.workload.num_prompts for group in groups) else ", repeats counted"
    )
    return f"{done} of {max(done, total)} prompts{counted}"


def _num_units(info: RunInfo, cell: Cell) -> int:
    """Prompts of one round, those that are used again counted as often."""
    prompts = cell.workload.num_prompts
    return max(prompts, _number(info, "num_prompts")) if info.config.get("repeat") is True else prompts


def _number(info: RunInfo, name: str) -> int:
    value = info.config.get(name)
    return value if isinstance(value, int) else 1


def _arms_never_run(info: RunInfo, cells: Sequence[Cell]) -> list[str]:
    """Of servers that are started in turn: the arms whose turn never came."""
    arms = info.config.get("arms")
    if info.config.get("serve") is not True or not isinstance(arms, list) or not cells:
        return []
    names = {cell.arm.name for cell in cells}
    return [str(name) for name in arms if name not in names]
