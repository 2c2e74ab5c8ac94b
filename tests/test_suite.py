"""Suites: includes, grids, overrides, and what is typed beside them; the shipped ones run on the simulated backend."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from made_up_prompts import use_made_up_prompts

from dflash.arguments import benchmark_command, parse_benchmark_arguments
from dflash.config import BenchmarkConfig
from dflash.errors import UsageError
from dflash.results.store import load_run
from dflash.results.summary import summarise_run
from dflash.runner import execute
from dflash.stages import make_stages
from dflash.suite import load_suite, shipped_suites

BASE = """
[settings]
backend = "vllm"
dataset = ["gsm8k", "humaneval"]
num-prompts = 64
"""
SWEEP = """
about = "one sentence"
gate.fail-if = ["speedup:-5%"]
include = "base.toml"
[settings]
num-prompts = 32
[[grid]]
concurrency = [1, 8]
[[grid]]
concurrency = 1
temperature = 1.0
[[override]]
where = { dataset = "humaneval", concurrency = 8 }
set = { max-new-tokens = 512, num-prompts = 8 }
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    return tmp_path / "sweep.toml"


def parse(path: Path | str, line: str = "") -> BenchmarkConfig:
    return parse_benchmark_arguments(["--suite", str(path), *shlex.split(line)])


def cells(config: BenchmarkConfig) -> list[tuple[object, ...]]:
    found = [
        (name, load, part.temperature, part.num_prompts, part.max_new_tokens)
        for part in config.parts
        for name in part.dataset_names
        for load in part.loads
    ]
    return sorted(found, key=repr)


def test_settings_grids_and_overrides_make_the_cells(sweep: Path) -> None:
    config = parse(sweep)
    assert {part.backend for part in config.parts} == {"vllm"}
    assert cells(config) == [
        ("gsm8k", 1, 0.0, 32, None),
        ("gsm8k", 1, 1.0, 32, None),
        ("gsm8k", 8, 0.0, 32, None),
        ("humaneval", 1, 0.0, 32, None),
        ("humaneval", 1, 1.0, 32, None),
        ("humaneval", 8, 0.0, 8, 512),
    ]


def test_what_is_typed_holds_over_all_of_it(sweep: Path) -> None:
    config = parse(sweep, "--num-prompts 4 --dataset humaneval --base-url http://host:1")
    assert cells(config) == [
        ("humaneval", 1, 0.0, 4, None),
        ("humaneval", 1, 1.0, 4, None),
        ("humaneval", 8, 0.0, 4, 512),
    ]
    assert {part.base_url for part in config.parts} == {"http://host:1"}
    assert {part.num_prompts for part in parse(sweep, "--smoke").parts} == {None}


def test_a_value_that_is_the_default_is_typed_all_the_same(sweep: Path) -> None:
    config = parse(sweep, "--temperature 0 --run x")
    assert {part.temperature for part in config.parts} == {0.0}
    words = shlex.split(benchmark_command(config))
    assert words[3:] == ["--suite", str(sweep), "--temperature", "0.0", "--run", "x"]
    assert parse_benchmark_arguments(words[3:]).parts == config.parts


def test_an_override_can_drop_cells_and_split_a_group(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        '[settings]\nbackend = "simulated"\ndataset = "math"\n'
        '[[override]]\nwhere = { dataset = ["aime24", "aime25"] }\ndrop = true\n'
    )
    names = [name for part in parse(path).parts for name in part.dataset_names]
    assert "gsm8k" in names
    assert not {"aime24", "aime25"} & set(names)


def test_a_list_may_be_one_text(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        '[settings]\nbackend = "vllm"\ndataset = "gsm8k,mbpp"\nconcurrency = "1,8"\n'
        '[[override]]\nwhere = { dataset = "mbpp", concurrency = 8 }\ndrop = true\n'
    )
    assert cells(parse(path)) == [
        ("gsm8k", 1, 0.0, None, None),
        ("gsm8k", 8, 0.0, None, None),
        ("mbpp", 1, 0.0, None, None),
    ]


