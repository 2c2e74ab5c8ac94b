"""The sections of a report in the form of published tables: tasks or concurrencies as columns. Pure.

Only here are figures in the paper's form (`speedup_mean_tpot`, `acceptance_length_untrimmed_request_mean`): they are
what published tables can be compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dflash.results.averages import arithmetic_mean_of_all, geometric_mean_of_all
from dflash.results.formats import UNKNOWN, format_number, format_rate
from dflash.results.markdown_acceptance import NO_DRAFTING_ARM
from dflash.results.markdown_text import Explanation, escape, table
from dflash.results.published import Published, PublishedFigure
from dflash.results.summary import CellSummary, Group, RunSummary
from dflash.results.titles import load_words, parts_beside_load

SPEEDUP = "speedup_mean_tpot"
ACCEPTANCE_LENGTH = "acceptance_length_untrimmed_request_mean"
_OURS = "measured"
_WORDS = Explanation(
    "`speedup / acceptance length`, in the form of the paper's tables: ratio of mean TPOTs over all output tokens; "
    "mean over requests of what engines count. Avg: geometric mean of the speedups, arithmetic mean of the acceptance "
    "lengths."
)
_CONCURRENCY_WORDS = Explanation(
    "`tok/s (speedup)` by concurrency c: output throughput of the whole server, and its ratio to the baseline's. The "
    "acceptance length (mean over requests, as engines count) is that of the lowest concurrency."
)

Figures = tuple["float | None", "float | None"]  # speedup, acceptance length


@dataclass(frozen=True, slots=True)
class PaperRow:
    """One method over data sets."""

    method: str
    where: str  # engine, load, and whatever else the figures hang on
    source: str  # `measured`, or where it was published
    figures: dict[str, Figures] = field(default_factory=dict)  # by data set

    @property
    def is_measured(self) -> bool:
        return self.source == _OURS

    def average(self, datasets: Sequence[str]) -> Figures:
        """Geometric mean of the speedups, arithmetic mean of the acceptance lengths; None where one is missing."""
        known = [self.figures.get(name, (None, None)) for name in datasets]
        return (
            geometric_mean_of_all([speedup for speedup, _ in known]),
            arithmetic_mean_of_all([length for _, length in known]),
        )


def paper_form(summary: RunSummary, published: Published | None = None) -> list[str]:
    """Arms as rows, data sets as columns; then concurrencies as columns, where there are several."""
    rows = measured_rows(summary.groups)
    if not rows:
        return [NO_DRAFTING_ARM]
    datasets = list(dict.fromkeys(group.first.workload.dataset for group in summary.groups))
    parts: list[str] = []
    if published is not None:
        found = published_rows(summary, published)
        rows += found
        parts.append(_matching_words(summary, published, bool(found)))
    parts = [_dataset_table(rows, datasets, published is not None), _WORDS, *parts]
    by_concurrency = _concurrency_rows(summary, published)
    if by_concurrency:
        parts += [by_concurrency, _CONCURRENCY_WORDS]
    return parts


def measured_rows(groups: Sequence[Group]) -> list[PaperRow]:
    """Every arm that drafts, of every engine and load."""
    rows: dict[tuple[str, str], PaperRow] = {}
    for group in groups:
        where = _place(group.first.backend, load_words(group.first), *parts_beside_load(group))
        for cell in group.cells:
            if cell.cell.arm.is_baseline:
                continue
            row = rows.setdefault((cell.label, where), PaperRow(cell.label, where, _OURS))
            row.figures[group.first.workload.dataset] = (cell.number(SPEEDUP), cell.number(ACCEPTANCE_LENGTH))
    return list(rows.values())


def published_rows(summary: RunSummary, published: Published) -> list[PaperRow]:
    """What was published for the same target, data set, temperature and reasoning, in tables of data sets."""
    rows: dict[tuple[str, str, str], PaperRow] = {}
    figures = _figures_beside(summary, published)
    for figure in figures:
        if figure.across_concurrency or (figure.speedup is None and figure.acceptance_length is None):
            continue
        key = (figure.method, _published_place(figure, figures), figure.source)
        row = rows.setdefault(key, PaperRow(*key))
        row.figures[figure.dataset] = (figure.speedup, figure.acceptance_length)
    return list(rows.values())


def _figures_beside(summary: RunSummary, published: Published) -> list[PublishedFigure]:
    workloads = dict.fromkeys(group.first.workload for group in summary.groups)
    found = dict.fromkeys(figure for workload in workloads for figure in published.beside(workload))
    return list(found)


def _published_place(figure: PublishedFigure, beside: Sequence[PublishedFigure]) -> str:
    """Engine and hardware; the temperature too where figures of several are shown, as they are of several rows."""
    several = len({other.temperature for other in beside} - {None}) > 1
    if figure.temperature is None or not several:
        return figure.where
    return _place(figure.where, f"temperature {figure.temperature:g}")


def _matching_words(summary: RunSummary, published: Published, any_found: bool) -> str:
    sources = "; ".join(published.sources)
    if any_found:
        return (
            "Published figures are shown where target, data set, temperature and reasoning are equal, as far as they "
            "are given; engine, hardware, prompts and templates are not the same. "
            f"Sources: {escape(sources)}."
        )
    targets = ", ".join(dict.fromkeys(group.first.workload.target for group in summary.groups))
    return (
        f"No published figure has this target ({escape(targets)}), one of these data sets, this temperature and this "
        f"reasoning setting. Looked up in: {escape(sources)}."
    )


def _dataset_table(rows: Sequence[PaperRow], datasets: Sequence[str], with_source: bool) -> str:
    columns = [*datasets, "Avg"] if len(datasets) > 1 else list(datasets)
    header = ["arm", "engine and load", *(["source"] if with_source else []), *map(escape, columns)]
    cells = []
    for row in rows:
        shown = [_figures_words(row.figures.get(name, (None, None))) for name in datasets]
        if len(datasets) > 1:
            shown.append(_figures_words(row.average(datasets)))
        lead = [escape(row.method), escape(row.where), *([escape(row.source)] if with_source else [])]
        cells.append([*lead, *shown])
    return table(header, cells, num_left=3 if with_source else 2)


def _figures_words(figures: Figures) -> str:
    speedup, length = figures
    if speedup is None and length is None:
        return UNKNOWN
    return f"{format_number(speedup)} / {format_number(length)}"


def _concurrency_rows(summary: RunSummary, published: Published | None) -> str | None:
    """One table for all data sets; None where no data set was run at two concurrencies on servers."""
    cells: dict[tuple[str, str, str], dict[int, CellSummary]] = {}
    for group in summary.server_groups:
        workload = group.first.workload
        if workload.request_rate is None:
            for cell in group.cells:
                key = (workload.dataset, cell.label, _place(group.first.backend, *parts_beside_load(group)))
                cells.setdefault(key, {})[workload.concurrency] = cell
    levels = sorted({level for found in cells.values() for level in found})
    if len(levels) < 2:
        return None
    source = published is not None
    rows = [
        [escape(dataset), escape(label), escape(place), *([_OURS] if source else [])]
        + [_throughput_words(found.get(level)) for level in levels]
        + [format_number(found[min(found)].number(ACCEPTANCE_LENGTH))]
        for (dataset, label, place), found in cells.items()
    ]
    if published is not None:
        rows += _published_concurrency_rows(summary, published, levels)
    header = ["data set", "arm", "engine", *(["source"] if source else [])]
    header += [*(f"c={level}" for level in levels), "acceptance length"]
    return table(header, rows, num_left=4 if source else 3)


def _place(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _throughput_words(cell: CellSummary | None) -> str:
    if cell is None:
        return UNKNOWN
    rate = format_rate(cell.number("output_tok_s"))
    if cell.cell.arm.is_baseline:
        return rate
    return f"{rate} ({format_number(cell.number('throughput_speedup'))})"


def _published_concurrency_rows(
    summary: RunSummary, published: Published, levels: Sequence[int]
) -> list[list[str]]:
    found: dict[tuple[str, str, str, str], dict[int, PublishedFigure]] = {}
    beside = _figures_beside(summary, published)
    for figure in beside:
        if figure.across_concurrency and figure.concurrency is not None:
            key = (figure.dataset, figure.method, _published_place(figure, beside), figure.source)
            found.setdefault(key, {})[figure.concurrency] = figure
    return [
        [
            *map(escape, key),
            *(_published_words(figures.get(level)) for level in levels),
            format_number(next(iter(figures.values())).acceptance_length),
        ]
        for key, figures in found.items()
        if figures.keys() & set(levels)
    ]


def _published_words(figure: PublishedFigure | None) -> str:
    if figure is None:
        return UNKNOWN
    rate = format_rate(figure.output_tok_s)
    return rate if figure.speedup is None else f"{rate} ({format_number(figure.speedup)})"
