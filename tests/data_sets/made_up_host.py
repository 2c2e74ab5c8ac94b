"""A host that serves made-up files over HTTP: as much of a model hub, or of GitHub, as fetching needs."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Host:
    """What is served, by path, and what was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    status: int | None = None  # of every answer, in place of the right one
    asked: list[str] = field(default_factory=list)
    url: str = ""
    cut_short_by: int = 0  # bytes that are announced and never sent
    commit: str = COMMIT  # that every answer claims to be of

    def add_hub_files(
        self, dataset_id: str, files: Mapping[str, bytes], *, commit: str = COMMIT, name: str = ""
    ) -> None:
        """Files of a repository, by its commit and by `name`, with what the hub's interface says of them."""
        listed = []
        for path, content in files.items():
            for revision in {commit, name or commit}:
                self.files[f"/datasets/{dataset_id}/resolve/{revision}/{path}"] = content
            listed.append({"type": "file", "path": path, "size": len(content), "oid": "0" * 40})
        facts = {"id": dataset_id, "sha": commit, "siblings": [{"rfilename": path} for path in files]}
        for place in ("", f"/revision/{commit}", *([f"/revision/{name}"] if name else [])):
            self.files[f"/api/datasets/{dataset_id}{place}"] = json.dumps(facts).encode()
        folders = sorted({path.rpartition("/")[0] for path in files if "/" in path})
        listed += [{"type": "directory", "path": folder, "oid": "1" * 40} for folder in folders]
        for folder in ("", *folders):  # no folder lies in another one
            inside = [item for item in listed if str(item["path"]).rpartition("/")[0] == folder]
            place = f"/api/datasets/{dataset_id}/tree/{commit}" + (f"/{folder}" if folder else "")
            self.files[place] = json.dumps(inside).encode()
        self.files[f"/api/datasets/{dataset_id}/paths-info/{commit}"] = json.dumps(listed).encode()


@contextlib.contextmanager
def serving(host: Host) -> Iterator[Host]:
    """The host answers while the context lasts; its address is `host.url`."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_content=False)

        def do_GET(self) -> None:
            self._answer(with_content=True)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            self._answer(with_content=True, only=asked.get("paths"))

        def _answer(self, with_content: bool, only: list[str] | None = None) -> None:
            path = unquote(urlsplit(self.path).path)
            host.asked.append(f"{self.command} {self.path}")
            content = host.files.get(path)
            if content is not None and only is not None:
                content = json.dumps([file for file in json.loads(content) if file["path"] in only]).encode()
            self.send_response(host.status or (404 if content is None else 200))
            if content is None:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("X-Repo-Commit", host.commit)
            self.send_header("ETag", f'"{hash(path) & 0xFFFFFFFFFFFF:x}"')
            body = content or b""
            self.send_header("Content-Length", str(len(body) + host.cut_short_by))
            if path.startswith("/api/"):
                self.send_header("Content-Type", "application/json")
            self.end_headers()
            if with_content:
                self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    host.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield host
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
