"""The processes of a measurement of the HTTP client: simulated servers and clients, each on a core of its own."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dflash.backends import create_backend
from dflash.backends.base import BackendSettings, Endpoint, Generation, GenerationRequest, Message
from dflash.load import Job, Load, LoopLag, run_load
from dflash.results.records import Arm

TOKENS = 128  # of an answer, where speed is measured
SERVER_CORE, CLIENT_CORE = 0, 1


@dataclass(frozen=True, slots=True)
class Task:
    """What a client process does."""

    url: str
    protocol: str
    route: str
    concurrency: int
    num_requests: int
    max_new_tokens: int
    arm: str = "baseline"
    keep: bool = False  # the generations, not only their number
    freeze: bool = False  # what is there before the load is left out of garbage collections


@dataclass(frozen=True, slots=True)
class Done:
    """What it found; CPU times are user and system time of the client's process."""

    generations: list[Generation]
    num_chunks: int
    wall_s: float
    cpu_s: float  # of the load alone
    lag_p99_ns: int | None
    lag_max_ns: int | None


def run_client(task: Task) -> Done:
    """Do it in a process of its own."""
    done: Done = in_process(_do_task, task)
    return done


def in_process(work: Any, *arguments: Any) -> Any:
    """What `work` returns in a fresh process on the client's core."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work_and_send, args=(theirs, work, *arguments))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


def _work_and_send(connection: Connection, work: Any, *arguments: Any) -> None:
    pin(CLIENT_CORE)
    connection.send(work(*arguments))


def pin(core: int) -> None:
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {core})


def _do_task(task: Task) -> Done:
    return asyncio.run(_drive(task))


async def _drive(task: Task) -> Done:
    settings = BackendSettings(
        endpoints=(Endpoint(task.url, task.arm),), max_concurrency=task.concurrency, route=task.route
    )
    backend = create_backend(task.protocol, settings)
    arm = (await backend.open((Arm(task.arm),))).arms[0]
    generations: list[Generation] = []
    num_chunks = 0

    def job(number: int) -> Job:
        request = GenerationRequest(
            request_id=str(number),
            arm=arm,
            messages=(Message("user", "word " * (8 + number)),),
            max_new_tokens=task.max_new_tokens,
        )

        async def ask(due_ns: int | None) -> None:
            nonlocal num_chunks
            generation = await backend.generate(request)
            num_chunks += len(generation.chunk_num_tokens)
            if task.keep:
                generations.append(generation)

        return ask

    try:
        read_json(task.url, "/simulated/reset", method="POST")  # what opening asked is no part of the log
        jobs = [job(number) for number in range(task.num_requests)]
        if task.freeze:
            gc.collect()
            gc.freeze()
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        async with LoopLag() as lag:
            await run_load(Load(task.concurrency), jobs)
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    finally:
        await backend.aclose()
    return Done(generations, num_chunks, wall_s, cpu_s, lag.percentile_ns(99), lag.max_ns)


@contextmanager
def running_server(
    protocol: str,
    scenario: dict[str, Any],
    *,
    arm: str = "baseline",
    time_scale: float,
    in_step_ms: float | None = None,
) -> Iterator[str]:
    """A simulated server in a process of its own, on its core; gives its address."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "scenario.json"
        script.write_text(json.dumps(scenario))
        command = [sys.executable, "-m", "dflash.backends.simulated"]
        if in_step_ms is not None:
            command = [sys.executable, __file__, str(in_step_ms)]
        command += [
            "--protocol",
            protocol,
            "--arm",
            arm,
            "--script",
            str(script),
            "--time-scale",
            str(time_scale),
        ]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: pin(SERVER_CORE)
        ) as process:
            assert process.stdout is not None
            try:
                yield f"http://127.0.0.1:{int(process.stdout.readline())}"
            finally:
                process.terminate()


def serve_in_step(gap_ms: float, arguments: Sequence[str]) -> int:
    """The simulated server, but every chunk is sent at a multiple of `gap_ms`: all streams at once, as a batch does."""
    from dflash.backends import simulated
    from dflash.backends.simulated_engine import Job as EngineJob
    from dflash.backends.simulated_engine import SimulatedEngine

    gap_s = gap_ms / 1000

    def schedule(engine: Any, job: EngineJob, duration_ns: float) -> None:
        num_gaps = (job.due_s + duration_ns / 1e9) / gap_s
        job.due_s = math.ceil(round(num_gaps, 3)) * gap_s
        job.timer = asyncio.get_running_loop().call_at(job.due_s, engine._tick, job)

    engine_class: Any = SimulatedEngine
    engine_class._schedule = schedule
    return simulated.main(arguments)


def speed_scenario(**values: Any) -> dict[str, Any]:
    server = {"max_running_requests": 1024, "log_requests": 1_000_000, "prefix_cache": False}
    return {"output_tokens": [TOKENS, TOKENS], "server": server, **values}


def spread(values: Sequence[float], form: str) -> str:
    """Lowest, median and highest."""
    return " / ".join(form.format(value) for value in (min(values), statistics.median(values), max(values)))


def read_json(url: str, path: str, method: str = "GET") -> dict[str, Any]:
    request = urllib.request.Request(url + path, method=method)
    with urllib.request.urlopen(request) as response:
        document: dict[str, Any] = json.load(response)
    return document


if __name__ == "__main__":
    sys.exit(serve_in_step(float(sys.argv[1]), sys.argv[2:]))
