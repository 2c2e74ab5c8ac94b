"""A real headless Chromium, spoken to by its DevTools protocol, for tests of pages."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

REQUIRE_VARIABLE = "DFLASH_REQUIRE_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TIMEOUT_S = 60


def find_chromium() -> str:
    """Its path; skips the test where there is none, and fails where one is required."""
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    reason = f"no Chromium is installed (one of {', '.join(NAMES)})"
    if os.environ.get(REQUIRE_VARIABLE) == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass
class Page:
    """One page: what it asked for, and what went wrong in it."""

    socket: aiohttp.ClientWebSocketResponse
    requests: list[str] = field(default_factory=list)  # addresses, the page's own included
    faults: list[str] = field(default_factory=list)  # exceptions, refused scripts, errors in the console
    loaded: bool = False
    num_sent: int = 0

    async def send(self, method: str, **parameters: object) -> dict[str, Any]:
        self.num_sent += 1
        number = self.num_sent
        await self.socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._receive()
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    async def open(self, path: Path) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.send(f"{domain}.enable")
        await self.send("Page.navigate", url=path.resolve().as_uri())
        while not self.loaded:
            await self._receive()

    async def evaluate(self, expression: str) -> Any:
        answer = await self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def screenshot(self) -> bytes:
        answer = await self.send("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    async def _receive(self) -> dict[str, Any]:
        message = json.loads(await self.socket.receive_str(timeout=TIMEOUT_S))
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.exceptionThrown":
            self.faults.append(parameters["exceptionDetails"]["text"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.faults.append(parameters["entry"]["text"])
        return message


def with_page(path: Path, profile: Path, use: Any) -> Any:
    """Open `path` in a browser of its own and give the page to `use`, an async function.

    Args:
        profile: an empty folder that the browser may write to.
    """
    return asyncio.run(_with_page(path, profile, use))


async def _with_page(path: Path, profile: Path, use: Any) -> Any:
    arguments = ["--headless=new", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0"]
    arguments += ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"]
    command = [find_chromium(), *arguments, f"--user-data-dir={profile}", "about:blank"]
    browser = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        port = await asyncio.wait_for(asyncio.to_thread(_port_of, browser), TIMEOUT_S)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                targets = await answer.json()
            address = next(target["webSocketDebuggerUrl"] for target in targets if target["type"] == "page")
            async with session.ws_connect(address, max_msg_size=0) as socket:
                page = Page(socket)
                await page.open(path)
                work: Coroutine[Any, Any, Any] = use(page)
                return await work
    finally:
        browser.kill()
        browser.wait()


def _port_of(browser: subprocess.Popen[str]) -> str:
    assert browser.stderr is not None
    for line in browser.stderr:
        found = re.search(r"DevTools listening on ws://127\.0\.0\.1:(\d+)/", line)
        if found:
            return found[1]
    raise AssertionError("Chromium ended before it listened")
