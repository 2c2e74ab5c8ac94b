"""The verb `generate` on a tiny pair: what it streams, what it says about speed, and the code it ends with."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from loops.tiny_models import save_tiny_pair

from dflash.backends.base import Generation
from dflash.backends.transformers import TransformersBackend
from dflash.generate import main, stats_line
from dflash.results.records import BASELINE, Arm
from dflash.text_stream import TextStream


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return save_tiny_pair(tmp_path_factory.mktemp("pair"))


def arguments(pair: SimpleNamespace, *more: str) -> list[str]:
    models = ["--model", str(pair.target), "--draft-model", str(pair.draft), "--device", "cpu"]
    return [*models, "--max-new-tokens", "12", *more]


def as_bytes(token_ids: Sequence[int]) -> str:
    """A tokenizer whose tokens are single bytes."""
    return bytes(token_ids).decode("utf-8", errors="replace")


@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_no_half_character_is_written(step: int) -> None:
    text = "naïve 東京 😀👩‍🚀!"
    written: list[str] = []
    stream = TextStream(as_bytes, written.append)
    content = text.encode()
    for start in range(0, len(content), step):
        stream.add(content[start : start + step])
        assert text.startswith("".join(written))
    stream.end()
    assert "".join(written) == text


def test_what_is_never_completed_is_written_at_the_end() -> None:
    written: list[str] = []
    stream = TextStream(as_bytes, written.append)
    stream.add("a😀".encode()[:-1])
    assert written == ["a"]
    stream.end()
    assert "".join(written) == "a\ufffd"


def test_a_broken_character_in_the_middle_is_shown_once_the_next_has_come() -> None:
    written: list[str] = []
    stream = TextStream(as_bytes, written.append)
    stream.add(b"a\xff")
    stream.add(b"b")
    assert "".join(written) == "a\ufffdb"


def test_both_ways_of_decoding_print_the_same_answer(
    pair: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["what is one", *arguments(pair, "--block-size", "4")]) == 0
    drafted = capsys.readouterr()
    plain_arguments = ["--model", str(pair.target), "--device", "cpu", "--max-new-tokens", "12", "--no-draft"]
    assert main(["what is one", *plain_arguments]) == 0
    plain = capsys.readouterr()
    assert drafted.out == plain.out
    assert drafted.out.strip()
    assert drafted.out.endswith("\n")
    (drafted_line,), (plain_line,) = drafted.err.splitlines(), plain.err.splitlines()
    assert drafted_line.startswith("dflash B=4: ")
    assert "acceptance length" in drafted_line
    assert plain_line.startswith("baseline: ")
    assert "acceptance length" not in plain_line


def test_the_line_of_numbers_is_that_of_the_metrics() -> None:
    generation = Generation(
        sent_ns=0,
        first_ns=250_000_000,
        last_ns=2_250_000_000,
        finish_reason="stop",
        num_prompt_tokens=5,
        num_output_tokens=9,
        num_first_chunk_tokens=1,
        num_decode_steps=4,
    )
    assert stats_line(generation, Arm("dflash", 3)) == (
        "dflash B=3: 9 tokens, 4.0 tok/s, TTFT 250.0 ms, acceptance length 2.00, 4 steps, finish reason stop"
    )
    assert stats_line(generation, Arm(BASELINE)).startswith("baseline: 9 tokens, 4.0 tok/s")


def test_one_token_has_no_speed_and_no_acceptance(
    pair: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["one", *arguments(pair, "--max-new-tokens", "1")]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "1 tokens, n/a tok/s" in line
    assert "acceptance length n/a, 0 steps" in line


def test_quiet_prints_the_answer_only(
    pair: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("what is\none\n"))
    assert main(["-", *arguments(pair, "--quiet")]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip()
    assert printed.err == ""


def test_sampling_is_seeded(pair: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for seed in ("1", "1", "2"):
        assert main(["one", *arguments(pair, "--temperature", "2", "--seed", seed)]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["  "], 2, "the prompt is empty"),
        ([""], 2, "the prompt is empty"),
        (["\udcff"], 2, "UTF-8"),
        ([], 2, "PROMPT"),
        (["x", "--top-k", "3"], 2, "--top-k"),
        (["x", "--max-new-tokens", "0"], 2, "--max-new-tokens 0"),
        (["x", "--block-size", "1"], 2, "--block-size 1"),
        (["x", "--no-draft", "--block-size", "4"], 2, "--no-draft"),
        (["x", "--no-draft", "--draft-model", "d"], 2, "--no-draft"),
        (
            ["x", "--no-draft", "--backend", "mlx", "--draft-bits", "4"],
            2,
            "--draft-bits contradicts --no-draft",
        ),
        (["x", "--draft-bits", "4"], 2, "it is for --backend mlx"),
        (["x", "--backend", "mlx", "--draft-bits", "5"], 2, "--draft-bits 5 is not possible"),
        (["x", "--backend", "vllm"], 2, "choose from"),
        (["x", "--model", "m"], 2, "--no-draft for plain decoding"),
        (["x", "--dtype", "float8"], 2, "float8"),
    ],
)
def test_wrong_arguments_are_one_line(
    words: list[str], code: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    assert expected in line


@pytest.mark.parametrize(
    ("more", "code", "expected"),
    [
        (["--max-new-tokens", "600"], 3, "exceed the context of 512"),
        (["--block-size", "17"], 2, "--force-block-size"),
        (["--reasoning", "on"], 2, "--reasoning on"),
    ],
)
def test_what_only_the_model_knows_is_one_line_too(
    pair: SimpleNamespace, more: list[str], code: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["one", *arguments(pair, *more)]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert expected in line


def test_ctrl_c_keeps_what_was_printed(
    pair: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_calls = 0
    original = TransformersBackend.detokenise

    def interrupted(backend: TransformersBackend, token_ids: Any) -> str:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 4:
            signal.raise_signal(signal.SIGINT)
        return original(backend, token_ids)

    monkeypatch.setattr(TransformersBackend, "detokenise", interrupted)
    before = signal.getsignal(signal.SIGINT)
    assert main(["what is one", *arguments(pair, "--block-size", "2")]) == 130
    printed = capsys.readouterr()
    assert printed.out.strip()
    assert printed.out.endswith("\n")
    (line,) = printed.err.splitlines()
    assert line.startswith("interrupted")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_reader_that_has_gone_is_no_error(pair: SimpleNamespace) -> None:
    command = [sys.executable, "-m", "dflash.generate", "one", *arguments(pair)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=120) == 0, errors
    (line,) = errors.splitlines()  # what it cost is for another reader
    assert line.startswith("dflash B=16: 12 tokens")
