"""A suite and the flags beside it -> the grids of a sweep, each as the words of a command line. Pure.

What is typed holds over a cell's override, that over its grid, that over the suite's settings, those over includes.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dflash.errors import UsageError
from dflash.suite import WHERE, Override, Settings, Suite

# Only typed: where a run goes and what is printed, secrets, and what may run code that came from elsewhere.
ONLY_TYPED = (
    *("suite", "run", "output-dir", "json", "quiet", "list", "smoke", "no-resume"),
    *("api-key", "api-key-env", "header", "trust-remote-code", "execute-code", "engine-python"),
)
# Of the whole sweep, so not of a grid.
OF_SWEEP = ("repeats", "cooldown", "time-budget", "max-error-rate", "no-save-outputs")


def grid_words(
    suite: Suite,
    typed: Mapping[str, Any],
    canonical_names: Mapping[str, str],
    expand: Callable[[Sequence[str]], Sequence[str]],
) -> list[list[str]]:
    """The words of every grid, what is typed in the place of the suite's own.

    Args:
        typed: values by the canonical names of the flags that are given beside the suite. Those of `WHERE` are part
            of the words; the others must be added to them.
        canonical_names: of every flag, by each of its names, all without dashes.
        expand: data sets and names that stand for several -> data sets.

    Raises:
        UsageError: an unknown setting, one that must be typed or holds for the whole sweep, an override of no cell.
    """
    hidden = set(typed) - set(WHERE)
    places = {name: typed[name] for name in WHERE if name in typed}

    def canonical(settings: Settings, where: str, of_sweep: bool = False) -> dict[str, Any]:
        return {
            _checked_name(name, where, canonical_names, suite.name, of_sweep): value
            for name, value in settings.items()
        }

    base = canonical(suite.settings, "settings", of_sweep=True)
    grids = [base | canonical(grid, "a grid") | places for grid in suite.grids]
    for override in suite.overrides:
        changes = canonical(override.changes, override.label)
        split = [part for grid in grids for part in _split(grid, override, changes, expand)]
        # what is typed may leave out the cells that an override names
        if not places and not any(is_matched for _, is_matched in split):
            raise UsageError(f"{override.label} matches no cell", "correct its where, or remove it")
        grids = [grid for grid, is_matched in split if not (is_matched and override.drops)]
    found: list[list[str]] = []
    for grid in grids:
        words = [word for name, value in grid.items() if name not in hidden for word in _words(name, value)]
        if words not in found:
            found.append(words)
    return found


def _checked_name(name: str, where: str, names: Mapping[str, str], suite: str, of_sweep: bool) -> str:
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        mend = f"did you mean {close[0]!r}?" if close else "settings are named as the flags are"
        raise UsageError(f"suite {suite}: unknown setting {name!r} in {where}", mend)
    if names[name] in ONLY_TYPED:
        raise UsageError(f"suite {suite}: {name} cannot stand in a suite", f"type --{name} beside it")
    if names[name] in OF_SWEEP and not of_sweep:
        raise UsageError(f"suite {suite}: {name} holds for the whole sweep", "move it to [settings]")
    return names[name]


def _split(
    grid: dict[str, Any],
    override: Override,
    changes: dict[str, Any],
    expand: Callable[[Sequence[str]], Sequence[str]],
) -> list[tuple[dict[str, Any], bool]]:
    """The grid in parts, those first that the override does not name; with each whether it does."""
    rests: list[tuple[dict[str, Any], bool]] = []
    matched = grid
    for name, wanted in override.where.items():
        values = _as_list(grid.get(name, {"dataset": ["quickstart"], "concurrency": [1]}[name]))
        if name == "dataset":
            wanted = tuple(expand([str(item) for item in wanted]))
            if not set(wanted) & set(expand([str(item) for item in values])):
                return [(grid, False)]
            if not set(values) <= set(wanted):  # a group is spelled out only where it must be split
                values = list(expand([str(item) for item in values]))
        named = {str(item) for item in wanted}  # a list may be written as one text: "1,8"
        inside = [value for value in values if str(value) in named]
        outside = [value for value in values if str(value) not in named]
        if not inside:
            return [(grid, False)]
        if outside:
            rests.append((matched | {name: outside}, False))
        matched = matched | {name: inside}
    return [*rests, (matched | changes, True)]


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [item.strip() for item in value.split(",")]
    return list(value) if isinstance(value, list) else [value]


def _words(name: str, value: Any) -> list[str]:
    """`--name=value`, a switch, nothing for a switch that is off; a list of texts may also be a repeated flag."""
    if value is True:
        return [f"--{name}"]
    if value is False:
        return []
    if isinstance(value, list):
        if name in ("arm", "metrics-url", "server-arg"):
            return [f"--{name}={item}" for item in value]
        return [f"--{name}={','.join(map(str, value))}"]
    return [f"--{name}={value}"]
