"""Other benchmark clients beside ours, on the same simulated server: streamed chunks per CPU-second of all processes.

A client counts with everything that it starts: user and system time of its whole tree of processes. Every client
runs twice, with few requests and with many: the difference is what a further chunk costs, without the start. All
ask the same number of requests, of about the same length, for the same number of tokens, with the same number at
once; chunks are counted by the server. All but the server have one core.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from http_client_processes import (
    CLIENT_CORE,
    TOKENS,
    Task,
    pin,
    read_json,
    run_client,
    running_server,
    speed_scenario,
    spread,
)

CONCURRENCY = 64
FEW_REQUESTS = 64
PROMPT_TOKENS = 64
MAX_S = 600
PR_SET_CHILD_SUBREAPER = 36

Command = Callable[[Path, str, str, int], list[str]]  # environment, server, tokenizer's folder, requests
Run = Callable[[str, int], None]  # server, requests


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one client run: chunks as the server counted them, CPU time of all of the client's processes."""

    num_chunks: int
    cpu_s: float
    wall_s: float


def vllm_command(environment: Path, url: str, tokenizer: str, num_requests: int) -> list[str]:
    return [
        *(str(environment / "bin/vllm"), "bench", "serve", "--backend", "openai-chat", "--base-url", url),
        *("--endpoint", "/v1/chat/completions", "--model", "simulated-target", "--tokenizer", tokenizer),
        *("--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)),
        *("--random-output-len", str(TOKENS), "--num-prompts", str(num_requests)),
        *("--max-concurrency", str(CONCURRENCY), "--temperature", "0", "--disable-tqdm"),
    ]


def guidellm_command(environment: Path, url: str, tokenizer: str, num_requests: int) -> list[str]:
    return [
        *(str(environment / "bin/guidellm"), "run", "--backend", f"kind=openai_http,target={url}"),
        *("--profile", f"kind=concurrent,streams={CONCURRENCY}"),
        *("--constraint", f"kind=max_requests,count={num_requests}"),
        *("--tokenizer", f"kind=huggingface_auto,model={tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={TOKENS}"),
        *("--output", "kind=json,path=guidellm.json", "--disable-console-interactive"),
    ]


def aiperf_command(environment: Path, url: str, tokenizer: str, num_requests: int) -> list[str]:
    return [
        *(str(environment / "bin/aiperf"), "profile", "--model", "simulated-target", "--url", url),
        *("--endpoint-type", "chat", "--streaming", "--concurrency", str(CONCURRENCY)),
        *("--request-count", str(num_requests), "--tokenizer", tokenizer, "--ui", "none"),
        *("--synthetic-input-tokens-mean", str(PROMPT_TOKENS), "--osl", str(TOKENS)),
    ]


PEERS: dict[str, Command] = {
    "vllm bench serve": vllm_command,
    "guidellm": guidellm_command,
    "aiperf": aiperf_command,
}


def measure_all(options: argparse.Namespace) -> dict[str, Any]:
    """Every client in turn, as often as asked, at every rate of chunks."""
    adopt_orphans()
    clients: dict[str, Run] = {"dflash": run_ours}
    for name, command in PEERS.items():
        environment = find_environment(options.environments, command)
        if environment is None:
            print(f"peers    {name}: no environment with it, left out")
        else:
            clients[name] = peer_runner(environment, command)
    return {
        f"{rate:g} chunks/s" if rate else "flat out": compare(rate, clients, options)
        for rate in map(float, options.peer_rates.split(","))
    }


def compare(rate: float, clients: dict[str, Run], options: argparse.Namespace) -> dict[str, Any]:
    """Chunks per CPU-second by client; prints them and ours over the best of the others."""
    what = f"{rate:g} chunks/s" if rate else "flat out"
    found: dict[str, dict[str, list[float]]] = {name: {"further": [], "whole": []} for name in clients}
    for _ in range(options.repeats):
        for name, run in clients.items():
            few = measure(run, FEW_REQUESTS, rate)
            many = measure(run, FEW_REQUESTS + options.requests, rate)
            found[name]["whole"].append(many.num_chunks / many.cpu_s)
            found[name]["further"].append((many.num_chunks - few.num_chunks) / (many.cpu_s - few.cpu_s))
    for name, values in found.items():
        further, whole = (spread(values[key], "{:,.0f}") for key in ("further", "whole"))
        print(f"peers    {what}: {name:18s} chunks per CPU-second {further}; with its start {whole}")
    medians = {name: statistics.median(values["further"]) for name, values in found.items()}
    ours = medians.pop("dflash")
    ratio = ours / max(medians.values()) if medians else None
    print(f"peers    {what}: ours over the best other: {'n/a' if ratio is None else f'{ratio:.2f}'}")
    return {"chunks_per_cpu_s": found, "ours_over_best": ratio}


def measure(run: Run, num_requests: int, rate: float) -> Cost:
    """One client's run against a fresh server of `rate` chunks a second (0: as many as it can).

    Raises:
        RuntimeError: the server did not see the requests that were asked for.
    """
    scenario = speed_scenario(jitter=0.5, baseline_step_ms=1000 * CONCURRENCY / rate if rate else 1.0)
    with running_server("vllm", scenario, time_scale=1 if rate else 0) as url:
        before, started_s = children_cpu_s(), time.perf_counter()
        run(url, num_requests)
        cpu_s, wall_s = children_cpu_s() - before, time.perf_counter() - started_s
        log = read_json(url, "/simulated/log")["requests"]
    lengths = [len(entry["chunk_sent_ns"]) for entry in log]
    if not num_requests <= len(lengths) <= num_requests + 8 or statistics.median(lengths) != TOKENS:
        raise RuntimeError(
            f"{len(lengths)} requests came instead of {num_requests}, of {set(lengths)} chunks"
        )
    return Cost(sum(lengths), cpu_s, wall_s)


def run_ours(url: str, num_requests: int) -> None:
    run_client(Task(url, "vllm", "chat", CONCURRENCY, num_requests, TOKENS))


def peer_runner(environment: Path, command: Command) -> Run:
    from dflash.quickstart.target import ensure_target

    tokenizer = str(ensure_target())

    def run(url: str, num_requests: int) -> None:
        with tempfile.TemporaryDirectory() as folder, (Path(folder) / "output").open("w+") as output:
            process = subprocess.Popen(
                command(environment, url, tokenizer, num_requests),
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
                preexec_fn=lambda: pin(CLIENT_CORE),
            )
            try:
                code = process.wait(MAX_S)
            finally:
                end_group(process.pid)
            if code:
                output.seek(0)
                raise RuntimeError(f"{command.__name__} ended with {code}: {output.read()[-2000:]}")

    return run


def find_environment(folder: Path | None, command: Command) -> Path | None:
    """The environment below `folder` that has the client's program."""
    program = Path(command(Path(), "", "", 0)[0])
    found = sorted(folder.glob(f"*/{program}")) if folder is not None else []
    return found[0].parent.parent if found else None


def adopt_orphans() -> None:
    """Become the parent of what a client leaves behind, so that its CPU time is counted too (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_group(group: int) -> None:
    """End what is left of a client, and take its CPU time over."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    deadline_s = time.monotonic() + 5
    with suppress(ChildProcessError):
        while time.monotonic() < deadline_s and os.waitpid(-group, os.WNOHANG) != (0, 0):
            pass


def children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
