from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from edge_runs import EDGE_RUNS
from headless_chromium import REQUIRE_VARIABLE, Page, find_chromium, with_page
from made_up_run import made_up_run

from dflash.results.html import render_html
from dflash.results.markdown import anchor, anchors_of, render_report
from dflash.results.report_files import Report, write_reports
from dflash.results.store import Run
from dflash.results.summary import summarise_run

HOSTILE = '<script>window.hit=1</script><img src=x onerror="window.hit=1">[a](javascript:window.hit=1)'


def page_of(run: Run, folder: Path) -> Path:
    (path,) = write_reports(Report((run,), summarise_run(run)), folder, ("html",))
    return path


def hostile_run() -> Run:
    """A run in which every text that others choose is an attack."""
    run = made_up_run(block_sizes=(2, 3, 8))
    cells = tuple(
        replace(
            cell,
            workload=replace(cell.workload, dataset=HOSTILE, target=HOSTILE),
            notes=(HOSTILE,),
            arm=cell.arm if cell.arm.is_baseline else replace(cell.arm, draft=HOSTILE),
        )
        for cell in run.info.cells
    )
    info = replace(run.info, name=HOSTILE, command=HOSTILE, notes=(HOSTILE,), cells=cells)
    records = tuple(
        replace(record, category=HOSTILE)
        if place
        else replace(record, finish_reason="error", error_kind=HOSTILE, error_message=HOSTILE)
        for place, record in enumerate(run.records)
    )
    return replace(run, info=info, records=records)


@pytest.fixture(scope="module")
def plain_page(tmp_path_factory) -> Path:
    """The page of a run that went well; it has its pictures."""
    return page_of(made_up_run(block_sizes=(2, 3, 8, 16)), tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory) -> Path:
    return page_of(hostile_run(), tmp_path_factory.mktemp("hostile"))


# --- without a browser


def test_a_page_is_one_file_that_names_no_other(plain_page):
    page = plain_page.read_text(encoding="utf-8")
    assert [path.name for path in plain_page.parent.iterdir()] == ["report.html"]
    assert page.count('src="data:image/png;base64,') >= 8
    assert set(re.findall(r'(?:src|href)="([^"]{0,12})', page)) <= {
        "data:image/p",
        *(href for href in re.findall(r'href="(#[^"]{0,11})', page)),
    }
    assert "default-src 'none'" in page


def test_every_section_can_be_linked_to(plain_page):
    page = plain_page.read_text(encoding="utf-8")
    links, anchors = set(re.findall(r'href="#([^"]*)"', page)), re.findall(r'<h2 id="([^"]*)"', page)
    assert len(anchors) == len(set(anchors)) > 15
    assert links == set(anchors)


def test_anchors_of_a_report_stay_what_they_are():
    report = render_report(made_up_run(), summarise_run(made_up_run()))
    assert list(anchors_of(report).values()) == [
        *("speed", "block-size", "papers-form", "acceptance", "histogram-and-positions", "agreement"),
        *("task-score", "output-lengths", "where-the-time-goes", "memory", "by-category", "by-prompt-length"),
        *("by-turn", "errors", "findings", "what-the-numbers-mean", "machine-and-versions", "settings"),
        "command",
    ]
    assert anchor("Paper's form") == "papers-form"
    assert re.findall(r"\]\(#([^)]*)\)", report) == list(anchors_of(report).values())


def test_what_others_wrote_is_text(hostile_page):
    page = hostile_page.read_text(encoding="utf-8")
    assert len(re.findall("<script", page)) == 1
    assert not re.search(r"<img(?! src=\"data:image/png;base64,)", page)
    assert not re.search(r'(href|src)="javascript', page)
    assert "&lt;script&gt;window.hit=1&lt;/script&gt;" in page


def test_a_picture_that_is_not_there_and_a_link_that_leads_out_are_left_out():
    page = render_html("# t\n\n![a](other.png) [words](../x.md) [in](#t)", {}, {})
    assert "<img" not in page
    assert "<p> words <a" in page
    assert 'href="#t"' in page


@pytest.mark.parametrize("name", EDGE_RUNS)
def test_every_run_has_a_page(name):
    report = render_report(EDGE_RUNS[name], summarise_run(EDGE_RUNS[name]))
    page = render_html(report, {}, anchors_of(report))
    assert page.count("<table>") == page.count("</table>")
    assert "Settings" in page


def test_a_run_that_is_named_like_a_section_has_no_anchor():
    page = render_html("# Speed\n\n## Speed\n", {}, {"Speed": "speed"})
    assert "<h1>Speed</h1>" in page
    assert '<h2 id="speed">Speed</h2>' in page


# --- in a real browser


def test_without_a_browser_its_tests_skip_unless_it_is_required(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(REQUIRE_VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Chromium is installed"):
        find_chromium()
    monkeypatch.setenv(REQUIRE_VARIABLE, "1")
    with pytest.raises(pytest.fail.Exception, match="no Chromium is installed"):
        find_chromium()


def test_a_browser_shows_the_page_without_network_and_sorts_its_tables(plain_page, tmp_path):
    find_chromium()
    column = 'Array.from(document.querySelector("table").tBodies[0].rows, (row) => row.cells[{}].textContent)'

    async def use(page: Page) -> None:
        assert await page.evaluate("document.title") == "made-up"
        widths = await page.evaluate("Array.from(document.images, (image) => image.naturalWidth)")
        assert len(widths) >= 8
        assert min(widths) > 400
        original = await page.evaluate(column.format(3))
        click = 'document.querySelectorAll("table th button")[3].click()'
        await page.evaluate(click)
        rising = await page.evaluate(column.format(3))
        assert [text for text in rising if text != "reference"] == sorted(
            (text for text in original if text != "reference"), key=lambda text: float(text.split("x")[0])
        )
        assert rising[-1] == "reference"  # what is no number stays last
        await page.evaluate(click)
        assert (await page.evaluate(column.format(3)))[:-1] == rising[-2::-1]
        sort = 'document.querySelector("table th[aria-sort]").getAttribute("aria-sort")'
        assert await page.evaluate(sort) == "descending"
        await page.evaluate(click)
        assert await page.evaluate(column.format(3)) == original
        await page.evaluate('document.querySelector("table th button").click()')  # a column of words
        names = await page.evaluate(column.format(0))
        assert [name.split("=")[-1] for name in names] == ["baseline", "2", "3", "8", "16"]
        await page.evaluate("document.querySelector(\"a[href='#settings']\").click()")
        assert await page.evaluate("location.hash") == "#settings"
        assert {address.split(":")[0] for address in page.requests} <= {"file", "data"}
        assert [address for address in page.requests if address.startswith("file")] == [plain_page.as_uri()]
        assert page.faults == []

    with_page(plain_page, tmp_path / "profile", use)


def test_a_browser_runs_nothing_that_others_wrote(hostile_page, tmp_path):
    find_chromium()

    async def use(page: Page) -> None:
        assert await page.evaluate("window.hit === undefined")
        assert await page.evaluate('document.querySelectorAll("script").length') == 1
        assert await page.evaluate("document.body.textContent.includes('<script>window.hit=1</script>')")
        assert page.faults == []
        # the page's own policy is what forbids it, were it ever let through
        await page.evaluate(
            "const added = document.createElement('script'); added.textContent = 'window.hit = 1';"
            "document.body.append(added);"
        )
        assert await page.evaluate("window.hit === undefined")
        assert any("Content Security Policy" in fault for fault in page.faults)

    with_page(hostile_page, tmp_path / "profile", use)
