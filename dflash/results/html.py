"""A report in Markdown -> the same report as one HTML file that needs nothing else: no network, no other file.

Raw HTML in the text shows as text, and links lead only within the page. The page's own policy forbids whatever is not
in it: only the script and the style whose digests it names count.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it.token import Token

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}<script>{script}</script>
</body>
</html>
"""


def render_html(markdown: str, pictures: Mapping[str, bytes], anchors: Mapping[str, str]) -> str:
    """The page.

    Args:
        markdown: the report.
        pictures: PNG files by the name that the report gives them.
        anchors: heading -> what it is linked by.
    """
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(markdown)
    _set_anchors(tokens, anchors)
    for token in tokens:
        if token.type == "inline":
            token.children = _self_contained(token.children or [], pictures)
        _set_classes(token)
    body = parser.renderer.render(tokens, parser.options, {})
    body = body.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")
    style, script = _asset("report.css"), _asset("sort_tables.js")
    policy = f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {_digest(script)}"
    title = html.escape(_title(tokens))
    return _PAGE.format(policy=policy, title=title, style=style, body=body, script=script)


def _asset(name: str) -> str:
    return (resources.files("dflash.results") / "page" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _title(tokens: Sequence[Token]) -> str:
    heading = next((token for token in tokens if token.type == "inline"), None)
    return "".join(child.content for child in (heading.children or [])) if heading else "report"


def _set_anchors(tokens: Sequence[Token], anchors: Mapping[str, str]) -> None:
    for opening, inside in pairwise(tokens):
        if opening.type == "heading_open" and opening.tag == "h2" and inside.content in anchors:
            opening.attrSet("id", anchors[inside.content])


def _set_classes(token: Token) -> None:
    """Alignment by class: a style at an element is what the policy would have to allow."""
    if token.type in ("th_open", "td_open"):
        if "right" in str(token.attrs.pop("style", "")):
            token.attrSet("class", "right")
        if token.type == "th_open":
            token.attrSet("scope", "col")


def _self_contained(children: Sequence[Token], pictures: Mapping[str, bytes]) -> list[Token]:
    """Pictures become part of the page; links that lead out of it are left as their words."""
    kept: list[Token] = []
    leads_out = False
    for child in children:
        if child.type == "link_open":
            leads_out = not str(child.attrGet("href")).startswith("#")
        if child.type in ("link_open", "link_close") and leads_out:
            continue
        if child.type == "image":
            picture = pictures.get(str(child.attrGet("src")))
            if picture is None:
                continue
            child.attrSet("src", f"data:image/png;base64,{base64.b64encode(picture).decode()}")
        kept.append(child)
    return kept
