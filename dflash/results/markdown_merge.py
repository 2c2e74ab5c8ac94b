"""What a section shows of several groups, put together: one table for all, and every sentence once. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.results.markdown_text import Bullets, Explanation, Table, bullets, table

Body = Sequence[str]  # paragraphs, tables, lists
_Key = tuple[str, ...]


def merged(bodies: Sequence[tuple[str, Body]], column: str) -> list[str]:
    """The bodies of several groups as one.

    Tables of equal columns become one, with a first column that names the group. A sentence stands once: without a
    name where it is in every body, or explains how to read what is there; else behind the names of its groups.

    Args:
        bodies: the name of each group, escaped, and what is shown of it.
        column: the title of the first column: what the names are of.
    """
    if len(bodies) == 1:
        return list(bodies[0][1])
    found: dict[_Key, list[tuple[str, str]]] = {}
    for title, body in bodies:
        for key, part in _keyed(body):
            found.setdefault(key, []).append((title, part))
    titles = [title for title, _ in bodies]
    return [_part(found[key], titles, column) for key in _ordered([_keyed(body) for _, body in bodies])]


def _keyed(body: Body) -> list[tuple[_Key, str]]:
    """Every part under what makes it the same in another body."""
    keyed: list[tuple[_Key, str]] = []
    for part in body:
        if isinstance(part, Table):
            key: _Key = ("table", *part.header)
        elif isinstance(part, Bullets):
            key = ("list", str(sum(known[0] == "list" for known, _ in keyed)))
        else:
            key = ("text", part)
        keyed.append((key, part))
    return keyed


def _ordered(bodies: Sequence[Sequence[tuple[_Key, str]]]) -> list[_Key]:
    """Every key once; those that earlier bodies lack come before what follows them in their own."""
    order: list[_Key] = []
    for body in bodies:
        keys = [key for key, _ in body]
        for place, key in enumerate(keys):
            if key not in order:
                following = next((known for known in keys[place + 1 :] if known in order), None)
                order.insert(len(order) if following is None else order.index(following), key)
    return order


def _part(parts: Sequence[tuple[str, str]], titles: Sequence[str], column: str) -> str:
    first = parts[0][1]
    if isinstance(first, Table):
        rows = [[title, *row] for title, part in parts if isinstance(part, Table) for row in part.rows]
        return table([column, *first.header], rows, num_left=first.num_left + 1)
    if isinstance(first, Bullets):
        lines: dict[str, list[str]] = {}
        for title, part in parts:
            for line in part.lines if isinstance(part, Bullets) else ():
                lines.setdefault(line, []).append(title)
        return bullets([_named(line, of, titles) for line, of in lines.items()])
    if isinstance(first, Explanation):
        return first
    return _named(first, [title for title, _ in parts], titles)


def _named(text: str, of: Sequence[str], titles: Sequence[str]) -> str:
    """A sentence behind the groups that it is of; nothing before it where those are all."""
    names = list(dict.fromkeys(of))
    if len(names) == len(titles):
        return text
    others = [title for title in titles if title not in names]
    named = ", ".join(names) if len(names) <= max(3, len(others)) else f"All but {', '.join(others)}"
    return f"{named}: {text}"
