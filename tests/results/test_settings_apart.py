"""Workloads of equal data set, backend and load: told apart by their settings, on every page and in every average."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from made_up_run import made_up_run, workload

from dflash.results.csv_table import render_csv
from dflash.results.document import json_document
from dflash.results.markdown import render_runs
from dflash.results.markdown_paper import measured_rows, published_rows
from dflash.results.plot_style import series_label
from dflash.results.published import load_published
from dflash.results.published_plot import labels_of
from dflash.results.settings_apart import settings_apart
from dflash.results.store import Run
from dflash.results.summary import summarise_run
from dflash.results.titles import capped, load_words, short_load_words, short_titles, workload_fields
from dflash.results.verdicts import overall


def apart(*changes: dict[str, object], backend: str = "vllm") -> list[str]:
    return settings_apart([(backend, workload(**change)) for change in changes])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (({}, {"concurrency": 8}), ["", ""]),
        (({}, {"dataset": "gsm8k", "prompts_digest": "d2", "max_new_tokens": 2048}), ["", ""]),
        (({}, {"temperature": 1.0}), ["temperature 0", "temperature 1"]),
        (({}, {"temperature": 0.7, "dataset": "gsm8k"}), ["temperature 0", "temperature 0.7"]),
        (({}, {"target": "other"}), ["target made-up-135m", "target other"]),
        (({}, {"reasoning": "on"}), ["reasoning off", "reasoning on"]),
        (
            ({"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}),
            ["no top-p", "top-p 0.9"],
        ),
        (({}, {"max_new_tokens": 32}), ["at most 128 new tokens", "at most 32 new tokens"]),
        (({}, {"num_prompts": 1, "prompts_digest": "d2"}), ["8 prompts", "1 prompt"]),
        (({}, {"prompts_digest": "0123456789"}), ["prompts d1", "prompts 01234567"]),
        (({}, {}), ["", ""]),  # of two machines
    ],
)
def test_only_what_differs_is_named(changes: tuple[dict[str, object], ...], words: list[str]):
    assert apart(*changes) == words


def test_a_limit_that_tells_two_apart_is_named_on_all_and_prompts_only_where_they_do():
    words = apart(
        {"dataset": "gsm8k"},
        {"dataset": "gsm8k", "max_new_tokens": 32},
        {"dataset": "humaneval", "prompts_digest": "d2"},
        {"dataset": "humaneval", "prompts_digest": "d3"},
    )
    assert words == [
        "at most 128 new tokens",
        "at most 32 new tokens",
        "at most 128 new tokens · prompts d2",
        "at most 128 new tokens · prompts d3",
    ]


def test_engines_are_not_told_apart_by_what_each_calls_its_own():
    pairs = [("vllm", workload(dtype="unknown")), ("transformers", workload(target="/models/made-up-135m"))]
    assert settings_apart(pairs) == ["", ""]


def two_temperatures() -> Run:
    """Two data sets, each at temperature 0 and at temperature 1."""
    cells, records = [], []
    for place, (temperature, name) in enumerate(
        (temperature, name) for temperature in (0.0, 1.0) for name in ("gsm8k", "math500")
    ):
        run = made_up_run(dataset=name, block_sizes=(4,), seed=place)
        for cell in run.info.cells:
            changed = replace(cell.workload, target="Qwen/Qwen3-8B", temperature=temperature)
            cells.append(
                replace(cell, cell_id=f"{cell.cell_id}-{place}", workload_id=f"w{place}", workload=changed)
            )
        records += [replace(item, cell_id=f"{item.cell_id}-{place}") for item in run.records]
    return replace(run, info=replace(run.info, cells=tuple(cells)), records=tuple(records))


@pytest.fixture(scope="module")
def warm_and_cold():
    return summarise_run(two_temperatures())


def test_no_workload_takes_the_place_of_another(warm_and_cold):
    titles = [title for title, _ in short_titles(warm_and_cold.groups)]
    assert titles == [f"{name} · temperature {t}" for t in (0, 1) for name in ("gsm8k", "math500")]
    rows = measured_rows(warm_and_cold.groups)
    assert [(row.where, list(row.figures)) for row in rows] == [
        (f"simulated, concurrency 1, temperature {t}", ["gsm8k", "math500"]) for t in (0, 1)
    ]
    drafting = [group.cells[1] for group in warm_and_cold.groups]
    assert [row.figures[name][0] for row in rows for name in ("gsm8k", "math500")] == [
        cell.number("speedup_mean_tpot") for cell in drafting
    ]
    labels = [series_label(warm_and_cold, cell) for cell in warm_and_cold.cells]
    assert len(set(labels)) == len(labels) == 8


def test_every_setting_has_an_average_of_its_own(warm_and_cold):
    drafting = [group.cells[1].number("acceptance_length") for group in warm_and_cold.groups]
    cold, warm = warm_and_cold.averages
    assert (cold.settings, warm.settings) == ("temperature 0", "temperature 1")
    assert cold.acceptance_length == pytest.approx(sum(drafting[:2]) / 2)
    assert warm.acceptance_length == pytest.approx(sum(drafting[2:]) / 2)
    assert [sentence.split(" dflash")[0] for sentence in overall(warm_and_cold)] == [
        "Over 2 data sets (temperature 0)",
        "Over 2 data sets (temperature 1)",
    ]


def test_nothing_is_averaged_over_two_targets():
    runs = [made_up_run(dataset=name, block_sizes=(4,)) for name in ("gsm8k", "math500")]
    cells = [
        replace(cell, workload=replace(cell.workload, target=f"target-{place}"))
        for place, run in enumerate(runs)
        for cell in run.info.cells
    ]
    records = tuple(record for run in runs for record in run.records)
    run = replace(runs[0], info=replace(runs[0].info, cells=tuple(cells)), records=records)
    assert summarise_run(run).averages == ()


def test_published_figures_of_two_temperatures_stand_in_rows_of_their_own(warm_and_cold):
    published = load_published("paper")
    rows = [
        row
        for row in published_rows(warm_and_cold, published)
        if row.method == "DFlash (16)" and "table 1" in row.source
    ]
    assert [(row.where.rsplit(", ", 1)[1], row.figures["gsm8k"][0]) for row in rows] == [
        ("temperature 0", 5.15),
        ("temperature 1", 4.67),
    ]
    report = render_runs([two_temperatures().info], warm_and_cold, published=published)
    assert "| dflash B=4 | simulated, concurrency 1, temperature 1 | measured |" in report


def test_an_open_loop_that_nobody_capped_has_no_concurrency():
    (group, *_) = summarise_run(made_up_run()).groups
    free = replace(group.first, workload=replace(group.first.workload, concurrency=100_000, request_rate=4.0))
    held = replace(free, workload=replace(free.workload, concurrency=16))
    assert load_words(free) == "open loop at 4 requests/s"
    assert load_words(held) == "open loop at 4 requests/s, at most 16 under way"
    assert [short_load_words(cell.workload) for cell in (group.first, free, held)] == [
        "c=1",
        "4 req/s",
        "4 req/s, c<=16",
    ]
    assert capped(100_000, 4.0) is None
    assert capped(100_000, None) == 100_000
    assert workload_fields(free.workload)["concurrency"] is None
    assert workload_fields(held.workload)["concurrency"] == 16


def test_no_document_or_table_shows_the_number_that_stands_for_no_cap():
    run = made_up_run()
    load = replace(run.info.cells[0].workload, concurrency=100_000, request_rate=4.0)
    cells = tuple(replace(cell, workload=load, on_server=True) for cell in run.info.cells)
    run = replace(run, info=replace(run.info, cells=cells))
    summary = summarise_run(run)
    document = json_document(run, summary, 0)
    assert {(cell["concurrency"], cell["request_rate"]) for cell in document["cells"]} == {(None, 4.0)}
    assert run.to_pandas()["concurrency"].isna().all()
    report = render_runs([run.info], summary)
    for text in (report, render_csv(document["cells"]), json.dumps(document)):
        assert "100000" not in text
        assert "100,000" not in text


def test_the_picture_of_published_figures_tells_temperatures_apart(warm_and_cold):
    rows = [*measured_rows(warm_and_cold.groups), *published_rows(warm_and_cold, load_published("paper"))]
    labels = labels_of(rows)
    assert labels[:2] == ["dflash B=4, temperature 0", "dflash B=4, temperature 1"]
    assert "DFlash (16), DFlash paper, table 1, temperature 1" in labels
    assert len(set(labels)) == len(labels)
    assert labels_of(rows[:1]) == ["dflash B=4"]
