"""Fetching from the model hub: the real client, in a process of its own, against a host made up for it."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up_host import COMMIT, Host, serving

import dflash.datasets.hub as hub
from dflash.datasets.download import NoSpaceError
from dflash.errors import UnavailableError

ROWS = [{"question": f"What is {n}?", "answer": f"#### {n}"} for n in range(5)]
UNREACHABLE = "http://127.0.0.1:9"


def parquet_file(rows: list[dict[str, str]]) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def json_lines(rows: list[dict[str, str]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture
def host() -> Iterator[Host]:
    with serving(Host()) as host:
        yield host


FETCH = """
import json, sys
from pathlib import Path
from dflash.datasets.files import iter_rows
from dflash.datasets.hub import fetch_hub_files
from dflash.datasets.spec import HubSource
from dflash.errors import DFlashError

for source in json.loads(sys.argv[2]):
    said = []
    try:
        paths, commit = fetch_hub_files(HubSource(**{"revision": None, **source}), Path(sys.argv[1]), said.append)
        rows = [row for path in paths for row in iter_rows(path)]
        print(json.dumps({"rows": rows, "commit": commit} | ({"said": said} if said else {})))
    except DFlashError as error:
        print(json.dumps({"kind": type(error).__name__, "fault": error.fault, "mend": error.mend}))
"""
CUSTOM = """
import json, sys
from dflash.datasets.custom import CustomSource
from dflash.datasets.sources import fetch_custom_rows
from dflash.errors import DFlashError

for source in json.loads(sys.argv[2]):
    try:
        fetched = fetch_custom_rows(CustomSource(**source), lambda line: None)
        print(json.dumps({"rows": list(fetched.rows), "commit": fetched.revision, "source": fetched.source}))
    except DFlashError as error:
        print(json.dumps({"kind": type(error).__name__, "fault": error.fault, "mend": error.mend}))
"""


def run(
    code: str, tmp_path: Path, endpoint: str, *sources: dict[str, Any], **variables: str
) -> list[dict[str, Any]]:
    """In a process of its own: the client reads its settings when it is imported."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), json.dumps(sources)],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stderr == "", "no bar and no log line of a library"
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_files_of_a_mirror_in_their_order(tmp_path: Path, host: Host) -> None:
    files = {"b.jsonl": json_lines(ROWS[:2]), "a.parquet": parquet_file(ROWS[2:])}
    host.add_hub_files("openai/gsm8k", files)
    (fetched,) = run(
        FETCH, tmp_path, host.url, {"dataset_id": "openai/gsm8k", "files": list(files), "revision": COMMIT}
    )
    assert fetched == {"rows": ROWS, "commit": COMMIT}
    resolved = [asked for asked in host.asked if "/resolve/" in asked]
    assert resolved
    assert all(f"/resolve/{COMMIT}/" in asked for asked in resolved), "only the pinned revision is read"
    assert not any(asked.endswith(".py") for asked in host.asked), "no loader script is looked for"


def test_what_is_pinned_and_at_hand_needs_no_hub(tmp_path: Path, host: Host) -> None:
    host.add_hub_files("openai/gsm8k", {"a.jsonl": json_lines(ROWS)}, name="main")
    pinned = {"dataset_id": "openai/gsm8k", "files": ["a.jsonl"], "revision": COMMIT}
    newest = pinned | {"revision": None}
    (first,) = run(FETCH, tmp_path, host.url, newest)
    assert first == {"rows": ROWS, "commit": COMMIT}, "the commit that a name stood for is said"
    host.asked.clear()
    assert run(FETCH, tmp_path, host.url, pinned) == [first]
    assert host.asked == []
    assert run(FETCH, tmp_path, UNREACHABLE, pinned, newest) == [first, first]
    assert run(FETCH, tmp_path, UNREACHABLE, pinned, newest, HF_HUB_OFFLINE="1") == [first, first]


