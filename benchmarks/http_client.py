"""What the HTTP client adds to what it measures, and what it can take, against simulated servers that know the truth.

Sections, each against servers in processes of their own:
  exact   every count of every request equals the server's log, both protocols, all routes, with and without drafts
          (else exit 1);
  times   how much later than the server's own send stamp a chunk is stamped: at a concurrency of 64 and 256 with
          streams that are not in step, and with 64 in step; at a quarter of the client's ceiling;
  ceiling streamed chunks per second on one core, and per CPU-second, as fast as the server can: the whole path,
          backend and closed loop included;
  peers   the same of other clients, in environments of their own (see http_client_peers.py);
  memory  resident memory of a run after 10,000 and after 100,000 short requests, records written to a folder.

Client and server have a core each where there are two. Times are noisy on shared machines: the three figures are
minimum, median and maximum of the repeats. The last line is one JSON object.

    python benchmarks/http_client.py [--sections exact,times,ceiling,memory] [--repeats 3] [--environments FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from http_client_processes import (
    TOKENS,
    Task,
    in_process,
    read_json,
    run_client,
    running_server,
    speed_scenario,
    spread,
)

from dflash.backends.base import Generation
from dflash.load import LoopLag

EXACT_CASES = (
    ("vllm", "chat", "baseline"),
    ("vllm", "chat", "dflash"),
    ("vllm", "completions", "dflash"),
    ("vllm", "chat", "ngram"),
    ("sglang", "chat", "baseline"),
    ("sglang", "chat", "dflash"),
    ("sglang", "completions", "dflash"),
    ("sglang", "generate", "dflash"),
)
SAME_NAMES = (  # in a generation and in the server's log
    "num_output_tokens",
    "num_decode_steps",
    "num_verify_steps",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_cached_tokens",
    "finish_reason",
    "chunk_num_tokens",
    "step_num_accepted",
)
DRAFT_NAMES = ("num_verify_steps", "num_draft_tokens", "num_accepted_tokens")
MEMORY_MARKS = (1_000, 10_000, 100_000)  # requests
TIME_CASES: dict[str, dict[str, Any]] = {
    "64": {"concurrency": 64},
    "64, nothing frozen": {"concurrency": 64, "freeze": False},
    "256": {"concurrency": 256},
    "64 in step": {"concurrency": 64, "in_step": True},
}
NS_PER_MS = 1e6


def main() -> int:
    options = parse_options()
    sections: dict[str, Callable[[argparse.Namespace, dict[str, Any]], dict[str, Any]]] = {
        "exact": measure_exact,
        "ceiling": measure_ceiling,
        "times": measure_times,
        "peers": measure_peers,
        "memory": measure_memory,
    }
    results: dict[str, Any] = {}
    for name, measure in sections.items():
        if name in options.sections.split(","):
            results[name] = measure(options, results)
    print(json.dumps(results))
    return 1 if results.get("exact", {}).get("num_wrong") else 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sections", default="exact,ceiling,times,memory", help="peers: only when named")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, default=1024, help="of a measurement of speed")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a measurement of times, about")
    parser.add_argument(
        "--chunk-rate", type=float, help="chunks a second of it (default: a quarter of the ceiling)"
    )
    parser.add_argument("--memory-requests", type=int, default=MEMORY_MARKS[-1])
    parser.add_argument(
        "--peer-rates", default="0,4000", help="chunks a second; 0: as many as the server can"
    )
    parser.add_argument("--environments", type=Path, help="folder with an environment per other client")
    return parser.parse_args()


# --- exact ---------------------------------------------------------------------------------------------------------


def measure_exact(options: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    num_requests = num_wrong = 0
    for protocol, route, arm in EXACT_CASES:
        scenario = {
            "output_tokens": [1, 200],
            "server": {"cached_tokens_in_usage": True, "per_request_spec_decode_metrics": "detailed"},
        }
        with running_server(protocol, scenario, arm=arm, time_scale=0.1) as url:
            task = Task(url, protocol, route, 64, 256, 150, arm=arm, keep=True)
            generations = run_client(task).generations
            faults = list(differences(generations, read_json(url, "/simulated/log")["requests"]))
        num_requests += len(generations)
        num_wrong += bool(faults)
        print(
            f"exact    {protocol:7s}{route:12s}{arm:9s} {len(generations)} requests: {faults[:3] or 'equal'}"
        )
    return {"num_requests": num_requests, "num_cases": len(EXACT_CASES), "num_wrong": num_wrong}


def differences(generations: Sequence[Generation], log: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Where an answer is not what the server says that it sent. Every prompt has a length of its own."""
    told = {entry["num_prompt_tokens"]: entry for entry in log}
    if not len(generations) == len(told) == len(log):
        yield f"{len(generations)} answers, the server tells of {len(log)}, {len(told)} of them apart"
        return
    for generation in generations:
        entry = told[generation.num_prompt_tokens or 0]
        for name in SAME_NAMES:
            mine, theirs = getattr(generation, name), entry[name]
            if (
                name == "step_num_accepted" and mine is None
            ):  # SGLang tells a histogram, vLLM nothing without a step
                mine, theirs = generation.acceptance_histogram_untrimmed or (), histogram_of(theirs)
                mine = mine[: len(theirs)] if not any(mine[len(theirs) :]) else mine
            if mine is None and name in DRAFT_NAMES:  # a server without drafts does not tell
                mine = 0
            if (list(mine) if isinstance(mine, tuple) else mine) != theirs:
                yield f"{name} is {mine}, the server says {theirs}"


