"""Several processes that make one run: who runs what, what is merged, and that the counts do not depend on it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from made_up_prompts import run_simulated, use_made_up_prompts

from dflash.errors import UsageError
from dflash.rank_files import left_lines, merge_lines, rank_folder, read_lines
from dflash.ranks import RankError, Ranks, check_ranks
from dflash.results.store import Run, RunWriter, load_run
from dflash.results.summary import summarise_run

# The verb without its pages: pictures take longer than the run.
WITHOUT_REPORT = """
import sys
from dflash.arguments import parse_benchmark_arguments
from dflash.runner import run_benchmark
run_benchmark(parse_benchmark_arguments(sys.argv[1:]))
"""
TWO = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.fixture
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    use_made_up_prompts(monkeypatch)


def test_a_process_that_nobody_counted_is_alone() -> None:
    for environment in ({}, {"RANK": "1", "WORLD_SIZE": "2"}):
        ranks = Ranks(environment)
        assert (ranks.rank, ranks.num_ranks, ranks.is_alone, ranks.is_first) == (0, 1, True, True)
    assert ranks.all_of("x") == ranks.to_first("x") == ["x"]
    assert ranks.of_first(lambda: 3) == 3
    assert not ranks.share_a_device("cpu")
    assert ranks.device_of(None) is None
    with pytest.raises(ValueError, match="this one"):
        ranks.together(ValueError("this one"))


def test_every_prompt_is_one_ranks_own() -> None:
    parts = [Ranks(TWO | {"RANK": str(rank), "WORLD_SIZE": "3"}) for rank in range(3)]
    for index in range(10):
        assert [ranks.is_mine(index) for ranks in parts].count(True) == 1


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(UsageError, match="2 processes would load one server at once"):
        check_ranks(Ranks(TWO), False, "vllm")
    check_ranks(Ranks(TWO), True, "transformers")
    check_ranks(Ranks({}), False, "vllm")
    with pytest.raises(UsageError, match="must be numbers"):
        Ranks(TWO | {"RANK": "one"})


def test_another_ranks_failure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(TWO)
    monkeypatch.setattr(ranks, "all_of", lambda value: ["no room", None])
    with pytest.raises(RankError, match="rank 0 ended: no room"):
        ranks.together(None)


def test_who_finds_nobody_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torchrun was killed, nobody is at the address that it gave, and nobody ends who waits there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environment = TWO | {"MASTER_PORT": str(port)}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("dflash.ranks._MEETING", timedelta(seconds=1))
    with pytest.raises(RankError, match="the 2 processes of this run did not meet"), Ranks(environment):
        pass


def move_to_rank(folder: Path, rank: int) -> None:
    """As if every other line had been written by another process that was killed before the merging."""
    for name in ("records", "outputs", "chunks"):
        path = folder / f"{name}.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        target = rank_folder(folder, rank) / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"".join(lines[4:]) + b'{"cell_id":"torn')
        path.write_bytes(b"".join(lines[:4]))


@pytest.mark.usefixtures("_made_up")
def test_what_a_killed_process_left_is_merged_when_the_run_goes_on(tmp_path: Path) -> None:
    whole, _ = run_simulated(tmp_path)
    move_to_rank(tmp_path / "run", 1)
    assert len(load_run(tmp_path / "run").records) == 4
    again, backend = run_simulated(tmp_path)
    assert backend.requests == []
    assert again.run.records == whole.run.records
    assert len(list(again.run.outputs())) == len(list(again.run.chunks())) == 8
    assert not (tmp_path / "run/ranks").exists()
    assert any(
        "4 requests of processes that ended early were merged" in note for note in again.run.info.notes
    )


@pytest.mark.usefixtures("_made_up")
def test_merging_twice_doubles_nothing(tmp_path: Path) -> None:
    """A process may be killed between the merging and the removal of what was merged."""
    whole, _ = run_simulated(tmp_path)
    folder = tmp_path / "run"
    move_to_rank(folder, 1)
    lines = read_lines(folder, 1)
    assert left_lines(folder) == [lines]
    writer = RunWriter(folder)
    assert [merge_lines(writer, lines), merge_lines(writer, lines)] == [4, 0]
    writer.close()
    assert load_run(folder).records == whole.run.records


def counts(run: Run) -> list[tuple[Any, ...]]:
    return sorted(
        (
            *(record.cell_id, *record.unit, record.order, record.finish_reason),
            *(record.num_prompt_tokens, record.num_output_tokens, record.num_decode_steps),
            *(record.num_draft_tokens, record.num_accepted_tokens, record.acceptance_histogram),
            *(record.prompt_digest, record.output_digest),
        )
        for record in run.records
    )


@pytest.mark.slow
def test_ids_tokens_and_counts_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from loops.tiny_models import save_tiny_pair

    pair = save_tiny_pair(tmp_path / "pair")
    words = ("one", "two", "three", "sum", "w40", "w41", "plus")
    rows = [{"prompt": f"what is {word} plus {word}"} for word in words]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "run.py").write_text(WITHOUT_REPORT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = f"-m torch.distributed.run --nproc-per-node 2 --master-port {port} --".split()
    line = f"run.py --dataset custom --dataset-file prompts.jsonl --model {pair.target} --draft-model {pair.draft}"
    for number, start in ((1, []), (2, torchrun)):
        settings = f"--max-new-tokens 24 --block-size 2,4 --run of-{number}"
        command = [sys.executable, *start, *line.split(), *settings.split()]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    one, two = (load_run(tmp_path / f"reports/of-{number}") for number in (1, 2))
    assert counts(one) == counts(two)
    assert len(two.records) == 7 * 3
    assert [cell.cell_id for cell in one.info.cells] == [cell.cell_id for cell in two.info.cells]
    assert {cell.status for cell in two.info.cells} == {"completed"}
    of_ranks = [{record.prompt_id for record in two.records if record.segment == rank} for rank in (0, 1)]
    assert [len(prompts) for prompts in of_ranks] == [4, 3]
    assert not of_ranks[0] & of_ranks[1]
    assert [(segment.rank, segment.wall_ns is not None) for segment in two.info.segments] == [
        (0, True),
        (1, True),
    ]
    assert not (two.folder / "ranks").exists()
    stamps = {(record.sent_ns, record.first_ns, record.last_ns, record.draft_ns) for record in two.records}
    assert stamps == {(None,) * 4}, "two processes on one CPU: no time says anything"
    for alone, shared in zip(summarise_run(one).cells, summarise_run(two).cells, strict=True):
        assert shared.number("acceptance_length") == alone.number("acceptance_length")
        assert shared.number("agreement") == alone.number("agreement")
        assert alone.number("decode_tok_s") is not None
        assert shared.number("decode_tok_s") is shared.number("speedup") is shared.number("ttft_s") is None
        assert [finding for finding in shared.findings if finding.severity == "error"] == []
