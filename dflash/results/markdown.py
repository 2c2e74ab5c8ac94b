"""A run -> its report in Markdown. Pure: the words and tables; pictures are given by name.

A report can always be written: where a number is missing, `n/a` stands and below the table the reason.
Text that a model, a server, a file or a user made is escaped. Headings are the anchors; they do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dflash.results import (
    markdown_acceptance,
    markdown_answer,
    markdown_breakdowns,
    markdown_server,
    markdown_settings,
)
from dflash.results import markdown_sections as sections
from dflash.results.finding import Finding
from dflash.results.formats import UNKNOWN
from dflash.results.markdown_merge import merged
from dflash.results.markdown_scores import task_scores
from dflash.results.markdown_text import bullets, code_block, escape, table
from dflash.results.store import Run
from dflash.results.summary import Group, RunSummary
from dflash.results.tables import finding_lines
from dflash.results.titles import short_titles, what_differs

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
    """The whole report. `pictures` are named relative to the report's own folder."""
    names = {Path(picture).name for picture in pictures}
    parts = [f"# {escape(run.info.name)}", *markdown_answer.answer(run.info, summary)]
    parts += markdown_answer.averages(summary)
    parts += _section("Speed", summary, sections.speed, names, ("speedup.png", "decode_speed.png"))
    servers = replace(summary, groups=summary.server_groups)
    if servers.groups:
        parts += ["## Concurrency", *markdown_server.concurrency(servers.groups)]
        for title, render, words in markdown_server.sections(summary.slo):
            parts += _section(title, servers, render, names, (), words)
    parts += _section("Acceptance", summary, markdown_acceptance.acceptance, names, ())
    if servers.groups:
        words = markdown_server.COUNTERS_WORDS
        parts += _section("Server counters", servers, markdown_server.counters, names, (), words)
    parts += _section(
        "Histogram and positions",
        summary,
        markdown_acceptance.histograms,
        names,
        ("acceptance_histogram.png", "acceptance_per_position.png"),
    )
    parts += _section("Agreement", summary, markdown_acceptance.agreement, names, ())
    parts += ["## Task score", *task_scores(summary.groups)]
    parts += _section("Output lengths", summary, sections.output_lengths, names, ("output_lengths.png",))
    parts += _section("Where the time goes", summary, sections.step_time, names, ())
    parts += _section("Memory", summary, sections.memory, names, ())
    parts += _section("By category", summary, markdown_breakdowns.categories, names, ("categories.png",))
    parts += _section("By prompt length", summary, markdown_breakdowns.prompt_lengths, names, ())
    parts += _section("By turn", summary, markdown_breakdowns.turns, names, ())
    parts += _section("Errors", summary, sections.errors, names, ())
    parts += ["## Findings", *_findings(summary)]
    parts += ["## What the numbers mean", *_meanings(bool(servers.groups))]
    parts += ["## Machine and versions", *markdown_settings.environment(run.info)]
    parts += ["## Settings", *markdown_settings.settings(run.info, summary)]
    parts += ["## Command", code_block(run.info.command or UNKNOWN)]
    return "\n\n".join(parts) + "\n"


def _section(
    title: str,
    summary: RunSummary,
    render: Callable[[Group], list[str]],
    names: set[str],
    pictures: Iterable[str],
    words: str = "",
) -> list[str]:
    """Args: words: what holds for every group, said once."""
    bodies = [(escape(name), render(group)) for name, group in short_titles(summary.groups)]
    parts = [f"## {title}", *([words] if words else [])]
    parts += merged(bodies, what_differs(summary.groups)) if bodies else ["Nothing was run."]
    return parts + [f"![{_alternative(name)}]({name})" for name in pictures if name in names]


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


def _meanings(on_server: bool) -> list[str]:
    rows = [
        [f"**{name}**", meaning]
        for name, meaning in MEANINGS.items()
        if on_server or name not in SERVER_FIGURES
    ]
    return [
        table(["figure", "definition"], rows, num_left=2),
        f"How each is measured, and its traps: [METHODOLOGY.md]({METHODOLOGY}).",
    ]
