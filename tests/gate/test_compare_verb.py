"""The verb: what it reads, what it writes, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from gated_runs import ENVIRONMENT, MACHINE, made_up, write

from dflash.compare import main

ROOT = Path(__file__).parents[2]
NOISE = {"noise": 0.01, "run_noise": 0.002}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def base(tmp_path) -> str:
    return str(write(made_up("base", seed=1, **NOISE), tmp_path / "reports"))


@pytest.fixture
def new(tmp_path) -> str:
    return str(write(made_up("new", seed=2, **NOISE), tmp_path / "reports"))


@pytest.fixture
def slow(tmp_path) -> str:
    return str(write(made_up("slow", seed=3, step_ms=36.0, **NOISE), tmp_path / "reports"))


def test_the_page_is_printed(base, new, capsys):
    assert main([base, new]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# new against base: same\n")
    assert "`speedup:-5%`" in out


def test_worse_is_exit_code_1(base, slow, capsys):
    assert main([base, slow, "--fail-if", "tpot_s:+5%", "--quiet"]) == 1
    assert capsys.readouterr().out == ""


def test_every_output_says_the_same(base, slow, tmp_path, capsys):
    arguments = ["--markdown", "page.md", "--json", "gate.json", "--junit", "gate.xml", "--annotations"]
    assert main([base, slow, "--fail-if", "tpot_s:+5%", *arguments]) == 1
    assert "**worse**: `tpot_s:+5%`" in (tmp_path / "page.md").read_text(encoding="utf-8")
    document = json.loads((tmp_path / "gate.json").read_text(encoding="utf-8"))
    assert (document["verdict"], document["exit_code"]) == ("worse", 1)
    assert ElementTree.parse(tmp_path / "gate.xml").getroot().get("failures") == "1"
    out = capsys.readouterr().out
    assert out.startswith("::error title=worse")
    assert "# slow against base" not in out


def test_json_to_standard_output_is_all_there(base, new, capsys):
    assert main([base, new, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["exit_code"] == 0


@pytest.mark.parametrize("arguments", [["--json", "-"], ["--annotations"], []])
def test_a_closed_standard_output_changes_no_exit_code(base, slow, arguments, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main([base, slow, "--fail-if", "tpot_s:+5%", *arguments]) == 1


def test_gates_come_from_a_file_too(base, slow, tmp_path):
    (tmp_path / "gates.toml").write_text(
        '[gate]\nfail-if = ["error_rate:>0"]\n[[gate.for]]\narm = "dflash"\nfail-if = "tpot_s:+5%"\n',
        encoding="utf-8",
    )
    assert main([base, slow, "--gates", "gates.toml", "--json", "gate.json", "--quiet"]) == 1
    document = json.loads((tmp_path / "gate.json").read_text(encoding="utf-8"))
    assert [(item["arm"], item["gate"], item["verdict"]) for item in document["comparisons"]] == [
        ("baseline", "error_rate:>0", "same"),
        ("dflash", "error_rate:>0", "same"),
        ("dflash", "tpot_s:+5%", "worse"),
    ]


def test_strict_fails_on_what_cannot_be_told(base, tmp_path):
    vague = str(write(made_up("vague", seed=6, run_noise=0.06), tmp_path / "reports"))
    assert main([base, vague, "--fail-if", "tpot_s:+5%", "--quiet"]) == 0
    assert main([base, vague, "--fail-if", "tpot_s:+5%", "--quiet", "--strict"]) == 1


def test_unlike_runs_are_exit_code_5_and_can_be_let_pass(base, tmp_path, capsys):
    other = str(write(made_up("other", seed=2, workload={"seed": 7}, **NOISE), tmp_path / "reports"))
    assert main([base, other]) == 5
    assert "seed differs: 0 in the base, 7 in the new run" in capsys.readouterr().out
    assert main([base, other, "--allow", "seed", "--quiet"]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a"],
        ["a", "b", "c"],
        ["a", "b", "--fail-if", "speed:-5%"],
        ["a", "b", "--fial-if", "speedup:-5%"],
        ["nowhere", "nowhere-else"],
        ["a", "b", "--gates", "none.toml"],
        ["a", "b", "--calibration", "none.json"],
        ["a", "b", "--json", "no/folder/x.json"],
        ["--calibrate"],
        ["a", "b", "--json", "-", "--annotations"],
        ["a", "b", "--json", "-", "--markdown", "-"],
        ["a", "b", "--markdown", "no/folder/x.md"],
        ["a", "b", "--junit", ""],
        ["a", "b", "--json", "x", "--junit", "./x"],
        ["a", "b", "--gates", ""],
        ["a", "b", "--calibration", " "],
        ["a", "b", "--baselines", ""],
        ["a", "--accept", "--fail-if", "speedup:-5%"],
        ["a", "--accept", "--strict"],
        ["a", "--accept", "--json", "x.json"],
        ["a", "b", "--calibrate", "--strict"],
        ["a", "b", "--calibrate", "--record"],
        ["a", "b", "--calibrate", "--annotations"],
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(arguments, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_fault_of_an_output_names_its_flag(capsys):
    assert main(["a", "b", "--junit", "no/folder/x.xml"]) == 2
    assert capsys.readouterr().err.startswith("error: --junit: there is no folder")


def test_an_empty_suite_is_no_suite(base, capsys):
    assert main([base, "--accept", "--suite", ""]) == 2
    assert "--suite '' is no name" in capsys.readouterr().err


def test_a_run_against_itself_is_said(base, capsys):
    assert main([base, base]) == 0
    assert "base and new run are the same run: nothing can differ" in capsys.readouterr().out


def test_a_gate_for_no_cell_is_named(base, new, tmp_path, capsys):
    (tmp_path / "gates.toml").write_text(
        '[gate]\nfail-if = "error_rate:>0"\n[[gate.for]]\ndataset = "gms8k"\nfail-if = "tpot_s:+5%"\n',
        encoding="utf-8",
    )
    assert main([base, new, "--gates", "gates.toml"]) == 5
    assert "gate tpot\\_s:+5% gates nothing: no cell has dataset = 'gms8k'" in capsys.readouterr().out


def test_an_unknown_field_is_refused(base, new, capsys):
    assert main([base, new, "--allow", "temprature"]) == 2
    assert "there is no such field" in capsys.readouterr().err


def test_one_run_without_a_suite_is_refused(tmp_path, capsys):
    plain = str(write(made_up("plain", config={"backend": "transformers"}), tmp_path / "reports"))
    assert main([plain]) == 2
    assert "name it by --suite" in capsys.readouterr().err


def test_baselines_are_accepted_and_compared_with(base, new, slow, capsys):
    assert main([new]) == 5
    assert "no baseline was accepted for this machine" in capsys.readouterr().err
    assert main(["--accept", base]) == 0
    folder = capsys.readouterr().out.removeprefix("Accepted: ").strip()
    assert Path(folder).parts[:2] == ("reports", "baselines")
    assert Path(folder).parts[3] == "ci"
    assert main([new, "--fail-if", "tpot_s:+5%", "--record"]) == 0
    assert "## Trend" in capsys.readouterr().out
    assert main([slow, "--fail-if", "tpot_s:+5%", "--quiet"]) == 1


def test_a_run_that_fails_is_not_accepted(base, new, slow, capsys):
    main(["--accept", base, "--suite", "own"])
    assert main([base, slow, "--suite", "own", "--fail-if", "tpot_s:+5%", "--accept", "--quiet"]) == 1
    main([new, "--suite", "own"])
    assert "# new against base" in capsys.readouterr().out
    assert main([base, new, "--suite", "own", "--accept", "--quiet"]) == 0
    capsys.readouterr()
    main([new, "--suite", "own"])
    assert "# new against new" in capsys.readouterr().out
    main([base, slow, "--suite", "own", "--fail-if", "tpot_s:+5%", "--accept"])
    assert "- not accepted, for it fails" in capsys.readouterr().out
    main([base, new, "--suite", "own", "--accept"])
    assert "- accepted: reports/baselines/" in capsys.readouterr().out


def test_a_calibration_is_printed_and_kept(tmp_path, capsys):
    folders = [
        str(write(made_up(f"run-{seed}", seed=seed, **NOISE), tmp_path / "reports")) for seed in (1, 2, 3)
    ]
    assert main(["--calibrate", *folders, "--fail-if", "tpot_s:+5%", "--json", "calibration-page.json"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# Calibration from 3 runs in which nothing changed\n")
    assert "calibration.json" in out
    (kept,) = (tmp_path / "reports" / "baselines").glob("*/ci/calibration.json")
    assert main([*folders[:2], "--fail-if", "tpot_s:+5%", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {item["basis"] for item in document["comparisons"]} == {"calibration"}
    assert main([*folders[:2], "--suite", "other", "--calibration", str(kept), "--quiet"]) == 0


def test_several_runs_become_the_baseline_by_a_calibration(tmp_path, slow, capsys):
    folders = [
        str(write(made_up(f"run-{seed}", seed=seed, **NOISE), tmp_path / "reports")) for seed in range(1, 6)
    ]
    arguments = ["--suite", "own", "--fail-if", "tpot_s:+5%"]
    assert main(["--calibrate", "--accept", *folders, *arguments]) == 0
    assert "these 5 runs together are the baseline" in capsys.readouterr().out
    assert main([slow, *arguments, "--json", "-"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["base"] == "run-1 and 4 more runs"
    assert {(item["num_base_runs"], item["basis"]) for item in document["comparisons"]} == {
        (5, "baseline runs")
    }
    assert main(["--accept", folders[0], "--suite", "own", "--quiet"]) == 0
    assert main([folders[1], *arguments]) == 0
    assert "# run-2 against run-1: same" in capsys.readouterr().out


def test_a_calibration_of_another_machine_is_refused(base, new, tmp_path, capsys):
    machine = {**ENVIRONMENT, "machine": {**MACHINE, "cpu": "another"}}
    folders = [
        str(write(made_up(f"other-{seed}", seed=seed, environment=machine), tmp_path / "reports"))
        for seed in (1, 2, 3)
    ]
    assert main(["--calibrate", *folders, "--quiet"]) == 0
    (kept,) = (tmp_path / "reports" / "baselines").glob("*/ci/calibration.json")
    assert main([base, new, "--calibration", str(kept)]) == 2
    assert "the calibration is of another machine" in capsys.readouterr().err


def test_a_calibration_of_unlike_runs_is_not_kept(base, new, tmp_path, capsys):
    other = str(write(made_up("other", seed=3, workload={"seed": 7}), tmp_path / "reports"))
    assert main(["--calibrate", base, new, other, "--fail-if", "tpot_s:+5%"]) == 5
    out = capsys.readouterr().out
    assert "not kept: some of the runs cannot be compared" in out
    assert "seed differs" in out
    assert not list((tmp_path / "reports").glob("baselines/*"))


def test_a_run_that_its_own_checks_call_broken_is_said(base, tmp_path, capsys):
    odd = made_up("odd", seed=2)
    first = replace(odd.records[1], num_draft_tokens=1, num_accepted_tokens=5)
    folder = write(replace(odd, records=(odd.records[0], first, *odd.records[2:])), tmp_path / "reports")
    main([base, str(folder), "--fail-if", "tpot_s:+5%"])
    assert "- an error of the new run: dflash B=8 on gsm8k" in capsys.readouterr().out


def test_help_imports_no_heavy_package():
    code = (
        "import sys, contextlib, io\n"
        "from dflash.compare import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    main(['--help'])\n"
        "heavy = {'numpy', 'matplotlib', 'rich', 'pandas', 'torch', 'orjson'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert result.stdout.strip() == "[]"
