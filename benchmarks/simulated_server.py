"""What the simulated servers can give, so that a client's ceiling is not measured against theirs.

Prints in one run, per protocol, route and number of streams at once:
  (a) as fast as possible (`--time-scale 0`): streamed chunks per CPU-second of the server's process;
  (b) at scripted times, unsynchronised: CPU share of one core, and how far behind its script a chunk was sent
      (median, 99th percentile, worst), counted from when its request left the queue.

The load comes from plain sockets in this process that only count bytes; times are noisy on shared machines.

    python benchmarks/simulated_server.py [--streams 64,256] [--requests 4] [--tokens 128] [--gap-ms 20]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CASES = (("vllm", "/v1/chat/completions"), ("sglang", "/v1/chat/completions"), ("sglang", "/generate"))
PREFILL_MS = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", default="64,256")
    parser.add_argument("--requests", type=int, default=4, help="per stream")
    parser.add_argument("--tokens", type=int, default=128, help="per request")
    parser.add_argument("--gap-ms", type=float, default=20.0, help="between chunks, of (b)")
    options = parser.parse_args()
    for protocol, route in CASES:
        for num_streams in (int(number) for number in options.streams.split(",")):
            print_ceiling(protocol, route, num_streams, options)
            print_paced(protocol, route, num_streams, options)


def print_ceiling(protocol: str, route: str, num_streams: int, options: argparse.Namespace) -> None:
    log = measure(protocol, route, num_streams, options, time_scale=0)
    chunks, cpu_s = count_chunks(log), log["cpu_ns"] / 1e9
    print(
        f"(a) {protocol} {route} x{num_streams}: {chunks / cpu_s:,.0f} chunks per CPU-second ({chunks} chunks)"
    )


def print_paced(protocol: str, route: str, num_streams: int, options: argparse.Namespace) -> None:
    log = measure(protocol, route, num_streams, options, time_scale=1)
    requests = log["requests"]
    begin_ns = min(request["arrival_ns"] for request in requests)
    wall_s = (max(request["ended_ns"] for request in requests) - begin_ns) / 1e9
    late_ms = sorted(lateness_ms(requests, options.gap_ms))
    p99 = late_ms[int(len(late_ms) * 0.99)]
    print(
        f"(b) {protocol} {route} x{num_streams}: {count_chunks(log) / wall_s:,.0f} chunks per second at "
        f"{log['cpu_ns'] / 1e9 / wall_s:.0%} of a core; behind the script by {statistics.median(late_ms):.2f} ms "
        f"(median), {p99:.2f} ms (p99), {late_ms[-1]:.2f} ms (worst)"
    )


def count_chunks(log: dict[str, Any]) -> int:
    return sum(len(request["chunk_sent_ns"]) for request in log["requests"])


def lateness_ms(requests: list[dict[str, Any]], gap_ms: float) -> Iterator[float]:
    """By how much each chunk was sent later than the script says."""
    for request in requests:
        for number, sent_ns in enumerate(request["chunk_sent_ns"]):
            yield (sent_ns - request["started_ns"]) / 1e6 - PREFILL_MS - number * gap_ms


def measure(
    protocol: str, route: str, num_streams: int, options: argparse.Namespace, *, time_scale: float
) -> dict[str, Any]:
    """The server's log of one closed-loop run, with the CPU time of that run alone."""
    scenario = {
        "jitter": 0.0,
        "prefill_ms": PREFILL_MS,
        "baseline_step_ms": options.gap_ms,
        "output_tokens": [options.tokens, options.tokens],
        "server": {
            "max_running_requests": num_streams,
            "log_requests": 1_000_000,
            "prefix_cache": False,  # what is cached takes no time
        },
    }
    with running_server(protocol, scenario, time_scale) as port:
        asyncio.run(load(port, route, num_streams, 1, options, time_scale))  # warm up: imports and scripts
        read_json(port, "/simulated/reset", method="POST")
        before_ns = read_json(port, "/simulated/log")["cpu_ns"]
        asyncio.run(load(port, route, num_streams, options.requests, options, time_scale))
        log = read_json(port, "/simulated/log")
        return {**log, "cpu_ns": log["cpu_ns"] - before_ns}


@contextmanager
def running_server(protocol: str, scenario: dict[str, Any], time_scale: float) -> Iterator[int]:
    """A server in a process of its own; gives its port."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "scenario.json"
        script.write_text(json.dumps(scenario))
        command = [sys.executable, "-m", "dflash.backends.simulated", "--protocol", protocol]
        command += ["--script", str(script), "--time-scale", str(time_scale)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield int(process.stdout.readline())
            finally:
                process.terminate()


def read_json(port: int, path: str, method: str = "GET") -> dict[str, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    with urllib.request.urlopen(request) as response:
        document: dict[str, Any] = json.load(response)
    return document


async def load(
    port: int, route: str, num_streams: int, num_requests: int, options: argparse.Namespace, time_scale: float
) -> None:
    """Every stream asks `num_requests` times in a row; the streams begin spread over one gap."""

    async def stream(number: int) -> None:
        await asyncio.sleep(time_scale * options.gap_ms / 1000 * number / num_streams)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for turn in range(num_requests):
            writer.write(request_bytes(route, f"stream {number} asks {turn}", options.tokens))
            tail = b""
            while not tail.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
                tail = (tail + await reader.read(1 << 18))[-64:]
        writer.close()

    await asyncio.gather(*(stream(number) for number in range(num_streams)))


def request_bytes(route: str, text: str, num_tokens: int) -> bytes:
    sampling = {"temperature": 0, "max_new_tokens": num_tokens}
    chat = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": num_tokens}
    body = {"text": text, "sampling_params": sampling} if route == "/generate" else chat
    content = json.dumps({**body, "stream": True}).encode()
    head = f"POST {route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    return head.encode() + b"\r\n\r\n" + content


if __name__ == "__main__":
    main()
