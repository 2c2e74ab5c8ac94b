"""The section of a report on whether the answers are right. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.results.formats import UNKNOWN, format_agreement, format_count, format_counts, format_p_value
from dflash.results.markdown_merge import merged
from dflash.results.markdown_text import Explanation, bullets, escape, table
from dflash.results.summary import CellSummary, Group
from dflash.results.task_scores import UNSCORED_WORDS
from dflash.results.titles import load_words, parts_beside_load

_WORDS = Explanation(
    "Right: the last boxed answer, or the last number, equals the reference (exact values), or the code passed its "
    "tests (pass@1). Unanswered: neither a box, a number nor code was found. Cut: ended at the limit of new tokens; "
    "both count as they read. p: exact two-sided McNemar test over the prompts that are scored in both arms."
)


def task_scores(groups: Sequence[Group]) -> list[str]:
    """The arms of every data set in one table, then why scores are missing."""
    datasets: dict[str, list[Group]] = {}
    for group in groups:
        datasets.setdefault(group.first.workload.dataset, []).append(group)
    bodies = [(escape(dataset), _dataset(members)) for dataset, members in datasets.items()]
    return merged(bodies, "data set") if bodies else ["Nothing was run."]


def _dataset(groups: Sequence[Group]) -> list[str]:
    cells = [cell for group in groups for cell in group.cells]
    missing = _missing(cells)
    if all(cell.number("task_score") is None for cell in cells):
        return [bullets(missing)]
    header = [
        "arm",
        "backend",
        "load",
        "task score",
        "right of scored",
        "unanswered",
        "cut",
        "right in the baseline only",
        "right in this arm only",
        "p",
    ]
    notes = [*_unchanged(cells), *missing]
    parts: list[str] = [
        table(header, [_row(group, cell) for group in groups for cell in group.cells], num_left=2),
        _WORDS,
    ]
    return [*parts, bullets(notes)] if notes else parts


def _row(group: Group, cell: CellSummary) -> list[str]:
    right, scored = _count(cell, "num_right"), _count(cell, "num_scored")
    return [
        escape(cell.label),
        escape(cell.cell.backend),
        escape(" · ".join(part for part in (load_words(cell.cell), *parts_beside_load(group)) if part)),
        format_agreement(cell.interval("task_score")),
        UNKNOWN if cell.number("num_scored") is None else f"{right} of {scored}",
        _count(cell, "num_unanswered"),
        _count(cell, "num_cut"),
        *(
            ["-", "-", "-"]
            if cell.cell.arm.is_baseline
            else [
                _count(cell, "task_score_only_baseline"),
                _count(cell, "task_score_only_arm"),
                format_p_value(cell.number("task_score_p_value")),
            ]
        ),
    ]


def _unchanged(cells: Sequence[CellSummary]) -> list[str]:
    """Arms in which no prompt turned from right to wrong or back: the test has nothing to go by."""
    labels = [
        f"**{escape(cell.label)}**"
        for cell in cells
        if cell.number("task_score_only_baseline") == 0 and cell.number("task_score_only_arm") == 0
    ]
    if not labels:
        return []
    return [f"{', '.join(dict.fromkeys(labels))}: every prompt is right in both arms, or in neither."]


def _missing(cells: Sequence[CellSummary]) -> list[str]:
    """Why arms have no score, equal reasons together, and what is left out of those that there are."""
    reasons: dict[str, list[str]] = {}
    lines = []
    for cell in cells:
        label = f"**{escape(cell.label)}**"
        if cell.why_no_task_score is not None:
            reasons.setdefault(cell.why_no_task_score, []).append(label)
        elif cell.unscored:
            listed = format_counts({UNSCORED_WORDS[why]: count for why, count in cell.unscored.items()})
            lines.append(f"{label}: not scored: {listed}.")
    whys = [
        f"{', '.join(dict.fromkeys(labels))}: no task score, because {escape(reason)}."
        for reason, labels in reasons.items()
    ]
    return [*whys, *lines]


def _count(cell: CellSummary, name: str) -> str:
    return format_count(cell.number(name))
