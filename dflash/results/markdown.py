"""A run -> its report in Markdown. Pure: the words and tables; pictures are given by name.

A report can always be written: where a number is missing, `n/a` stands and below the table the reason.
Text that a model, a server, a file or a user made is escaped. Headings are the anchors; they do not change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dflash.results import (
    markdown_acceptance,
    markdown_answer,
    markdown_breakdowns,
    markdown_paper,
    markdown_server,
    markdown_settings,
    markdown_sweep,
)
from dflash.results import markdown_sections as sections
from dflash.results.finding import Finding
from dflash.results.markdown_merge import Body, merged
from dflash.results.markdown_scores import task_scores
from dflash.results.markdown_text import bullets, escape, table
from dflash.results.published import Published
from dflash.results.records import RunInfo
from dflash.results.store import Run
from dflash.results.summary import Group, RunSummary
from dflash.results.tables import finding_lines
from dflash.results.titles import short_titles, what_differs
from dflash.results.unread import UnreadRun

METHODOLOGY = "../../METHODOLOGY.md"

# One line per metric of the report.
MEANINGS = {
    "speedup": "baseline TPOT / arm TPOT, pooled over requests completed in both, each with a decode token",
    "end to end": "sum of the baseline's request times / that of the arm's, same requests (`e2el_speedup`)",
    "decode speed": "decode tokens / decode time, pooled (`decode_tok_s`); the prefill is in neither",
    "TTFT": "time from sending a request to its first output token, mean over requests (`ttft_s`)",
    "TPOT": "decode time / decode tokens, pooled (`tpot_s`)",
    "step time": "decode time / decode steps (`decode_step_s`); a step: one target forward after prefill",
    "acceptance length": "tokens delivered per decode step, the target's own token included, pooled: 1..B",
    "request mean": "mean over requests of each one's acceptance length: all weigh the same",
    "as engines count": "1 + accepted / verify steps, cut tokens included (`acceptance_length_untrimmed`)",
    "break-even": "arm step time / baseline TPOT: with a lower acceptance length the arm is slower",
    "agreement": "share of prompts whose greedy output equals the baseline's, by token ids where known",
    "task score": "share of scored requests whose answer is right (`task_score`); pass@1 for code",
    "output ratio": "arm output tokens / baseline output tokens, over requests completed in both",
    "acceptance rate": "accepted draft tokens / drafted tokens, pooled, untrimmed; not the acceptance length",
    "B, B-1": "tokens in one verify forward: 1 anchor that is already known, and B-1 draft tokens",
    "output throughput": "output tokens / time with a request in flight (`output_tok_s`): of the whole server",
    "total": "prompt and output tokens / the same time (`total_tok_s`)",
    "requests/s": "completed requests a second (`completed_req_s`); an open loop's pauses are part of the time",
    "steady": "while the set number of requests was in flight (`steady_output_tok_s`, `steady_decode_tok_s`)",
    "peak": "most tokens that arrived in 1 s, every chunk with its tokens (`peak_output_tok_s`)",
    "throughput speedup": "arm output throughput / baseline output throughput (`throughput_speedup`); closed loop only",
    "ICL": "gap between chunks that carry tokens (`icl_s`); a chunk may carry several: no time per token",
    "TTFT from due": "from when the load wanted it sent to its first token (`ttft_from_due_s`); open loop only",
    "goodput": "completed requests a second that keep every limit (`goodput_req_s`); failed ones never do",
    "cached": "share of the prompt tokens that came from the server's prefix cache (`cached_prompt_share`)",
    "by counters": "acceptance from the server's own counters (`acceptance_length_untrimmed_counters`, "
    "`acceptance_length_counters`)",
    "loop lag": "how late this process's event loop woke up (`loop_lag_p99_s`, `loop_lag_max_s`)",
    "[low, high]": "95 % percentile bootstrap over prompts (2,000 resamples, seed 0, one draw for both); "
    "it covers the choice of prompts, not restarts of the engine",
}

# Figures that only arms on servers have.
SERVER_FIGURES = frozenset(
    (
        "output throughput",
        "total",
        "requests/s",
        "steady",
        "peak",
        "throughput speedup",
        "ICL",
        "TTFT from due",
        "goodput",
        "cached",
        "by counters",
        "loop lag",
    )
)


def render_report(run: Run, summary: RunSummary, pictures: Sequence[Path] = ()) -> str:
    """The report of one run. `pictures` are named relative to the report's own folder."""
    return render_runs([run.info], summary, pictures)


def render_runs(
    infos: Sequence[RunInfo],
    summary: RunSummary,
    pictures: Sequence[Path] = (),
    unread: Sequence[UnreadRun] = (),
    published: Published | None = None,
    methodology: str | None = METHODOLOGY,
) -> str:
    """The whole report of one run or of several together.

    Args:
        pictures: named relative to the report's own folder.
        unread: what could not be read of the runs that were asked for.
        published: figures to show beside the measured ones.
        methodology: where the page that defines the figures is, seen from the report; None: not near it.
    """
    names = {Path(picture).name for picture in pictures}
    title = " + ".join(escape(info.name) for info in infos) or "Nothing could be read"
    parts = [f"# {title}", *(f"**Not in this report: {escape(item.words)}.**" for item in unread)]
    parts += markdown_answer.answer(infos, summary)
    sections_shown = _sections(infos, summary, names, published, methodology)
    parts.append(_contents([title for title, _ in sections_shown]))
    for title, body in sections_shown:
        parts += [f"## {title}", *body]
    return "\n\n".join(parts) + "\n"