def histogram_of(accepted: list[int]) -> list[int]:
    """Verify steps by accepted tokens, up to the most that were."""
    return [accepted.count(number) for number in range(max(accepted, default=-1) + 1)]


# --- ceiling -------------------------------------------------------------------------------------------------------


def measure_ceiling(options: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    per_second, per_cpu_second, shares = [], [], []
    for _ in range(options.repeats):
        with running_server("vllm", speed_scenario(), time_scale=0) as url:
            before_ns = read_json(url, "/simulated/log")["cpu_ns"]
            done = run_client(Task(url, "vllm", "chat", 64, options.requests, TOKENS))
            log = read_json(url, "/simulated/log")
        per_second.append(done.num_chunks / done.wall_s)
        per_cpu_second.append(done.num_chunks / done.cpu_s)
        shares.append((log["cpu_ns"] - before_ns) / 1e9 / done.wall_s)
    print(f"ceiling  chunks per second         {spread(per_second, '{:,.0f}')}")
    print(f"ceiling  chunks per CPU-second     {spread(per_cpu_second, '{:,.0f}')}")
    print(f"ceiling  server's share of a core  {spread(shares, '{:.0%}')}")
    return {"chunks_per_s": per_second, "chunks_per_cpu_s": per_cpu_second, "server_cpu_share": shares}


# --- times ---------------------------------------------------------------------------------------------------------


def measure_times(options: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    ceiling = results.get("ceiling", {}).get("chunks_per_s")
    # Flat out, a packet brings several chunks; one chunk in a packet costs more than twice as much.
    rate = options.chunk_rate or (min(ceiling) / 4 if ceiling else 2000.0)
    found: dict[str, Any] = {"chunks_per_s_aimed": rate}
    found["idle loop"] = [in_process(idle_lag_ms) for _ in range(options.repeats)]
    for key in found["idle loop"][0]:
        print(
            f"times    lag of an idle loop, {key}, ms: {spread([run[key] for run in found['idle loop']], '{:.2f}')}"
        )
    for name, case in TIME_CASES.items():
        runs = [time_streams(rate, options.seconds, **case) for _ in range(options.repeats)]
        found[name] = runs
        print(
            f"times    {name}, {statistics.median(run['chunks_per_s'] for run in runs):,.0f} chunks per second"
        )
        for key in runs[0]:
            if key.endswith("_ms"):
                figures = "   ".join(
                    f"{part} {spread([run[key][part] for run in runs], '{:.2f}')}" for part in runs[0][key]
                )
                print(f"         {key:20s} {figures}")
    return found


def idle_lag_ms(seconds: float = 3.0) -> dict[str, float]:
    """What this machine does to an event loop that does nothing."""

    async def idle() -> LoopLag:
        async with LoopLag() as lag:
            await asyncio.sleep(seconds)
        return lag

    lag = asyncio.run(idle())
    return {"p99": (lag.percentile_ns(99) or 0) / NS_PER_MS, "max": (lag.max_ns or 0) / NS_PER_MS}


def time_streams(
    rate: float, seconds: float, *, concurrency: int, in_step: bool = False, freeze: bool = True
) -> dict[str, Any]:
    """Lateness of the client's stamps against the server's, in ms: percentiles of all chunks."""
    gap_ms = 1000 * concurrency / rate
    jitter = (
        0.0 if in_step else 0.5
    )  # a step takes half of its mean to one and a half: streams drift apart at once
    scenario = speed_scenario(jitter=jitter, baseline_step_ms=gap_ms, prefill_ms=max(4 * gap_ms, 100.0))
    num_requests = concurrency * max(1, round(seconds * 1000 / gap_ms / TOKENS))
    with running_server("vllm", scenario, time_scale=1, in_step_ms=gap_ms if in_step else None) as url:
        done = run_client(
            Task(url, "vllm", "chat", concurrency, num_requests, TOKENS, keep=True, freeze=freeze)
        )
        log = {entry["num_prompt_tokens"]: entry for entry in read_json(url, "/simulated/log")["requests"]}
    chunk_ms, first_ms, gap_error_ms = [], [], []
    for generation in done.generations:
        sent_ns = log[generation.num_prompt_tokens]["chunk_sent_ns"]
        arrived_ns = list(accumulate(generation.chunk_gaps_ns, initial=generation.first_ns or 0))
        late_ms = [(arrived - sent) / NS_PER_MS for arrived, sent in zip(arrived_ns, sent_ns, strict=True)]
        first_ms.append(late_ms[0])
        chunk_ms += late_ms
        gap_error_ms += [abs(later - earlier) for earlier, later in pairwise(late_ms)]
    return {
        "chunks_per_s": done.num_chunks / done.wall_s,
        "first_chunk_ms": percentiles(first_ms),
        "chunk_ms": percentiles(chunk_ms),
        "between_chunks_ms": percentiles(gap_error_ms),
        "loop_lag_ms": {"p99": (done.lag_p99_ns or 0) / NS_PER_MS, "max": (done.lag_max_ns or 0) / NS_PER_MS},
        "client_cpu_share": done.cpu_s / done.wall_s,
    }


def percentiles(values: list[float]) -> dict[str, float]:
    values = sorted(values)
    return {"p50": statistics.median(values), "p99": values[int(len(values) * 0.99)], "max": values[-1]}


# --- peers ---------------------------------------------------------------------------------------------------------


def measure_peers(options: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    from http_client_peers import measure_all

    return measure_all(options)


# --- memory --------------------------------------------------------------------------------------------------------


def measure_memory(options: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    with running_server("vllm", speed_scenario(output_tokens=[4, 4]), time_scale=0) as url:
        found: dict[str, Any] = in_process(run_benchmark_in_folder, url, options.memory_requests)
    for what, value in found.items():
        print(f"memory   {what:40s} {value:,.1f}")
    return found


def run_benchmark_in_folder(url: str, num_requests: int) -> dict[str, float]:
    """Resident memory in MB, by the number of requests so far: runs in a process of its own."""
    from dflash.config import BenchmarkConfig
    from dflash.progress import SilentProgress
    from dflash.results.records import RequestRecord
    from dflash.runner import execute

    found: dict[str, float] = {}

    class Watch(SilentProgress):
        num_seen = 0

        def start_group(self, cells: Sequence[Any], num_units: int) -> None:
            found["MB before the load"] = resident_mb()

        def add(self, record: RequestRecord) -> None:
            self.num_seen += 1
            if self.num_seen in (*MEMORY_MARKS, num_requests):
                found[f"MB at {self.num_seen}"] = resident_mb()

    with tempfile.TemporaryDirectory() as folder:
        config = BenchmarkConfig(
            backend="vllm",
            base_url=url,
            datasets=("quickstart",),
            num_prompts=num_requests,
            repeat=True,
            concurrencies=(64,),
            max_new_tokens=4,
            output_dir=Path(folder),
        )
        started_s = time.perf_counter()
        outcome = execute(config, progress=Watch())
        if outcome.error is not None:
            raise outcome.error
        found["seconds"] = time.perf_counter() - started_s
        found["requests read back"] = len(outcome.run.records)
        found["MB with the run read back"] = resident_mb()
        found["MB at the peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def resident_mb() -> float:
    num_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return num_pages * resource.getpagesize() / 1e6


if __name__ == "__main__":
    sys.exit(main())
