"""Folders of every earlier format, as the release of that time wrote them, are read, resumed and reported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dflash.errors import UsageError
from dflash.results.format_history import upgrade
from dflash.results.records import FORMAT_VERSION
from dflash.results.report_files import write_report
from dflash.results.store import RunWriter, load_run, read_info
from dflash.results.summary import summarise_run

GOLDEN = Path(__file__).parents[1] / "golden"
OLD_FOLDERS = sorted(path.parent for path in GOLDEN.glob("format_*/*/run.json"))


def test_there_is_a_folder_of_every_earlier_format() -> None:
    formats = {folder.parent.name for folder in OLD_FOLDERS}
    assert formats == {f"format_{number}" for number in range(1, FORMAT_VERSION)}


@pytest.mark.parametrize("folder", OLD_FOLDERS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_an_old_folder_is_read_and_written_anew(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "run")
    run = load_run(copy)
    assert run.info.format_version == FORMAT_VERSION
    assert {record.cell_id for record in run.records} <= {cell.cell_id for cell in run.info.cells}
    assert all(cell.is_timed and cell.num_requests is None for cell in run.info.cells)
    writer = RunWriter(copy)
    writer.write_info(read_info(copy))
    writer.close()
    again = load_run(copy)
    assert (again.info, again.records, again.differences) == (run.info, run.records, run.differences)
    assert b'"format_version": 2' in (copy / "run.json").read_bytes()


def test_what_a_run_in_process_of_format_1_says() -> None:
    """It was interrupted and resumed; one request failed, one output differed, and a crash tore a line of chunks."""
    run = load_run(GOLDEN / "format_1/in_process")
    assert len(run.info.segments) == 2
    assert len(run.records) == 24
    failed = [(record.unit, record.error_kind) for record in run.records if not record.completed]
    assert failed == [(("quickstart/0002", 1, 0), "out_of_memory")]
    assert {record.segment for record in run.records} == {0, 1}
    assert {difference.prompt_id for difference in run.differences} == {"quickstart/0001"}
    assert run.answers()["gsm8k/0002"] == "2"
    assert len(list(run.outputs())) == len(list(run.chunks())) == 23


def test_what_a_run_on_servers_of_format_1_says(tmp_path: Path) -> None:
    copy = shutil.copytree(GOLDEN / "format_1/on_servers", tmp_path / "run")
    run = load_run(copy)
    assert [window.block for window in run.windows()] == [0, 0]
    baseline, drafting = summarise_run(run).cells
    assert baseline.num_completed == drafting.num_completed == 6
    assert drafting.number("agreement") == 1.0
    report = write_report(run)[0]
    assert report.name == "report.md"


@pytest.mark.parametrize("version", [0, -1, "1", True, None, FORMAT_VERSION + 1])
def test_a_format_that_never_was_is_refused(version: object) -> None:
    with pytest.raises(ValueError, match="format_version is"):
        upgrade({}, version)


def test_a_later_format_is_refused_with_the_mend(tmp_path: Path) -> None:
    copy = shutil.copytree(GOLDEN / "format_1/in_process", tmp_path / "run")
    path = copy / "run.json"
    path.write_text(
        path.read_text().replace('"format_version": 1', f'"format_version": {FORMAT_VERSION + 1}')
    )
    with pytest.raises(UsageError, match=f"has format {FORMAT_VERSION + 1}, and this release reads up to"):
        load_run(copy)
