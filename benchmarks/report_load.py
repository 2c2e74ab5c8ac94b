"""What it costs to load a stored run, compute all its metrics with intervals, and write its report.

A seeded run folder of so many requests is written in the format of the store: two data sets, each decoded plainly and
with four block sizes on a server, two repeats, with outputs and the times of every chunk. One process of its own reads
it and goes through the stages in turn; of each stage processor time is printed, and the peak memory up to its end.

`--of records` leaves out outputs and chunks, as a run with `--no-save-outputs` in process has them: what the figures
of every run rest on. Wanted of 100,000 requests is under 3 s of a processor and 500 MB for loading and all metrics.
The costs are to grow no faster than the number of requests.

    python benchmarks/report_load.py [--requests 10000 100000 1000000] [--of all records] [--repeats 3] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from dflash.results.line_format import encode_info, encode_line
from dflash.results.records import (
    Arm,
    Cell,
    ChunkRecord,
    OutputRecord,
    RequestRecord,
    RunInfo,
    Segment,
    WindowRecord,
    Workload,
)
from dflash.results.store import FILE_OF, AnyRecord

WANTED_S = 3.0
WANTED_BYTES = 500_000_000
WANTED_OF = 100_000  # requests
DATASETS = ("made-up-a", "made-up-b")
BLOCK_SIZES = (None, 4, 8, 12, 16)  # None: plain decoding
NUM_REPEATS = 2
CONCURRENCY = 8
CATEGORIES = ("math", "code", "chat", "translation")
MS = 1_000_000
_STAGES = """
import json, resource, sys, time
from pathlib import Path

def say(stage):
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(json.dumps([stage, time.process_time(), peak]), flush=True)

say("start of Python")
from dflash.results.markdown import render_report
from dflash.results.plots import plot_run
from dflash.results.store import load_run
from dflash.results.summary import summarise_run

