"""The Prometheus text of the simulated servers, from a table of the families that the recorded ones gave.

A row of a table is: kind (c counter, g gauge, h histogram), scope (which common labels its series have), name,
then, for families with labels of their own, the labels' names and the values of each series. Histograms have no
bucket but the last: their counts and sums are right, their shape is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Labels = Mapping[str, str]
# (family, values of its own labels) -> the value of the series, by place in the scope's list of common labels
Values = Mapping[tuple[str, str], Sequence[float | None]]

_KINDS = {"c": "counter", "g": "gauge", "h": "histogram"}


def render_metrics(
    families: str,
    prefix: str,
    scopes: Mapping[str, Sequence[Labels]],
    values: Values,
    created: float | None = None,
) -> str:
    """The text of a table.

    Args:
        scopes: the common labels of each series, by scope; a family whose scope is not in it is left out.
        values: what is not 0. A histogram's are `NAME_count` and `NAME_sum`. A series whose value is None is
            left out, and so is a family with no series.
        created: seconds since the epoch of the `_created` gauges; None: there are none.
    """
    lines: list[str] = []
    for row in families.split("\n"):
        if not row:
            continue
        kind, scope, name, *own = row.split(" ")
        if scope not in scopes:
            continue
        family = f"{prefix}{name}"
        own_names = own[0].split(",") if own else []
        body, stamps = [], []
        for own_values in own[1:] or [""]:
            for place, common in enumerate(scopes[scope]):
                labels = {**common, **dict(zip(own_names, own_values.split("|"), strict=False))}
                series = _series(kind, family, labels, name, own_values, place, values)
                body += series
                if series and created is not None and kind != "g":
                    stamps.append(f"{_created_name(family, kind)}{_braces(labels)} {created!r}")
        if body:
            lines += [
                f"# HELP {family} As the engine of that name counts it.",
                f"# TYPE {family} {_KINDS[kind]}",
            ]
            lines += body
        if stamps:
            name_created = _created_name(family, kind)
            lines += [
                f"# HELP {name_created} When its counting began.",
                f"# TYPE {name_created} gauge",
                *stamps,
            ]
    return "\n".join(lines) + "\n"


def _series(
    kind: str, family: str, labels: Labels, name: str, own_values: str, place: int, values: Values
) -> list[str]:
    def value(of: str) -> float | None:
        known = values.get((of, own_values))
        return 0 if known is None else known[place]

    if kind != "h":
        number = value(name)
        return [] if number is None else [f"{family}{_braces(labels)} {float(number)!r}"]
    count, total = value(f"{name}_count"), value(f"{name}_sum")
    if count is None or total is None:
        return []
    return [
        f"{family}_bucket{_braces({**labels, 'le': '+Inf'})} {float(count)!r}",
        f"{family}_count{_braces(labels)} {float(count)!r}",
        f"{family}_sum{_braces(labels)} {float(total)!r}",
    ]


def _created_name(family: str, kind: str) -> str:
    return f"{family.removesuffix('_total') if kind == 'c' else family}_created"


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{labels[name]}"' for name in sorted(labels)) + "}"
