"""A run on servers made by hand: a closed loop of exact times, blocks A B B A, and counters that are the exact sums."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from made_up_run import MS, cell, workload

from dflash.results.records import (
    Arm,
    Cell,
    ChunkRecord,
    OutputRecord,
    RequestRecord,
    RunInfo,
    Segment,
    WindowRecord,
)
from dflash.results.store import Run, RunWriter, load_run

TTFT_MS, STEP_MS = 60, 20
BLOCK_SIZE = 4


@dataclass
class ServerLines:
    """The lines of a run's folder, to be changed before they are written."""

    cells: list[Cell] = field(default_factory=list)
    records: list[RequestRecord] = field(default_factory=list)
    chunks: list[ChunkRecord] = field(default_factory=list)
    outputs: list[OutputRecord] = field(default_factory=list)
    windows: list[WindowRecord] = field(default_factory=list)
    config: dict[str, object] = field(default_factory=dict)

    def write(self, folder: Path) -> Run:
        writer = RunWriter(folder)
        writer.write_info(
            RunInfo(
                name=folder.name,
                created_at="2026-01-02T03:04:05+00:00",
                dflash_version="0.2.0",
                command="python -m dflash.benchmark --backend vllm",
                environment={"engine": {"name": "vllm", "version": "0.32.0"}},
                config={"backend": "vllm", **self.config},
                cells=tuple(self.cells),
                segments=(Segment("2026-01-02T03:04:05+00:00", 0, (), 90_000 * MS),),
            )
        )
        for lines in (self.outputs, self.chunks, self.records, self.windows):
            for line in lines:
                writer.append(line)
        writer.close()
        return load_run(folder)

    def change(self, cell_id: str, place: int, **changes: object) -> None:
        """Change the `place`-th request of a cell."""
        places = [i for i, record in enumerate(self.records) if record.cell_id == cell_id]
        self.records[places[place]] = replace(self.records[places[place]], **changes)

    def change_windows(self, cell_id: str, **changes: object) -> None:
        self.windows = [
            replace(window, **changes) if window.cell_id == cell_id else window for window in self.windows
        ]


def accepted_tokens(prompt: int, num_steps: int) -> tuple[int, ...]:
    """What the verify steps of a prompt accept: the same in every run."""
    return tuple((prompt * 5 + step * 3) % BLOCK_SIZE for step in range(num_steps))


def server_request(
    cell_id: str,
    prompt: int,
    sent_ns: int,
    accepted: Sequence[int] | None,
    num_tokens: int,
    **changes: object,
) -> tuple[RequestRecord, ChunkRecord, OutputRecord]:
    """A request whose steps deliver `accepted[i]` + 1 tokens in one chunk each, the last cut at `num_tokens`;
    `accepted` None: plain decoding, a chunk a token."""
    sizes = [1]
    for count in accepted if accepted is not None else (0,) * (num_tokens - 1):
        sizes.append(min(count + 1, num_tokens - sum(sizes)))
    assert sum(sizes) == num_tokens
    assert min(sizes) > 0
    counts: dict[str, object] = {}
    if accepted is not None:
        histogram = tuple(sum(count == k for count in accepted) for k in range(BLOCK_SIZE))
        counts = {
            "num_decode_steps": len(accepted),
            "num_verify_steps": len(accepted),
            "num_draft_tokens": len(accepted) * (BLOCK_SIZE - 1),
            "num_accepted_tokens": sum(accepted),
            "acceptance_histogram_untrimmed": histogram,
        }
    first = sent_ns + TTFT_MS * MS
    record = RequestRecord(
        cell_id=cell_id,
        prompt_id=f"gsm8k/{prompt}",
        sent_ns=sent_ns,
        first_ns=first,
        last_ns=first + STEP_MS * MS * (len(sizes) - 1),
        num_prompt_tokens=40 + prompt,
        num_output_tokens=num_tokens,
        num_first_chunk_tokens=1,
        num_cached_tokens=0,
        finish_reason="length",
        prompt_digest=f"prompt-{prompt}",
        output_digest=f"ids-{prompt}",
        **counts,
    )
    unit = (cell_id, record.prompt_id)
    chunk = ChunkRecord(*unit, gaps_ns=(STEP_MS * MS,) * (len(sizes) - 1), num_tokens=tuple(sizes))
    output = OutputRecord(
        *unit, output_ids=tuple(range(prompt, prompt + num_tokens)), text=f"answer {prompt} " * num_tokens
    )
    return replace(record, **changes), chunk, output