run = load_run(sys.argv[1])
say("load_run")
summary = summarise_run(run)
say("summarise_run")
render_report(run, summary)
say("render_report")
if len(sys.argv) > 2:
    plot_run(run, summary, Path(sys.argv[2]))
    say("plot_run")
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a process."""

    name: str
    cpu_s: float  # of this stage
    peak_bytes: int  # of the process, up to the end of this stage


def main() -> int:
    options = parse_options()
    missed = False
    with tempfile.TemporaryDirectory() as scratch:
        parent = Path(scratch) if options.keep is None else options.keep
        for num_requests in options.requests:
            folder = parent / f"run-{num_requests}"
            if not folder.exists():
                write_run(folder, num_requests)
            for part in options.of:
                measured = folder if part == "all" else without_texts(folder)
                stages = best(
                    [measure(measured, None if options.no_plots else scratch) for _ in range(options.repeats)]
                )
                missed |= not report(part, num_requests, stages)
    return 1 if missed else 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--of", choices=("all", "records"), nargs="+", default=["records", "all"])
    parser.add_argument("--repeats", type=int, default=1, help="processes of which the best stage is shown")
    parser.add_argument("--no-plots", action="store_true", help="leave out the stage that takes longest")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the runs here, and use them again")
    return parser.parse_args()


def report(part: str, num_requests: int, stages: Sequence[Stage]) -> bool:
    """Print the stages; whether what is wanted is reached."""
    words = "records alone" if part == "records" else "with outputs and chunks"
    print(f"{num_requests:,} requests, {words}:")
    for stage in stages:
        per_request = stage.cpu_s / num_requests * 1e6
        print(
            f"  {stage.name:16} {stage.cpu_s:8.2f} s of a processor, {per_request:6.1f} us a request, "
            f"peak {stage.peak_bytes / 1e6:6.0f} MB",
            flush=True,
        )
    numbers = stages[:3]
    cpu_s, peak_bytes = sum(stage.cpu_s for stage in numbers), numbers[-1].peak_bytes
    is_met = cpu_s < WANTED_S and peak_bytes < WANTED_BYTES
    verdict = "" if num_requests != WANTED_OF else ": met" if is_met else ": not met"
    print(f"  loaded, with all metrics: {cpu_s:.2f} s, {peak_bytes / 1e6:.0f} MB{verdict}", flush=True)
    return is_met or num_requests != WANTED_OF


def measure(folder: Path, pictures: str | None) -> list[Stage]:
    """Go through the stages in a process of its own; plots only where there is a folder for them."""
    import json

    done = subprocess.run(
        [sys.executable, "-c", _STAGES, str(folder), *([] if pictures is None else [pictures])],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    before = [0.0, *(cpu_s for _, cpu_s, _ in said)]
    return [
        Stage(name, cpu_s - start, peak) for (name, cpu_s, peak), start in zip(said, before, strict=False)
    ]


def best(rounds: Sequence[Sequence[Stage]]) -> list[Stage]:
    """Of each stage the least time and the highest peak."""
    return [
        Stage(
            stages[0].name,
            min(stage.cpu_s for stage in stages),
            max(stage.peak_bytes for stage in stages),
        )
        for stages in zip(*rounds, strict=True)
    ]


# --- the run


def write_run(folder: Path, num_requests: int) -> None:
    """A run of about so many requests: as many prompts as make them, with every arm and repeat."""
    num_prompts = max(1, num_requests // (len(DATASETS) * len(BLOCK_SIZES) * NUM_REPEATS))
    generator = random.Random(0)
    cells = [cell_of(dataset, block, num_prompts) for dataset in DATASETS for block in BLOCK_SIZES]
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    files: dict[type[AnyRecord], IO[bytes]] = {
        kind: (unfinished / name).open("wb") for kind, name in FILE_OF.items()
    }
    for cell in cells:
        lengths = random.Random(cell.workload.dataset)
        prompts = [(lengths.randrange(20, 3000), lengths.randrange(60, 140)) for _ in range(num_prompts)]
        write_cell(files, cell, prompts, generator)
    for file in files.values():
        file.close()
    info = RunInfo(
        name=folder.name,
        created_at="2026-01-02T03:04:05+00:00",
        dflash_version="0.0",
        command="python benchmarks/report_load.py",
        config={"slo": {"ttft_s": 0.2, "tpot_s": 0.05}},
        cells=tuple(cells),
        segments=(Segment("2026-01-02T03:04:05+00:00", 0, (), 1),),
    )
    (unfinished / "run.json").write_bytes(encode_info(info))
    unfinished.rename(folder)


def without_texts(folder: Path) -> Path:
    """The same run with neither outputs nor chunks; its files are links."""
    bare = folder.with_name(f"{folder.name}-records")
    bare.mkdir(exist_ok=True)
    for name in ("run.json", "records.jsonl", "windows.jsonl"):
        if not (bare / name).exists():
            os.link(folder / name, bare / name)
    return bare


def cell_of(dataset: str, block_size: int | None, num_prompts: int) -> Cell:
    arm = (
        Arm("baseline")
        if block_size is None
        else Arm("dflash", block_size, "equality", "made-up-draft", "r7")
    )
    workload = Workload(
        target="made-up-135m",
        target_revision="r1",
        dtype="bfloat16",
        dataset=dataset,
        prompts_digest="d1",
        num_prompts=num_prompts,
        max_new_tokens=2048,
        temperature=0.0,
        top_p=None,
        top_k=None,
        seed=0,
        reasoning="off",
        concurrency=CONCURRENCY,
    )
    return Cell(
        cell_id=f"{dataset[-1] * 4}{block_size or 0:08d}",
        workload_id=dataset,
        arm_id=arm.label,
        backend="vllm",
        workload=workload,
        arm=arm,
        status="completed",
        on_server=True,
    )


def write_cell(
    files: Mapping[type[AnyRecord], IO[bytes]],
    cell: Cell,
    prompts: Sequence[tuple[int, int]],
    generator: random.Random,
) -> None:
    """Eight requests at a time, each begun when another ends; a stretch of load for every repeat."""
    free_ns = [generator.randrange(MS) for _ in range(CONCURRENCY)]
    for repeat in range(NUM_REPEATS):
        started_ns, own = min(free_ns), []
        for number, (num_prompt_tokens, num_tokens) in enumerate(prompts):
            place = min(range(CONCURRENCY), key=free_ns.__getitem__)
            record = RequestRecord(
                cell_id=cell.cell_id,
                prompt_id=f"{cell.workload.dataset}/{number:06d}",
                category=CATEGORIES[number % len(CATEGORIES)],
                repeat=repeat,
                block=repeat,
                sent_ns=free_ns[place],
                num_prompt_tokens=num_prompt_tokens,
                num_cached_tokens=0,
                prompt_digest=f"{number:016x}",
            )
            for line in request_lines(cell, record, num_tokens, generator):
                files[type(line)].write(encode_line(line))
                if isinstance(line, RequestRecord):
                    own.append(line)
            free_ns[place] = (own[-1].last_ns or 0) + MS
        files[WindowRecord].write(encode_line(window_of(cell, repeat, own, started_ns, max(free_ns))))


def request_lines(
    cell: Cell, asked: RequestRecord, num_tokens: int, generator: random.Random
) -> Iterator[RequestRecord | OutputRecord | ChunkRecord]:
    """One request in 500 failed, one output in 200 differs from the others of its prompt."""
    sent_ns = asked.sent_ns or 0
    if generator.random() < 1 / 500:
        yield replace(asked, last_ns=sent_ns + 5 * MS, error_kind="timeout", error_message="no first token")
        return
    block_size = cell.arm.block_size
    sizes, accepted = [1], []
    while sum(sizes) < num_tokens:
        accepted.append(0 if block_size is None else min(block_size - 1, int(generator.expovariate(0.4))))
        sizes.append(min(accepted[-1] + 1, num_tokens - sum(sizes)))
    gaps_ns = tuple(generator.randrange(15 * MS, 25 * MS) for _ in accepted)
    first_ns = sent_ns + generator.randrange(50 * MS, 250 * MS)
    width = block_size or 1
    histogram = tuple(accepted.count(number) for number in range(width))
    differs = generator.random() < 1 / 200
    seed = f"{asked.prompt_id} {cell.cell_id if differs else ''}"
    words = [f"{(len(seed) + place) * 7919 % 1009}" for place in range(num_tokens)]
    yield replace(
        asked,
        first_ns=first_ns,
        last_ns=first_ns + sum(gaps_ns),
        num_output_tokens=num_tokens,
        num_first_chunk_tokens=1,
        finish_reason="stop",
        num_decode_steps=len(accepted),
        num_verify_steps=0 if block_size is None else len(accepted),
        num_draft_tokens=len(accepted) * (width - 1),
        num_accepted_tokens=sum(accepted),
        acceptance_histogram=tuple(sizes[1:].count(number + 1) for number in range(width)),
        acceptance_histogram_untrimmed=None if block_size is None else histogram,
        output_digest=f"{hash_of(seed):016x}",
    )
    unit = (asked.cell_id, asked.prompt_id, 0, asked.repeat)
    yield OutputRecord(*unit, output_ids=tuple(map(int, words)), text=" ".join(words))
    yield ChunkRecord(*unit, gaps_ns=gaps_ns, num_tokens=tuple(sizes))


def window_of(
    cell: Cell, block: int, own: Sequence[RequestRecord], started_ns: int, ended_ns: int
) -> WindowRecord:
    """What a server counts that served these requests and nobody else."""
    return WindowRecord(
        cell_id=cell.cell_id,
        block=block,
        started_ns=started_ns,
        ended_ns=ended_ns,
        counters="settled",
        prefix_cache="reset",
        num_drafts=sum(record.num_verify_steps or 0 for record in own),
        num_draft_tokens=sum(record.num_draft_tokens or 0 for record in own),
        num_accepted_tokens=sum(record.num_accepted_tokens or 0 for record in own),
        num_generation_tokens=sum(record.num_output_tokens or 0 for record in own),
        num_requests=sum(record.completed for record in own),
        loop_lag_p99_ns=100_000,
        loop_lag_max_ns=900_000,
    )


def hash_of(text: str) -> int:
    """The same in every process, as `hash` is not."""
    return int.from_bytes(random.Random(text).randbytes(8), "big")


if __name__ == "__main__":
    sys.exit(main())
