"""Downloads end: in the file that was asked for, or in one line that says why not."""

from __future__ import annotations

import errno
import hashlib
import io
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_host import Host, serving

import dflash.datasets.download as downloads
from dflash import reachability
from dflash.datasets.download import NoSpaceError, check_free_space, download, format_size
from dflash.errors import UnavailableError
from dflash.reachability import find_unreachable

CONTENT = b'{"a": 1}\n' * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "_unreachable", {})


@pytest.fixture
def host() -> Iterator[Host]:
    with serving(Host({"/owner/name/commit/rows.jsonl": CONTENT})) as host:
        yield host


def fetch(
    host: Host, target: Path, sha256: str | None = SHA256, num_bytes: int | None = len(CONTENT)
) -> None:
    download(f"{host.url}/owner/name/commit/rows.jsonl", target, sha256=sha256, num_bytes=num_bytes)


def test_a_file(tmp_path: Path, host: Host) -> None:
    fetch(host, tmp_path / "rows.jsonl")
    assert (tmp_path / "rows.jsonl").read_bytes() == CONTENT
    fetch(host, tmp_path / "again", sha256=None, num_bytes=None)
    assert (tmp_path / "again").read_bytes() == CONTENT
    kinds = [asked.split()[0] for asked in host.asked]
    assert kinds == ["HEAD", "GET", "GET"], "whether the host is there is asked once"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda host: host.files.clear(), r"rows.jsonl of 127.0.0.1:\d+ cannot be had \(status 404\)"),
        (lambda host: setattr(host, "status", 500), r"cannot be had \(status 500\)"),
        (lambda host: setattr(host, "status", 503), r"cannot be reached \(status 503\)"),
        (lambda host: host.files.update(dict.fromkeys(host.files, CONTENT[:-9])), rf"and not {SHA256}"),
        (lambda host: setattr(host, "cut_short_by", 9), r"rows.jsonl"),
    ],
)
def test_faults_are_one_line(tmp_path: Path, host: Host, change: Any, fault: str) -> None:
    change(host)
    if host.cut_short_by:
        host.files["/owner/name/commit/rows.jsonl"] = CONTENT[:-9]
    with pytest.raises(UnavailableError, match=fault) as raised:
        fetch(host, tmp_path / "rows.jsonl")
    assert "\n" not in str(raised.value)
    assert len(host.asked) <= 2, "nothing is tried again"


def test_a_host_that_is_not_there_is_asked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving(Host()) as gone:
        pass
    with pytest.raises(UnavailableError, match=r"cannot be reached \(Connection refused\)"):
        fetch(gone, tmp_path / "rows.jsonl")
    monkeypatch.setattr(reachability, "_ask", lambda url: pytest.fail("asked again"))
    assert find_unreachable(f"{gone.url}/elsewhere") == "Connection refused"


def test_a_name_that_is_looked_up_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(reachability, "REACH_TIMEOUT_S", -0.99)
    monkeypatch.setattr(reachability, "_ask", lambda url: never.wait())
    assert find_unreachable("http://nowhere.example/file") == "no answer in 0.01 s"
    never.set()


def test_a_full_disk_is_found_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=17_000))
    with pytest.raises(NoSpaceError, match=r"18 kB are needed in .*, and 17 kB are free: .*--datasets-cache"):
        fetch(host, tmp_path / "rows.jsonl")
    check_free_space(tmp_path / "not" / "there", 17_000)


def test_a_disk_that_fills_is_no_fault_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    class FullFile(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda *arguments, **options: FullFile())
    with pytest.raises(OSError, match="No space left on device") as raised:
        fetch(host, tmp_path / "rows.jsonl")
    assert raised.value.errno == errno.ENOSPC


def test_a_bar_for_large_files_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with downloads.progress("rows.jsonl", 200_000_000) as advance:
        advance(100)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with downloads.progress("rows.jsonl", 100) as advance:
        advance(100)
    assert capsys.readouterr() == ("", "")
    with downloads.progress("rows.jsonl", 200_000_000) as advance:
        advance(100)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "rows.jsonl" in shown.err


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(999, "0.999 kB"), (48_929, "48.9 kB"), (673_000_000, "673 MB"), (4.49e9, "4.49 GB")],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert format_size(num_bytes) == text