def test_a_mirror_of_another_commit_is_refused(tmp_path: Path, host: Host) -> None:
    """And what it gave is not taken for the pinned one later, though the client keeps it under that name too."""
    other = "f" * 40
    host.add_hub_files("openai/gsm8k", {"a.jsonl": json_lines(ROWS[:1]), "b.jsonl": json_lines(ROWS[1:])})
    source = {"dataset_id": "openai/gsm8k", "files": ["a.jsonl", "b.jsonl"], "revision": COMMIT}
    host.commit = other
    for endpoint in (host.url, host.url, UNREACHABLE):
        (answer,) = run(FETCH, tmp_path, endpoint, source)
        assert answer["kind"] == "UnavailableError"
        if endpoint == host.url:
            assert answer["fault"] == (
                f"{host.url} gives a.jsonl of openai/gsm8k at the commit {other} and not at the pinned {COMMIT}"
            )
            assert "HF_ENDPOINT" in answer["mend"]
    host.commit = COMMIT
    (fetched,) = run(FETCH, tmp_path, host.url, source)
    assert fetched == {"rows": ROWS, "commit": COMMIT}


def test_the_commit_is_read_where_the_client_keeps_it(tmp_path: Path, host: Host) -> None:
    """Whatever folders there are above."""
    home = tmp_path / "snapshots" / "x"
    host.add_hub_files("openai/gsm8k", {"snapshots/a.jsonl": json_lines(ROWS)}, name="main")
    source = {"dataset_id": "openai/gsm8k", "files": ["snapshots/a.jsonl"], "revision": None}
    (fetched,) = run(FETCH, tmp_path, host.url, source, HF_HOME=str(home))
    assert fetched == {"rows": ROWS, "commit": COMMIT}


@pytest.mark.parametrize(
    "variables",
    [{"HF_ENDPOINT": "http://[::bad"}, {"HF_HUB_DOWNLOAD_TIMEOUT": "soon"}, {"HF_ENDPOINT": "[::"}],
)
def test_a_client_that_does_not_start(tmp_path: Path, variables: dict[str, str]) -> None:
    source = {"dataset_id": "a/b", "files": ["x.jsonl"], "revision": COMMIT}
    for code, asked in ((FETCH, source), (CUSTOM, {"hub_id": "a/b"})):
        (answer,) = run(code, tmp_path, UNREACHABLE, asked, **variables)
        assert answer["kind"] == "UnavailableError"
        starts = variables.get("HF_ENDPOINT") == "[::"
        reason = "" if starts else "its client does not start: HF_ENDPOINT, or another variable that is named"
        assert answer["fault"].startswith(f"a/b cannot be had from the model hub ({reason}")


def test_a_large_download_is_announced_once_and_only_where_it_begins(tmp_path: Path, host: Host) -> None:
    host.add_hub_files("a/b", {"x.jsonl": json_lines(ROWS)})
    source = {"dataset_id": "a/b", "files": ["x.jsonl"], "revision": COMMIT, "num_bytes": 101_000_000}
    first, again = run(FETCH, tmp_path, host.url, source, source)
    assert first["said"] == ["downloading a/b: 101 MB"]
    assert "said" not in again
    (full,) = run(FETCH, tmp_path / "other", host.url, source | {"num_bytes": 10**17})
    assert full["kind"] == "NoSpaceError"
    assert full["fault"].startswith("1e+08 GB are needed in ")


def test_members_of_an_archive(tmp_path: Path, host: Host) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data/one.jsonl", json_lines(ROWS[:1]))
        archive.writestr("other/one.jsonl", json_lines(ROWS[1:]))
    host.add_hub_files("a/b", {"data.zip": buffer.getvalue()})
    source = {"dataset_id": "a/b", "revision": COMMIT}
    fetched, missing = run(
        FETCH,
        tmp_path,
        host.url,
        source | {"files": ["data.zip:data/one.jsonl", "data.zip:other/one.jsonl"]},
        source | {"files": ["data.zip:data/two.jsonl"]},
    )
    assert fetched["rows"] == ROWS
    assert "data.zip from the model hub holds no readable data/two.jsonl" in missing["fault"]


def test_a_hub_that_is_not_reached_is_asked_once(tmp_path: Path, host: Host) -> None:
    """The client itself would ask again and again for half a minute."""
    sources = [
        {"dataset_id": "a/b", "files": ["x.jsonl"], "revision": revision} for revision in (COMMIT, None)
    ]
    host.status = 503
    for answer in run(FETCH, tmp_path, host.url, *sources):
        assert answer["fault"] == "a/b cannot be had from the model hub (status 503)"
    assert [asked for asked in host.asked if "/api/" not in asked] == ["HEAD /"]
    for answer in run(FETCH, tmp_path, UNREACHABLE, *sources):
        assert answer["fault"] == "a/b cannot be had from the model hub (Connection refused)"