def test_files_of_a_suite_lie_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('[settings]\nbackend = "simulated"\nscript = "faults.toml"\n')
    assert parse(path).script == str(tmp_path / "faults.toml")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[settings", "cannot be read"),
        ("[setings]\n", "unknown entry 'setings'"),
        (
            "[settings]\nnum-promts = 3\n",
            "unknown setting 'num-promts' in settings: did you mean 'num-prompts'",
        ),
        ("[settings]\nnum-prompts = 0\n", "--num-prompts 0 is below 1"),
        ("[settings]\ntop-k = 3\n", "--top-k has no effect at temperature 0"),
        ('[settings]\napi-key = "s"\n', "api-key cannot stand in a suite: type --api-key beside it"),
        ("[settings]\ntrust-remote-code = true\n", "trust-remote-code cannot stand in a suite"),
        ('[settings]\nrun = "x"\n', "run cannot stand in a suite"),
        ("[[grid]]\nrepeats = 3\n", "repeats holds for the whole sweep: move it to"),
        ('include = "nowhere"\n', "names 'nowhere', which is no suite and no file"),
        ('include = "s.toml"\n', "includes itself"),
        ("include = 3\n", "include has the wrong form"),
        ('[[override]]\nwhere = { backend = "vllm" }\ndrop = true\n', "names cells by 'backend'"),
        ("[[override]]\nset = { seed = 1 }\n", "names no cell"),
        ('[[override]]\nwhere = { dataset = "gsm8k" }\n', "must say what holds for its cells"),
        ('[[override]]\nwhere = { dataset = "gsm8k" }\ndrop = true\n', "matches no cell"),
        ('[[override]]\nwhere = { dataset = "quickstart" }\ndrop = true\n', "leaves no cell"),
        ('[[override]]\nwhere = { dataset = "quickstart" }\nskip = true\n', "unknown entry 'skip'"),
    ],
)
def test_a_wrong_suite_is_one_clear_line(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "s.toml").write_text(content)
    with pytest.raises(UsageError, match=said) as caught:
        parse(tmp_path / "s.toml")
    assert "\n" not in str(caught.value)


def test_no_such_suite_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="name a TOML file, or one of ci, paper, quick"):
        parse("quik")


def test_two_grids_that_would_not_be_back_to_back_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('[settings]\nbackend = "simulated"\n[[grid]]\nblock-size = 2\n[[grid]]\nblock-size = 4\n')
    with pytest.raises(UsageError, match="two grids of the suite run quickstart under the same settings"):
        make_stages(parse(path), lambda part: ())


def test_the_paper_suite_has_its_tasks_and_both_temperatures() -> None:
    config = parse("paper", "--model m --draft-model d")
    tasks = {"gsm8k", "math500", "aime25", "humaneval", "mbpp", "livecodebench", "mt-bench"}
    for temperature in (0.0, 1.0):
        parts = [part for part in config.parts if part.temperature == temperature]
        assert {name for part in parts for name in part.dataset_names} == tasks
        assert {part.max_new_tokens for part in parts} == {2048}
        assert {part.num_prompts for part in parts if "humaneval" in part.datasets} == {164}


@pytest.mark.parametrize("name", sorted(shipped_suites()))
def test_the_shipped_suites_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    use_made_up_prompts(monkeypatch, num_prompts=2)
    assert load_suite(name).about
    config = parse(
        name, f"--backend simulated --output-dir {tmp_path} --run {name} --max-new-tokens 16 --warmup 0"
    )
    outcome = execute(config)
    assert outcome.error is None
    run = load_run(tmp_path / name)
    assert {cell.status for cell in run.info.cells} == {"completed"}
    planned = sum(cell.num_requests or 0 for cell in run.info.cells)
    assert len(run.records) == planned == len({(record.cell_id, record.unit) for record in run.records})
    assert run.info.config["suite"] == name
    assert len(run.info.config["parts"]) == len(config.parts)
    again = execute(config)
    assert again.run.records == run.records, "nothing is left to do"
    summarise_run(run)


def test_what_a_suite_says_for_other_backends_is_no_fault_on_servers(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('[settings]\ndraft-model = "d"\nmodel = "m"\ndevice = "cpu"\nforce-block-size = true\n')
    assert parse(path, "--backend vllm --base-url http://host:1").parts[0].draft_model == "d"
    with pytest.raises(UsageError, match="--device says nothing to a server"):
        parse(path, "--backend vllm --base-url http://host:1 --device cuda")


def test_a_baseline_that_a_suite_leaves_out_is_not_run_because_a_server_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('[settings]\narms = ["dflash"]\n')
    assert parse(path, "--backend vllm --base-url http://host:1").parts[0].arms == ("dflash",)
    with pytest.raises(UsageError, match="--baseline-url names one"):
        parse(path, "--backend vllm --base-url http://host:1 --baseline-url http://host:2")
