from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from made_up_run import made_up_run

from dflash.report import main
from dflash.results.store import RunWriter

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "made-up"
    run = made_up_run(folder)
    writer = RunWriter(folder)
    writer.write_info(run.info)
    for record in run.records:
        writer.append(record)
    writer.close()
    return folder


def test_a_stored_run_is_rendered_again(run_folder, capsys):
    assert main([str(run_folder)]) == 0
    assert (run_folder / "report.md").read_text(encoding="utf-8").startswith("# made-up\n")
    assert (run_folder / "speedup.png").exists()
    out = capsys.readouterr().out
    assert "dflash B=3" in out
    assert str(run_folder / "report.md") in out


def test_json_to_standard_output_is_all_there(run_folder, capsys):
    assert main([str(run_folder), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["run"] == str(run_folder)
    assert [cell["arm"] for cell in document["cells"]] == ["baseline", "dflash", "dflash"]


def test_an_unknown_run_is_one_line_and_exit_code_2(run_folder, tmp_path, capsys):
    assert main([str(run_folder), str(tmp_path / "nowhere")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert not (run_folder / "report.md").exists()  # nothing half-written


def test_formats_are_written_in_their_order_and_named(run_folder, capsys):
    assert main([str(run_folder), "--format", "csv, json,csv", "--reference", "paper"]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Report: ")]
    assert printed == [f"Report: {run_folder / name}" for name in ("report.csv", "report.json")]
    assert not list(run_folder.glob("*.png"))


def test_published_figures_are_shown_when_asked_for(run_folder, tmp_path):
    assert (
        main([str(run_folder), "--reference", "paper", "--quiet", "--output-dir", str(tmp_path / "out")]) == 0
    )
    report = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "Looked up in: DFlash paper (arXiv 2602.06036v2)" in report
    assert "speedup.png" in report
    assert (tmp_path / "out" / "speedup.png").exists()


def test_what_the_parser_offers_is_what_there_is():
    from dflash import report
    from dflash.results import published, report_files

    assert report.FORMATS == report_files.FORMATS
    assert report.REFERENCES == published.REFERENCES


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--quite", "run"],
        ["run", "--json"],
        ["run", "--format", "pdf"],
        ["run", "--reference", "papers"],
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(arguments, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert "--help" in captured.err


def test_a_json_file_that_cannot_be_written_is_exit_code_2(run_folder, tmp_path, capsys):
    assert main([str(run_folder), "--json", str(tmp_path / "no" / "x.json")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_help_imports_no_heavy_package():
    code = (
        "import sys, contextlib, io\n"
        "from dflash.report import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    main(['--help'])\n"
        "heavy = {'numpy', 'matplotlib', 'rich', 'pandas', 'torch', 'orjson'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert result.stdout.strip() == "[]"
