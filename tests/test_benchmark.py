"""The verb `benchmark`, as it is called: what it prints, what it writes, and the code it ends with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash.__main__ import main as dispatch
from dflash.command_line import error_line, exit_code_of, run_verb
from dflash.errors import UnavailableError, UsageError
from dflash.results.store import load_run

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parent
# The verb with prompts that need no files.
WITH_MADE_UP_PROMPTS = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import dflash.execution
import dflash.runner
from made_up_prompts import made_up_prompts
dflash.runner.load_prompt_sets = lambda config: [made_up_prompts(dataset=name) for name in config.datasets]
dflash.execution.load_warmup_texts = lambda: ("warm", "up")
from dflash.benchmark import main
sys.exit(main(sys.argv[1:]))
"""


def call(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITH_MADE_UP_PROMPTS, "--backend", "simulated", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), **variables},
        timeout=120,
        check=False,
    )


def scenario(folder: Path, **values: object) -> str:
    (folder / "scenario.json").write_text(json.dumps(values))
    return "scenario.json"


def test_a_run_prints_its_table_and_writes_its_report(tmp_path: Path) -> None:
    done = call("--run", "first", "--block-size", "2,4", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "dflash B=4" in done.stdout
    assert "reports/first/report.md" in done.stdout
    assert "4 prompts in baseline, dflash B=2, dflash B=4" in done.stderr
    assert (tmp_path / "reports/first/report.md").stat().st_size > 500
    run = load_run(tmp_path / "reports/first")
    assert run.info.command == "python -m dflash.benchmark --backend simulated --block-size 2,4 --run first"
    assert run.info.segments[0].argv == ("--backend", "simulated", "--run", "first", "--block-size", "2,4")
    assert len(run.records) == 12


def test_json_on_standard_output_stands_alone(tmp_path: Path) -> None:
    done = call("--json", "-", folder=tmp_path)
    document = json.loads(done.stdout)
    assert document["exit_code"] == 0
    assert [cell["arm"] for cell in document["cells"]] == ["baseline", "dflash"]
    assert document["cells"][1]["speedup"]["value"] > 0
    assert document["cells"][0]["speedup"] is None
    assert document["cells"][1]["status"] == "completed"


def test_quiet_prints_nothing_and_writes_the_json(tmp_path: Path) -> None:
    done = call("--quiet", "--json", "out.json", folder=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    assert len(json.loads((tmp_path / "out.json").read_text())["cells"]) == 2


@pytest.mark.parametrize(("arms", "other"), [("baseline", "baseline"), ("dflash", "dflash")])
def test_one_arm_prints_the_command_that_adds_the_other(tmp_path: Path, arms: str, other: str) -> None:
    done = call("--arms", arms, "--run", "r", folder=tmp_path)
    assert done.returncode == 0
    assert "speedup is n/a" in done.stdout
    command = next(line for line in done.stdout.splitlines() if line.startswith("  python -m"))
    assert command.split() == ["python", "-m", "dflash.benchmark", "--backend", "simulated", "--run", "r"]
    again = call(*command.split()[5:], folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert len(load_run(tmp_path / "reports/r").info.cells) == 2


def test_list_prints_the_plan_and_makes_nothing(tmp_path: Path) -> None:
    done = call("--list", "--block-size", "2,4", "--dataset", "gsm8k,humaneval", folder=tmp_path)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 6 + 1, "and the sum"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--block-size", "1"), "error: --block-size 1 is below 2"),
        (("--nonsense",), "error: unrecognized arguments: --nonsense"),
        (("--concurrency", "4"), "error: --concurrency 4: backend 'simulated' runs at most 1"),
        (("--run", "../x"), "error: --run '../x' is no run name"),
        (("--script", "none.toml"), "error: cannot read the scenario none.toml"),
        (("--json", "no/such/folder/x.json"), "error: --json: there is no folder no/such/folder"),
        (("--backend", "abacus"), "error: unknown backend 'abacus'"),
        (("--block-size", "99"), "error: block size 99 is above 16"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = call(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert not (tmp_path / "reports").exists(), "nothing half-written"


def test_too_many_failures_are_reported_with_code_3(tmp_path: Path) -> None:
    script = scenario(tmp_path, faults=[{"action": "error", "request": 2, "kind": "out_of_memory"}])
    done = call("--script", script, "--run", "r", "--json", "out.json", folder=tmp_path)
    assert done.returncode == 3
    assert "error: 1 of 4 requests failed" in done.stderr
    assert "out_of_memory 1" in done.stderr
    assert "8 requests are kept in reports/r" in done.stderr
    assert (tmp_path / "reports/r/report.md").exists()
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["exit_code"] == 3
    assert call("--script", script, "--max-error-rate", "0.25", folder=tmp_path).returncode == 0


@pytest.mark.parametrize("action", ["sigint", "sigterm", "interrupt"])
def test_an_interrupt_reports_what_was_measured_with_code_130(tmp_path: Path, action: str) -> None:
    script = scenario(tmp_path, faults=[{"action": action, "request": 5}])
    done = call("--script", script, "--run", "r", "--json", "out.json", folder=tmp_path)
    assert done.returncode == 130
    assert "interrupted" in done.stderr
    assert "Traceback" not in done.stderr
    assert "dflash" in done.stdout
    assert (tmp_path / "reports/r/report.md").exists()
    run = load_run(tmp_path / "reports/r")
    assert [cell.status for cell in run.info.cells] == ["interrupted", "interrupted"]
    assert [record.finish_reason for record in run.records].count("cancelled") == 1
    assert json.loads((tmp_path / "out.json").read_text())["exit_code"] == 130
    assert "--run r" in done.stderr.splitlines()[-1]
    assert call("--script", scenario(tmp_path), "--run", "r", folder=tmp_path).returncode == 0
    assert len(load_run(tmp_path / "reports/r").records) == 8


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_run_is_read_and_resumed(tmp_path: Path) -> None:
    script = scenario(tmp_path, faults=[{"action": "sigkill", "request": 5}])
    done = call("--script", script, "--run", "r", "--quiet", folder=tmp_path)
    assert done.returncode == -9
    run = load_run(tmp_path / "reports/r")
    assert [cell.status for cell in run.info.cells] == ["running", "running"]
    assert run.info.segments[0].wall_ns is None
    assert len(run.records) == 5
    assert call("--script", scenario(tmp_path), "--run", "r", "--quiet", folder=tmp_path).returncode == 0
    run = load_run(tmp_path / "reports/r")
    assert [cell.status for cell in run.info.cells] == ["completed", "completed"]
    assert len({(record.cell_id, record.unit) for record in run.records}) == len(run.records) == 8


def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    code = """
import signal
from dflash.interrupts import Interrupts
with Interrupts():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        print("first", flush=True)
        signal.raise_signal(signal.SIGINT)
print("never")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "first\n")


def test_a_crash_is_code_70_and_says_how_to_see_more(tmp_path: Path) -> None:
    script = scenario(tmp_path, faults=[{"action": "crash", "request": 5, "message": "unforeseen"}])
    done = call("--script", script, "--run", "r", folder=tmp_path)
    assert done.returncode == 70
    assert "internal error: RuntimeError: unforeseen" in done.stderr
    assert "DFLASH_DEBUG=1" in done.stderr
    assert "Traceback" not in done.stderr
    run = load_run(tmp_path / "reports/r")
    assert [cell.status for cell in run.info.cells] == ["failed", "failed"]
    assert (tmp_path / "reports/r/report.md").exists()
    assert "Traceback" in call("--script", script, folder=tmp_path, DFLASH_DEBUG="1").stderr


def test_no_file_of_a_run_names_the_home_folder(tmp_path: Path) -> None:
    script = tmp_path / "scenario.json"
    scenario(tmp_path)
    done = call("--script", str(script), "--run", "r", "--json", "-", folder=tmp_path, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    for path in (tmp_path / "reports/r").glob("*.json*"):
        assert str(tmp_path) not in path.read_text()


def test_every_error_is_one_line_with_its_code() -> None:
    assert error_line(UsageError("a\nb", "c")) == "error: a b: c"
    assert error_line(KeyboardInterrupt()) == "interrupted"
    assert error_line(ValueError("x\x1b[31m\ny")).startswith("error: internal error: ValueError: x [31m y (")
    codes = {UsageError("x"): 2, UnavailableError("x"): 4, ConnectionError(): 4, KeyError(): 70}
    assert [exit_code_of(error) for error in codes] == list(codes.values())


def test_an_error_of_a_verb_becomes_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: object) -> int:
        raise FileNotFoundError(2, "No such file or directory", "x.toml")

    assert run_verb(fail, []) == 2
    assert capsys.readouterr().err == "error: x.toml: No such file or directory\n"


def test_the_verbs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"]):
        assert dispatch(arguments) == 0
        printed = capsys.readouterr().out
        assert "benchmark" in printed
        assert "report" in printed
    assert dispatch(["--version"]) == 0
    assert capsys.readouterr().out.startswith("dflash ")
    assert dispatch(["sing"]) == 2
    assert "unknown verb 'sing'" in capsys.readouterr().err
    assert dispatch(["benchmark", "--list"]) == 0
    assert "baseline" in capsys.readouterr().out


@pytest.mark.parametrize("kept", ["stdout", "stderr", "neither"])
def test_a_reader_that_goes_away_ends_nothing(tmp_path: Path, kept: str) -> None:
    """Pipes whose other end is closed from the start: every write to them fails."""
    reader, writer = os.pipe()
    os.close(reader)
    gone = {name: writer for name in ("stdout", "stderr") if name != kept}
    process = subprocess.run(
        [sys.executable, "-c", WITH_MADE_UP_PROMPTS, "--backend", "simulated", "--run", "r"],
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        timeout=120,
        check=False,
        **({kept: subprocess.PIPE} if kept != "neither" else {}),
        **gone,
    )
    os.close(writer)
    assert process.returncode == 0
    run = load_run(tmp_path / "reports/r")
    assert [cell.status for cell in run.info.cells] == ["completed", "completed"]
    assert (tmp_path / "reports/r/report.md").exists()
    assert b"4/4" in process.stderr if kept == "stderr" else process.stderr is None


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("", 0),
        ("--help", 0),
        ("benchmark --help", 0),
        ("data list", 0),
        ("report nowhere", 2),
        ("compare no where", 2),
        ("generate --max-new-tokens 0 x", 2),
    ],
)
def test_no_verb_minds_a_reader_that_goes_away(tmp_path: Path, words: str, code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "dflash", *words.split()],
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=writer,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        timeout=120,
        check=False,
    )
    os.close(writer)
    assert done.returncode == code