def test_offline_nothing_is_asked(tmp_path: Path, host: Host) -> None:
    host.add_hub_files("a/b", {"x.jsonl": json_lines(ROWS)})
    source = {"dataset_id": "a/b", "files": ["x.jsonl"], "revision": COMMIT}
    (answer,) = run(FETCH, tmp_path, host.url, source, HF_HUB_OFFLINE="1")
    assert answer["fault"].startswith("a/b cannot be had from the model hub (HF_HUB_OFFLINE is set")
    assert host.asked == []


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "(status 401): an account that accepted its terms and a token of it (HF_TOKEN) are needed"),
        (403, "(status 403): an account that accepted its terms and a token of it (HF_TOKEN) are needed"),
        (None, "cannot be had from the model hub ("),
    ],
)
def test_what_the_hub_refuses(tmp_path: Path, host: Host, status: int | None, words: str) -> None:
    host.status = status
    source = {"dataset_id": "a/b", "files": ["x.jsonl"], "revision": COMMIT, "gated": True}
    (answer,) = run(FETCH, tmp_path, host.url, source)
    assert answer["kind"] == "UnavailableError"
    assert words in answer["fault"]
    assert "\n" not in answer["fault"]


def test_a_full_disk_is_said_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(NoSpaceError, match="no space is left to fetch a/b: free some"),
        hub._hub_faults("a/b"),
    ):
        raise RuntimeError("wrapped") from OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(UnavailableError, match=r"\(RuntimeError\)"), hub._hub_faults("a/b"):
        raise RuntimeError


class TestAnyDataSet:
    """By its id, through the library that knows every form a data set may have on the hub."""

    def test_the_split_and_the_commit_are_found(self, tmp_path: Path, host: Host) -> None:
        rows = [{"prompt": f"question {n}\r\n"} for n in range(3)]
        host.add_hub_files(
            "someone/things",
            {
                "README.md": b"---\n{}\n---\n",
                "data/test-00000-of-00001.parquet": parquet_file(rows),
                "data/train-00000-of-00001.parquet": parquet_file(rows[:1]),
            },
            name="main",
        )
        source = {"hub_id": "someone/things"}
        tested, trained, absent = run(
            CUSTOM,
            tmp_path,
            host.url,
            source,
            source | {"hub_split": "train", "hub_revision": COMMIT},
            source | {"hub_split": "dev"},
        )
        assert tested == {"rows": rows, "commit": COMMIT, "source": "someone/things, split test"}
        assert trained["rows"] == rows[:1]
        assert absent["kind"] == "UnavailableError"
        assert "someone/things cannot be had from the model hub (" in absent["fault"]
        assert "--dataset-file" in absent["mend"]

    def test_a_mirror_of_another_commit_is_refused(self, tmp_path: Path, host: Host) -> None:
        other = "f" * 40
        host.add_hub_files("someone/things", {"data/test.jsonl": json_lines(ROWS)}, name=other)
        host.commit = COMMIT
        (answer,) = run(CUSTOM, tmp_path, host.url, {"hub_id": "someone/things", "hub_revision": other})
        assert answer["kind"] == "UnavailableError"
        assert f"at the commit {COMMIT} and not at the pinned {other}" in answer["fault"]

    def test_a_data_set_of_a_script_is_not_run(self, tmp_path: Path, host: Host) -> None:
        mark = tmp_path / "was_run"
        script = f"open({str(mark)!r}, 'w').write('x')\n".encode()
        host.add_hub_files("someone/things", {"things.py": script}, name="main")
        (answer,) = run(CUSTOM, tmp_path, host.url, {"hub_id": "someone/things"})
        assert answer["kind"] == "UnavailableError"
        assert "script" in answer["fault"]
        assert not mark.exists()

    def test_a_hub_that_is_not_reached(self, tmp_path: Path) -> None:
        (answer,) = run(CUSTOM, tmp_path, UNREACHABLE, {"hub_id": "someone/things"})
        assert answer["fault"] == "someone/things cannot be had from the model hub (Connection refused)"
        assert "HF_ENDPOINT" in answer["mend"]
