"""The few lines of a server's log that a person sees, and the fault that is picked out of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash.backends.server_log import (
    MAX_LINE_CHARS,
    NUM_LINES,
    TAIL_BYTES,
    find_fault,
    last_lines,
    last_words,
    read_dtype,
    read_tail,
)
from dflash.command_secrets import hide_secrets, secrets_in, without_secrets

CORE = "(EngineCore pid=41) ERROR 01-31 12:00:00 [core.py:99] "
SERVER = "(APIServer pid=40) "
VLLM_START = [
    f"{SERVER}INFO 01-31 11:59:00 [model.py:7] Using max model len 2048",
    f"{CORE}EngineCore failed to start.",
    f"{CORE}Traceback (most recent call last):",
    f'{CORE}  File "/env/vllm/engine/core.py", line 12, in run',
    f"{CORE}    raise ValueError(text)",
    f"{CORE}    ^^^^^^^^^^^^^^^^^^^^^^",
    f"{CORE}ValueError: Available memory on node 0 is less than requested.",
    f"{SERVER}Traceback (most recent call last):",
    f'{SERVER}  File "/env/vllm/serve.py", line 3, in main',
    f"{SERVER}    run()",
    f"{SERVER}RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}",
]


def test_the_fault_is_the_first_hand_one():
    assert find_fault(VLLM_START) == "ValueError: Available memory on node 0 is less than requested."


def test_a_consequence_is_a_fault_where_there_is_nothing_else():
    assert str(find_fault(VLLM_START[-1:])).startswith("RuntimeError: Engine core initialization failed.")


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["usage: main.py", "main.py: error: no argument --foo"], "main.py: error: no argument --foo"),
        (["a.b.ValidationError: 1 for X", "  no such draft"], "a.b.ValidationError: 1 for X no such draft"),
        (["torch.OutOfMemoryError: CUDA out of memory.", "Killed"], "torch.OutOfMemoryError: CUDA out of memory."),
        (["all went well", "an Error in the middle of a line"], None),
        ([], None),
    ],
)  # fmt: skip
def test_the_fault_is_the_last_one_that_is_named(lines, fault):
    assert find_fault(lines) == fault


def test_lines_that_only_say_where_in_the_code_are_left_out():
    assert last_lines(VLLM_START) == [VLLM_START[i] for i in (0, 1, 6, 10)]


def test_what_a_log_says_last_is_told_without_where_in_the_engine():
    assert last_words(VLLM_START[:1]) == "Using max model len 2048"
    assert last_words(VLLM_START[:6]) == "EngineCore failed to start."
    of_sglang = [
        "[2026-01-31 12:00:00 TP0] Init parallel ends.",
        "a.py:3: UserWarning: slow",
        "  warnings.warn(",
    ]
    assert last_words(of_sglang) == "a.py:3: UserWarning: slow"
    assert last_words(of_sglang[:1]) == "Init parallel ends."
    assert last_words(of_sglang[2:]) == last_words([]) == ""


@pytest.mark.parametrize(
    ("content", "dtype"),
    [
        ("kv_cache_dtype=torch.float8, dtype=torch.bfloat16, x\nDraft: dtype=torch.float16", "bfloat16"),
        ("dtype='auto', kv_cache_dtype=torch.float8", None),
    ],
)
def test_the_dtype_is_the_first_that_an_engine_prints(tmp_path: Path, content: str, dtype: str | None):
    log = tmp_path / "a.log"
    log.write_text(f"dtype=torch.float32 of an earlier start\n{content}\n")
    assert read_dtype(log, start=40) == dtype
    assert read_dtype(tmp_path / "none.log") is None


def test_the_last_lines_are_few():
    assert last_lines(f"line {i}" for i in range(100)) == [f"line {i}" for i in range(80, 100)]
    assert NUM_LINES == 20


def test_what_is_read_of_a_log_is_harmless(tmp_path: Path):
    log = tmp_path / "a.log"
    log.write_bytes(
        b"\x1b[31mred\x1b[0m \x1b]0;title\x07word\n\nloading 1%\rloading 99%\r\n\xff\xfe\x00\x9b\n"
        + b"x" * 10_000
    )
    lines = read_tail(log)
    assert lines[:2] == ["red word", "loading 99%"]
    assert all(line.isprintable() for line in lines)
    assert lines[-1] == "x" * (MAX_LINE_CHARS - 1) + "…"


def test_only_the_end_of_a_log_is_read(tmp_path: Path):
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {i:06d}\n" for i in range(100_000)))
    lines = read_tail(log)
    assert lines[-1] == "line 099999"
    assert len(lines) == TAIL_BYTES // 12
    assert all(len(line) == 11 for line in lines)


def test_what_was_there_before_the_start_is_not_read(tmp_path: Path):
    log = tmp_path / "a.log"
    log.write_text("before\n")
    start = log.stat().st_size
    assert read_tail(log, start) == []
    log.write_text("before\nafter\n")
    assert read_tail(log, start) == ["after"]


def test_a_log_that_is_not_there_has_no_lines(tmp_path: Path):
    assert read_tail(tmp_path / "none.log") == []


def test_every_value_of_a_secret_option_is_hidden():
    words = (
        "--api-key",
        "key-number-1",
        "key-number-2",
        "--seed",
        "3",
        "--hf-token=key-number-3",
        "--lora-modules",
        "a=b",
    )
    hidden = ("--api-key", "***", "***", "--seed", "3", "--hf-token=***", "--lora-modules", "a=b")
    assert hide_secrets(words) == hidden
    assert sorted(secrets_in(words, {})) == ["key-number-1", "key-number-2", "key-number-3"]


def test_a_secret_within_another_and_a_very_short_one_do_not_garble_the_text():
    secrets = secrets_in(
        ("--api-key", "secret", "secret-long", "no"), {"HF_TOKEN": "another", "HF_HOME": "home-folder"}
    )
    assert (
        without_secrets("secret-long no secret another home-folder", secrets) == "*** no *** *** home-folder"
    )