def window_of(
    cell: Cell, block: int, records: Sequence[RequestRecord], segment: int = 0, **changes: object
) -> WindowRecord:
    """What a server counts that served these requests and nobody else."""
    own = [record for record in records if record.completed]

    def total(name: str) -> int | None:
        return None if cell.arm.is_baseline else sum(getattr(record, name) for record in own)

    histograms = [record.acceptance_histogram_untrimmed or () for record in own]
    per_position = tuple(
        sum(sum(histogram[k:]) for histogram in histograms) for k in range(1, cell.arm.block_size or 1)
    )
    window = WindowRecord(
        cell_id=cell.cell_id,
        segment=segment,
        block=block,
        started_ns=min(record.sent_ns or 0 for record in records),
        ended_ns=max(record.last_ns or 0 for record in records) + 2_000 * MS,
        counters="settled",
        prefix_cache="off",
        num_drafts=total("num_verify_steps"),
        num_draft_tokens=total("num_draft_tokens"),
        num_accepted_tokens=total("num_accepted_tokens"),
        num_accepted_tokens_per_position=None if cell.arm.is_baseline else per_position,
        num_generation_tokens=sum(record.num_output_tokens or 0 for record in own),
        num_prompt_tokens=sum(record.num_prompt_tokens or 0 for record in own),
        num_requests=len(own),
        loop_lag_p99_ns=200_000,
        loop_lag_max_ns=900_000,
    )
    return replace(window, **changes)


def server_lines(
    concurrencies: Sequence[int] = (4,),
    num_prompts: int = 16,
    num_tokens: int = 90,
    request_rate: float | None = None,
    dataset: str = "gsm8k",
) -> ServerLines:
    """Baseline and dflash, for every concurrency blocks A B B A of half of the prompts each."""
    lines = ServerLines()
    now = 0
    for concurrency in concurrencies:
        load = workload(
            dataset=dataset,
            num_prompts=num_prompts,
            concurrency=concurrency,
            request_rate=request_rate,
            max_new_tokens=num_tokens,
        )
        arms = [
            cell(
                arm,
                cell_id=f"{arm.name}-{dataset}-c{concurrency}",
                workload_id=f"{dataset}-c{concurrency}",
                backend="vllm",
                workload=load,
                on_server=True,
                weights_bytes=None,
            )
            for arm in (Arm("baseline"), Arm("dflash", BLOCK_SIZE, draft="made-up-draft"))
        ]
        lines.cells += arms
        half = num_prompts // 2
        blocks = [(0, 0, range(half)), (1, 0, range(half)), (1, 1, range(half, num_prompts))]
        blocks.append((0, 1, range(half, num_prompts)))
        for arm_place, block, prompts in blocks:
            now = _add_block(lines, arms[arm_place], block, prompts, num_tokens, now)
            now += 3_000 * MS
    return lines


def _add_block(
    lines: ServerLines, arm: Cell, block: int, prompts: Sequence[int], num_tokens: int, start: int
) -> int:
    """One stretch of a closed loop; returns when it ended."""
    free = [start] * arm.workload.concurrency
    heapq.heapify(free)
    members = []
    for prompt in prompts:
        sent = heapq.heappop(free)
        accepted = None if arm.arm.is_baseline else _steps_for(prompt, num_tokens)
        record, chunk, output = server_request(arm.cell_id, prompt, sent, accepted, num_tokens, block=block)
        heapq.heappush(free, record.last_ns or 0)
        members.append(record)
        lines.chunks.append(chunk)
        lines.outputs.append(output)
    lines.records += members
    lines.windows.append(window_of(arm, block, members))
    return max(free)


def _steps_for(prompt: int, num_tokens: int) -> tuple[int, ...]:
    """Enough steps for the tokens; the last may accept more than is delivered."""
    num_steps = 0
    while 1 + num_steps + sum(accepted_tokens(prompt, num_steps)) < num_tokens:
        num_steps += 1
    return accepted_tokens(prompt, num_steps)


def made_up_server_run(folder: Path, **settings: object) -> Run:
    """As it is when nothing went wrong."""
    lines = server_lines(**settings)
    lines.config = {"slo": {"ttft_s": 0.5, "tpot_s": 0.015}}
    return lines.write(folder)