def anchor(heading: str) -> str:
    """What a heading is linked by: as Markdown readers make it from the words."""
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


def anchors_of(report: str) -> dict[str, str]:
    """Heading -> anchor of every section of a report."""
    titles = re.findall(r"^## (.*)$", report, re.MULTILINE)
    return {title: anchor(title) for title in titles}


def _contents(titles: Sequence[str]) -> str:
    """A link to every section."""
    return " · ".join(f"[{title}](#{anchor(title)})" for title in titles)


def _sections(
    infos: Sequence[RunInfo],
    summary: RunSummary,
    names: set[str],
    published: Published | None,
    methodology: str | None,
) -> list[tuple[str, list[str]]]:
    """Every section with its heading; some are there only where there is something to show."""
    found: list[tuple[str, list[str]]] = []

    def add(
        title: str,
        body: Body | Callable[[Group], list[str]],
        pictures: Iterable[str] = (),
        words: str = "",
        of: RunSummary = summary,
    ) -> None:
        shown = _of_groups(of, body, words) if callable(body) else list(body)
        images = [f"![{_alternative(name)}]({name})" for name in pictures if name in names]
        if shown or images:
            found.append((title, [*shown, *images]))

    servers = replace(summary, groups=summary.server_groups)
    repeated = any(cell.between_repeats for cell in summary.cells)
    add("Averages over data sets", markdown_answer.averages(summary))
    add("Speed", sections.speed, ("speedup.png", "decode_speed.png"))
    add("Block size", markdown_sweep.block_sizes(summary.groups))
    add("Between repeats", markdown_sweep.repeats if repeated else ())
    if servers.groups:
        add("Concurrency", markdown_server.concurrency(servers.groups), ("concurrency.png", "pareto.png"))
        for title, render, words in markdown_server.sections(summary.slo):
            add(title, render, (), words, servers)
    add("Paper's form", markdown_paper.paper_form(summary, published), ("published.png",))
    add("Acceptance", markdown_acceptance.acceptance)
    if servers.groups:
        add("Server counters", markdown_server.counters, (), markdown_server.COUNTERS_WORDS, servers)
    histogram = ("acceptance_histogram.png", "acceptance_per_position.png", "acceptance_by_place.png")
    add("Histogram and positions", markdown_acceptance.histograms, histogram)
    add("Agreement", markdown_acceptance.agreement)
    add("Task score", task_scores(summary.groups))
    add("Output lengths", sections.output_lengths, ("output_lengths.png",))
    add("Where the time goes", sections.step_time, ("step_time.png", "timeline.png"))
    add("Memory", sections.memory)
    add("By category", markdown_breakdowns.categories, ("categories.png",))
    add("By prompt length", markdown_breakdowns.prompt_lengths)
    add("By turn", markdown_breakdowns.turns)
    add("Errors", sections.errors)
    add("Findings", _findings(summary))
    add("What the numbers mean", _meanings(bool(servers.groups), methodology))
    add("Machine and versions", markdown_settings.environment(infos))
    add("Settings", markdown_settings.settings(infos, summary))
    add("Command", markdown_settings.commands(infos))
    return found


def _of_groups(summary: RunSummary, render: Callable[[Group], list[str]], words: str) -> list[str]:
    """What a section shows of every group, put together.

    Args:
        words: what holds for every group, said once.
    """
    bodies = [(escape(name), render(group)) for name, group in short_titles(summary.groups)]
    shown = merged(bodies, what_differs(summary.groups)) if bodies else ["Nothing was run."]
    return [words, *shown] if words else shown


def _alternative(name: str) -> str:
    return name.removesuffix(".png").replace("_", " ")


def _findings(summary: RunSummary) -> list[str]:
    """Worst first; what holds in several groups once, with the groups."""
    found: dict[tuple[Finding, str], list[str]] = {}
    for title, group in short_titles(summary.groups):
        for finding, labels in finding_lines(group):
            found.setdefault((finding, labels), []).append(title)
    order = {"error": 0, "warning": 1, "info": 2}
    lines = []
    for (finding, labels), titles in sorted(found.items(), key=lambda item: order[item[0][0].severity]):
        everywhere = len(titles) == len(summary.groups)
        lead = "" if everywhere else f"{escape(', '.join(titles))}; "
        lines.append(
            f"**{finding.severity}** ({lead}{escape(labels)}): {escape(finding.sentence)} (`{finding.code}`)"
        )
    return [bullets(lines) if lines else "None: every identity holds and nothing needs a warning."]


def _meanings(on_server: bool, methodology: str | None) -> list[str]:
    rows = [
        [f"**{name}**", meaning]
        for name, meaning in MEANINGS.items()
        if on_server or name not in SERVER_FIGURES
    ]
    page = (
        "METHODOLOGY.md beside dflash's README" if methodology is None else f"[METHODOLOGY.md]({methodology})"
    )
    return [
        table(["figure", "definition"], rows, num_left=2),
        f"How each is measured, and its traps: {page}.",
    ]
