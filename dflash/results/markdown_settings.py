"""The sections of a report on what was run: settings, data sets, workloads, arms, machine. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from dflash.results.formats import UNKNOWN
from dflash.results.markdown_merge import merged
from dflash.results.markdown_text import Explanation, code_block, escape, table
from dflash.results.records import DatasetInfo, RunInfo
from dflash.results.run_notes import of_run
from dflash.results.summary import CellSummary, Group, RunSummary
from dflash.results.titles import load_words, short_titles, workload_fields

# Settings that need no mention at these values, beside those that are empty or off.
ORDINARY: Mapping[str, object] = {
    "arms": ["baseline", "dflash"],
    "arrivals": "poisson",
    "cooldown_s": 0.0,
    "max_error_rate": 0.0,
    "output_dir": "reports",
    "reasoning": "off",
    "repeats": 1,
    "resume": True,
    "route": "chat",
    "save_outputs": True,
    "seed": 0,
    "temperature": 0.0,
    "verify_tls": True,
}
_FILTERS = ("category", "min_prompt_chars", "max_prompt_chars")
_AVAILABLE = "num_available"


def environment(infos: Sequence[RunInfo]) -> list[str]:
    """The fingerprint of the machine and its software, of every run."""
    otherwise = "No fingerprint was recorded."
    bodies = [(escape(info.name), _settings(info.environment, otherwise)) for info in infos]
    return merged(bodies, "run")


def settings(infos: Sequence[RunInfo], summary: RunSummary) -> list[str]:
    """What was chosen, what the models really were, then prompts, workloads and arms."""
    chosen = [(escape(info.name), _chosen(info, of_run(summary, place))) for place, info in enumerate(infos)]
    return [*merged(chosen, "run"), *_workloads(summary.groups), *_arms(summary.groups), *_retired(infos)]


def commands(infos: Sequence[RunInfo]) -> list[str]:
    """The exact command of every run."""
    if len(infos) == 1:
        return [code_block(infos[0].command or UNKNOWN)]
    return [
        part for info in infos for part in (f"Run {escape(info.name)}:", code_block(info.command or UNKNOWN))
    ]


def _chosen(info: RunInfo, summary: RunSummary) -> list[str]:
    chosen = {name: value for name, value in info.config.items() if not _is_ordinary(name, value)}
    rows = {"model, as used": _models(summary), "draft, as used": _drafts(summary)}
    chosen |= {name: value for name, value in rows.items() if value}
    words = Explanation("Settings that are not shown have their default; `run.json` holds all.")
    shown = _settings(chosen, "No settings were recorded.")
    parts = [*shown, words] if info.config else shown
    return [*parts, *_datasets(info)]


def _is_ordinary(name: str, value: object) -> bool:
    if name in ORDINARY:
        return bool(value == ORDINARY[name])
    return value is None or value is False or value in ([], {})


def _models(summary: RunSummary) -> str:
    return _joined(
        _with_revision(cell.cell.workload.target, cell.cell.workload.target_revision)
        for cell in summary.cells
    )


def _drafts(summary: RunSummary) -> str:
    arms = (cell.cell.arm for cell in summary.cells)
    return _joined(_with_revision(arm.draft, arm.draft_revision) for arm in arms if arm.draft)


def _with_revision(name: str, revision: str | None) -> str:
    return f"{name} ({revision})" if revision else name


def _joined(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _datasets(info: RunInfo) -> list[str]:
    """Which prompts were used, and where they came from."""
    if not info.datasets:
        return []
    names = [item.name for item in fields(DatasetInfo)]
    filtered = any(info.config.get(name) is not None for name in _FILTERS)
    header = [
        "available after filters" if filtered and name == _AVAILABLE else name.replace("_", " ")
        for name in names
    ]
    rows = [[escape(_shown(getattr(dataset, name))) for name in names] for dataset in info.datasets]
    return ["Data sets:", table(header, rows, num_left=len(names))]


def _workloads(groups: Sequence[Group]) -> list[str]:
    """What was decoded: what all groups share, then what tells them apart."""
    if not groups:
        return []
    loads = [workload_fields(group.first.workload) for group in groups]
    names = list(loads[0])
    values = {name: {load[name] for load in loads} for name in names}
    shared = [name for name in names if len(values[name]) == 1 and values[name] != {None}]
    parts = ["Workload:" if len(groups) == 1 else "Workload of all:"]
    parts += _settings({name: loads[0][name] for name in shared}, "")
    different = [name for name in names if len(values[name]) > 1]
    if different:
        rows = [[escape(_shown(load[name])) for name in different] for load in loads]
        parts += [
            "Workloads:",
            table([name.replace("_", " ") for name in different], rows, num_left=len(different)),
        ]
    return parts


def _arms(groups: Sequence[Group]) -> list[str]:
    """Every arm once, then its cells."""
    cells = [(title, cell) for title, group in short_titles(groups) for cell in group.cells]
    if not cells:
        return []
    arms = dict.fromkeys(cell.cell.arm for _, cell in cells)
    columns: dict[str, list[str | None]] = {
        "arm": [arm.label for arm in arms],
        "draft": [arm.draft for arm in arms],
        "draft revision": [arm.draft_revision for arm in arms],
        "acceptance rule": [arm.acceptance_rule for arm in arms],
        "server arguments": [" ".join(arm.server_args) or None for arm in arms],
    }
    if any(arm.server is not None for arm in arms):
        columns["server"] = [arm.server for arm in arms]
    header = list(columns)
    rows = [[escape(_shown(value)) for value in row] for row in zip(*columns.values(), strict=True)]
    cell_header, cell_rows = _cells(cells, is_alone=len(groups) == 1)
    return [
        "Arms:",
        table(header, rows, num_left=len(header)),
        "Cells:",
        table(cell_header, cell_rows, num_left=len(cell_header)),
    ]


def _retired(infos: Sequence[RunInfo]) -> list[str]:
    """Cells that others took the place of: their requests are kept, and no figure above counts them."""
    rows = [
        [
            escape(cell.workload.dataset),
            escape(load_words(cell)),
            escape(cell.arm.label),
            escape(cell.cell_id),
            escape(cell.reason or ""),
        ]
        for info in infos
        for cell in info.cells
        if cell.is_retired
    ]
    if not rows:
        return []
    header = ["data set", "load", "arm", "cell", "why"]
    about = (
        "Retired cells, which others took the place of. Their requests are kept, and no figure above counts them; "
        "the settings that they were begun with bring them back:"
    )
    return [about, table(header, rows, num_left=len(header))]


def _cells(cells: Sequence[tuple[str, CellSummary]], is_alone: bool) -> tuple[list[str], list[list[str]]]:
    rows = [
        [escape(title), escape(cell.label), escape(cell.cell.cell_id), cell.cell.status]
        for title, cell in cells
    ]
    header = ["workload", "arm", "cell", "status"]
    return (header[1:], [row[1:] for row in rows]) if is_alone else (header, rows)


def _settings(values: Mapping[str, Any], otherwise: str) -> list[str]:
    rows = [[escape(name), escape(_shown(value))] for name, value in _flattened(values)]
    return [table(["setting", "value"], rows, num_left=2)] if rows else [otherwise]


def _flattened(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(value: Any) -> str:
    if value is None:
        return UNKNOWN
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
