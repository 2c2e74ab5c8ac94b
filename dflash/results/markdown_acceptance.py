"""The sections of a report on what was accepted and whether the output changed. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dflash.results.acceptance_plots import HISTOGRAM_FORMS, histogram_of
from dflash.results.formats import (
    UNKNOWN,
    format_agreement,
    format_number,
    format_percent,
    format_times,
    format_with_bounds,
)
from dflash.results.markdown_text import Explanation, bullets, escape, table
from dflash.results.output_comparison import Basis
from dflash.results.records import DifferenceRecord
from dflash.results.summary import CellSummary, Group
from dflash.results.verify_pair import is_near_tie, near_tie_logit_gap

NO_DRAFTING_ARM = "No arm that drafts was run."


def acceptance(group: Group) -> list[str]:
    """Every form of the acceptance length, each under its name."""
    cells = drafting_cells(group)
    if not cells:
        return [NO_DRAFTING_ARM]
    header = [
        "arm",
        "acceptance length",
        "request mean",
        "as engines count",
        "as engines count, request mean",
        "acceptance rate",
        "speedup, paper's form",
    ]
    rows = [
        [
            escape(cell.label),
            format_with_bounds(cell.interval("acceptance_length")),
            format_number(cell.number("acceptance_length_request_mean")),
            format_with_bounds(cell.interval("acceptance_length_untrimmed")),
            format_number(cell.number("acceptance_length_untrimmed_request_mean")),
            format_percent(cell.number("acceptance_rate")),
            format_times(cell.number("speedup_mean_tpot")),
        ]
        for cell in cells
    ]
    words = (
        "Compare only `as engines count, request mean` and the speedup in the paper's form (a ratio of "
        "mean TPOTs over all "
        "output tokens) with published tables."
    )
    return [table(header, rows), Explanation(words)]


def histograms(group: Group) -> list[str]:
    """Steps by tokens, then acceptance per draft position, joint and conditional."""
    cells = [cell for cell in drafting_cells(group) if histogram_of(cell) is not None]
    if not cells:
        return ["No histogram was measured." if drafting_cells(group) else NO_DRAFTING_ARM]
    words = (
        "Steps by the tokens that they gave, % of the arm's steps. Delivered: decode steps. Untrimmed, as engines "
        "count: verify steps, tokens that a stop or the limit then cut included."
    )
    parts: list[str] = [Explanation(words), _histogram_table(cells)]
    curves = [cell for cell in cells if cell.numbers("acceptance_rate_per_position")]
    if curves:
        words = (
            "Acceptance per draft position, `joint / conditional`. Joint: % of all verify steps. "
            "Conditional: % of the "
            "steps that accepted the position before. Tokens cut by a stop or the limit are counted."
        )
        parts += [Explanation(words), _position_table(curves)]
    return parts


def _histogram_table(cells: Sequence[CellSummary]) -> str:
    known = [(cell, found) for cell in cells if (found := histogram_of(cell)) is not None]
    width = max(len(histogram) for _, (_, histogram) in known)
    rows = []
    for cell, (name, histogram) in known:
        total = sum(count or 0 for count in histogram)
        shares = [format_percent((count or 0) / total) for count in histogram]
        rows.append([escape(cell.label), HISTOGRAM_FORMS[name][0], f"{total:,.0f}", *_filled(shares, width)])
    return table(["arm", "form", "steps", *(str(k) for k in range(1, width + 1))], rows, num_left=2)


def _position_table(cells: Sequence[CellSummary]) -> str:
    width = max(len(cell.numbers("acceptance_rate_per_position") or ()) for cell in cells)
    rows = []
    for cell in cells:
        joint = cell.numbers("acceptance_rate_per_position") or ()
        conditional = cell.numbers("acceptance_rate_per_position_conditional") or ()
        shown = [
            f"{format_percent(first)} / {format_percent(second)}"
            for first, second in zip(joint, conditional, strict=True)
        ]
        rows.append([escape(cell.label), *_filled(shown, width)])
    return table(["arm", *(f"position {i}" for i in range(1, width + 1))], rows)


def agreement(group: Group) -> list[str]:
    """Whether the output changed, and every place where it did."""
    cells = drafting_cells(group)
    if not cells:
        return [NO_DRAFTING_ARM]
    lines, rows = [], []
    for cell in cells:
        label = escape(cell.label)
        value = cell.interval("agreement")
        if value is None:
            lines.append(
                f"**{label}**: n/a, because {escape(cell.why_no_agreement or 'it was not measured')}."
            )
        elif value.value == 1:
            lines.append(f"**{label}**: every compared output equals the baseline's.")
        else:
            lines.append(f"**{label}**: {format_agreement(value)} of the prompts give the baseline's output.")
        if cell.agreement_basis and value is not None:
            lines[-1] += f" {_basis_words(cell)}"
        rows += [
            [label, *_difference_row(difference, cell.cell.workload.dtype)] for difference in cell.differences
        ]
    parts: list[str] = [bullets(lines)]
    if rows:
        header = [
            "arm",
            "prompt",
            "turn",
            "repeat",
            "position",
            "baseline token",
            "arm token",
            "logit gap",
            "verdict",
        ]
        dtype = group.first.workload.dtype
        words = (
            "Logit gap: between the target's two best next tokens at the first difference, from one "
            "forward after both "
            f"clocks had stopped. Up to {near_tie_logit_gap(dtype):g} (for {dtype or 'an unknown dtype'}) it is "
            "called a near-tie, which "
            "rounding can turn; above, a fault."
        )
        parts += [table(header, rows, num_left=2), Explanation(escape(words))]
    return parts + _text_differences(cells)


_BASIS_WORDS: dict[Basis, str] = {
    "ids": "by token ids",
    "text": "by text (ids are not known of both; other tokens may read the same)",
    "unknown": "by a digest of which nobody knows what it is of (outputs were not saved)",
}


def _basis_words(cell: CellSummary) -> str:
    """By what outputs of servers were compared."""
    found = [f"{count} {_BASIS_WORDS[basis]}" for basis, count in sorted(cell.agreement_basis.items())]
    return f"Compared: {', '.join(found)}."


def _text_differences(cells: Sequence[CellSummary]) -> list[str]:
    """Where texts first differ, of outputs without ids on either side."""
    rows = [
        [
            escape(cell.label),
            escape(difference.prompt_id),
            str(difference.turn),
            str(difference.repeat),
            str(difference.position),
            escape(difference.baseline_text or "(ended)"),
            escape(difference.arm_text or "(ended)"),
        ]
        for cell in cells
        for difference in cell.text_differences
    ]
    if not rows:
        return []
    header = ["arm", "prompt", "turn", "repeat", "character", "baseline goes on", "arm goes on"]
    words = Explanation("First differing character of outputs compared by text:")
    return [words, table(header, rows, num_left=2)]


def _difference_row(difference: DifferenceRecord, dtype: str | None) -> list[str]:
    ended = "(ended)"
    gap = difference.logit_gap
    return [
        escape(difference.prompt_id),
        str(difference.turn),
        str(difference.repeat),
        str(difference.position),
        ended if difference.baseline_token_id is None else str(difference.baseline_token_id),
        ended if difference.arm_token_id is None else str(difference.arm_token_id),
        UNKNOWN if gap is None or not math.isfinite(gap) else f"{gap:.3g}",
        {None: UNKNOWN, True: "near-tie", False: "**fault**"}[is_near_tie(difference, dtype)],
    ]


def drafting_cells(group: Group) -> list[CellSummary]:
    """Every arm of the group but the baseline."""
    return [cell for cell in group.cells if not cell.cell.arm.is_baseline]


def _filled(cells: Sequence[str], width: int) -> list[str]:
    return [*cells, *[""] * (width - len(cells))]
