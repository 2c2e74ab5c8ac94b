"""Figures that others published, with their sources, to be drawn beside measured ones.

Every file `*.toml` in this folder is a publication: its `title`, its `source`, and its tables. A table has a name, the
setting that its columns stand for (`across`: `dataset`, `concurrency`, or `method` for what else tells them apart), the
columns, and settings that hold for all of its rows. A row has the other settings and its figures: a list with one
figure a column, or one that holds for all; `nan` is a cell that is empty there. `average` is what the table prints as
the row's average of speedups and acceptance lengths. A setting that is absent is not given in the publication.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from dflash.errors import UsageError
from dflash.results.records import Workload

REFERENCES = ("paper",)  # what can be asked for
_FIGURES = ("speedup", "acceptance_length", "output_tok_s")


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """One cell of a published table; None: not given there."""

    source: str  # publication and table
    target: str  # last part of the model's name
    dataset: str
    method: str
    temperature: float | None
    reasoning: str | None
    backend: str | None
    hardware: str | None
    concurrency: int | None
    across_concurrency: bool  # of a table with concurrencies as columns
    speedup: float | None
    acceptance_length: float | None
    output_tok_s: float | None

    @property
    def where(self) -> str:
        """Engine and hardware."""
        parts = [part for part in (self.backend, self.hardware) if part]
        if not self.across_concurrency and self.concurrency is not None:
            parts.append(f"concurrency {self.concurrency}")
        if self.temperature is None:
            parts.append("temperature not given")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class PublishedAverage:
    """The average that a published table prints beside the cells of one row."""

    figures: tuple[PublishedFigure, ...]  # the row's cells
    speedup: float
    acceptance_length: float


@dataclass(frozen=True, slots=True)
class Published:
    """All figures of one reference."""

    figures: tuple[PublishedFigure, ...]
    averages: tuple[PublishedAverage, ...]
    sources: tuple[str, ...]  # the publications

    def beside(self, workload: Workload) -> list[PublishedFigure]:
        """Those of the same target and data set, at the same temperature and reasoning setting.

        The target is compared by the last part of its name, as a folder or a hub id gives it.
        """
        name = workload.target.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()
        return [
            figure
            for figure in self.figures
            if figure.target.lower() == name
            and figure.dataset == workload.dataset
            and figure.temperature in (None, workload.temperature)
            and figure.reasoning in (None, workload.reasoning)
        ]


def load_published(reference: str) -> Published:
    """The figures that `--reference` names.

    Raises:
        UsageError: there is no such reference.
    """
    if reference not in REFERENCES:
        raise UsageError(
            f"there are no published figures {reference!r}", f"name one of {', '.join(REFERENCES)}"
        )
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]
    figures: list[PublishedFigure] = []
    averages: list[PublishedAverage] = []
    sources = []
    folder = resources.files("dflash.results.published")
    for file in sorted(folder.iterdir(), key=lambda item: item.name):
        if file.name.endswith(".toml"):
            values = tomllib.loads(file.read_text(encoding="utf-8"))
            sources.append(f"{values['title']} ({values['source']})")
            for published_table in values["table"]:
                for row in published_table["rows"]:
                    cells = tuple(_cells(values, published_table, row))
                    figures += cells
                    if "average" in row:
                        averages.append(PublishedAverage(cells, *row["average"]))
    return Published(tuple(figures), tuple(averages), tuple(sources))


def _cells(
    values: Mapping[str, Any], table: Mapping[str, Any], row: Mapping[str, Any]
) -> Iterator[PublishedFigure]:
    """The cells of one row: what the row does not say is said by its table."""
    across = table["across"]
    known = {**table, **row}
    for place, column in enumerate(table["columns"]):
        given = {across: column} if across != "method" else {}
        at = {**known, **given}
        figures = {name: _at(row.get(name), place) for name in _FIGURES}
        if all(value is None for value in figures.values()):
            continue
        method = f"{at['method']}, {column}" if across == "method" else at["method"]
        yield PublishedFigure(
            source=f"{values['title']}, {table['name']}",
            target=at["target"],
            dataset=at["dataset"],
            method=method,
            temperature=at.get("temperature"),
            reasoning=at.get("reasoning"),
            backend=at.get("backend"),
            hardware=at.get("hardware"),
            concurrency=at.get("concurrency"),
            across_concurrency=across == "concurrency",
            **figures,
        )


def _at(value: list[float] | float | None, place: int) -> float | None:
    """The column's own value, or the one that holds for the whole row; NaN marks a cell that is empty there."""
    found = value[place] if isinstance(value, list) else value
    return None if found is None or found != found else found
