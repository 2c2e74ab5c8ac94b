"""The command lines that start engines' servers: published words, B in each engine's number, what the user changes."""

from __future__ import annotations

import json
import shlex

import pytest

from dflash.backends.engine_install import EngineInstall
from dflash.backends.launch_commands import LaunchCommand, LaunchSettings, launch_command
from dflash.errors import UsageError
from dflash.results.records import Arm

BASE = Arm("baseline")
DRAFTING = Arm("dflash", 16)
SETTINGS = LaunchSettings(model="Qwen/Qwen3-8B", draft_model="z-lab/Qwen3-8B-DFlash-b16", port=8123)
ON_CPU = LaunchSettings(model="target", draft_model="draft", device="cpu", max_model_len=2048)
GPU_ONLY = {
    "--attention-backend",
    "--max-num-batched-tokens",
    "--speculative-draft-attention-backend",
    "--mem-fraction-static",
}
KEY = "sk-very-secret-key"


def install(engine: str, **known: object) -> EngineInstall:
    return EngineInstall(engine, "/env/bin/python", **known)  # type: ignore[arg-type]


def options(command: LaunchCommand) -> dict[str, str | None]:
    """Flag -> value, None for a switch."""
    words = command.argv
    following = [*words[1:], "--"]
    return {
        word: None if after.startswith("--") else after
        for word, after in zip(words, following, strict=True)
        if word.startswith("--")
    }


def with_args(*server_args: str, arm: Arm = DRAFTING, engine: str = "vllm") -> LaunchCommand:
    settings = LaunchSettings(model="target", draft_model="draft", device="cuda", server_args=server_args)
    return launch_command(engine, arm, settings)


def test_vllm_is_started_by_the_published_command():
    command = launch_command("vllm", DRAFTING, SETTINGS, install("vllm"))
    start = ("/env/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", "Qwen/Qwen3-8B")
    assert command.argv[: len(start)] == start
    given = options(command)
    assert json.loads(given["--speculative-config"] or "") == {
        "method": "dflash",
        "model": "z-lab/Qwen3-8B-DFlash-b16",
        "num_speculative_tokens": 15,
    }
    assert given["--attention-backend"] == "flash_attn"
    assert given["--max-num-batched-tokens"] == "32768"
    assert given["--per-request-spec-decode-metrics"] == "detailed"
    switches = (
        "--enable-per-request-metrics",
        "--enable-prompt-tokens-details",
        "--no-enable-prefix-caching",
    )
    assert [given[flag] for flag in switches] == [None, None, None]
    assert (given["--host"], given["--port"], command.url) == ("127.0.0.1", "8123", "http://127.0.0.1:8123")
    assert command.ready_paths == ("/health",)


def test_sglang_is_started_by_the_published_command():
    command = launch_command("sglang", DRAFTING, SETTINGS, install("sglang"))
    start = ("/env/bin/python", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B")
    assert command.argv[: len(start)] == start
    given = options(command)
    assert given["--speculative-algorithm"] == "DFLASH"
    assert given["--speculative-draft-model-path"] == "z-lab/Qwen3-8B-DFlash-b16"
    assert given["--speculative-num-draft-tokens"] == "16"
    assert given["--attention-backend"] == "trtllm_mha"
    assert given["--speculative-draft-attention-backend"] == "fa4"
    assert given["--mem-fraction-static"] == "0.75"
    assert {"--enable-metrics", "--disable-radix-cache"} <= given.keys()
    assert command.ready_paths == ("/health", "/v1/models")


@pytest.mark.parametrize("block_size", [2, 8, 16])
def test_B_is_translated_to_each_engines_own_number(block_size):
    arm = Arm("dflash", block_size)
    vllm, sglang = (launch_command(engine, arm, SETTINGS) for engine in ("vllm", "sglang"))
    config = json.loads(options(vllm)["--speculative-config"] or "")
    assert config["num_speculative_tokens"] == block_size - 1
    assert options(sglang)["--speculative-num-draft-tokens"] == str(block_size)
    for command in (vllm, sglang):
        told = next(note for note in command.notes if note.startswith(f"B = {block_size}:"))
        assert str(block_size - 1) in told


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("settings", [SETTINGS, ON_CPU], ids=["gpu", "cpu"])
def test_the_baseline_is_the_same_server_without_the_draft(engine, settings):
    base, drafting = (options(launch_command(engine, arm, settings)) for arm in (BASE, DRAFTING))
    added = drafting.keys() - base.keys()
    assert base == {flag: value for flag, value in drafting.items() if flag not in added}
    assert added
    assert all("spec" in flag for flag in added)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_needs_a_gpu_is_left_out_on_a_cpu(engine):
    given = options(launch_command(engine, DRAFTING, ON_CPU, install(engine, num_cpus=3)))
    assert given.get("--attention-backend") in (None, "torch_native")
    assert not (GPU_ONLY - {"--attention-backend"}) & given.keys()
    assert given["--dtype"] == "float32"
    assert given.get("--max-model-len", given.get("--context-length")) == "2048"


def test_the_device_follows_from_the_engine_and_the_machine_where_it_is_not_given():
    settings = LaunchSettings(model="target")
    on_gpu = {
        name: "--attention-backend" in options(launch_command("vllm", BASE, settings, found))
        for name, found in {
            "gpu": install("vllm"),
            "cpu build": install("vllm", is_cpu_build=True),
            "no gpu": install("vllm", has_gpu=False),
        }.items()
    }
    assert on_gpu == {"gpu": True, "cpu build": False, "no gpu": False}


def test_a_cpu_server_gets_threads_memory_and_its_openmp_unless_the_environment_says_otherwise():
    found = install("vllm", num_cpus=3, openmp_library="/env/lib/libiomp5.so", is_cpu_build=True)
    command = launch_command("vllm", BASE, ON_CPU, found)
    full = command.full_environment({"LD_PRELOAD": "/lib/other.so", "PATH": "/bin", "OMP_NUM_THREADS": ""})
    assert full["OMP_NUM_THREADS"] == "3"
    assert full["LD_PRELOAD"] == "/env/lib/libiomp5.so:/lib/other.so"
    assert full["PATH"] == "/env/bin:/bin"
    assert full["VLLM_CPU_OMP_THREADS_BIND"] == "auto"
    assert "HF_HUB_OFFLINE" not in full
    own = {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "9", "CUDA_VISIBLE_DEVICES": ""}
    full = command.full_environment(own)
    assert {name: full[name] for name in own} == own
    assert "VLLM_CPU_KVCACHE_SPACE=9" in command.printable(own)


def test_given_environment_wins():
    settings = LaunchSettings(model="target", environment={"OMP_NUM_THREADS": "7"})
    full = launch_command("vllm", BASE, settings).full_environment({"OMP_NUM_THREADS": "1"})
    assert full["OMP_NUM_THREADS"] == "7"


def test_both_arms_of_sglang_get_the_same_room_for_requests():
    for num, expected in ((48, None), (64, "64")):
        settings = LaunchSettings(model="target", draft_model="draft", device="cuda", max_concurrency=num)
        for arm in (BASE, DRAFTING):
            given = options(launch_command("sglang", arm, settings))
            assert given.get("--max-running-requests") == expected, arm


def test_vllm_is_not_left_to_queue_what_was_asked_for_at_once():
    for num, expected in ((256, None), (512, "512")):
        settings = LaunchSettings(model="target", device="cuda", max_concurrency=num)
        assert options(launch_command("vllm", BASE, settings)).get("--max-num-seqs") == expected


def test_a_server_arg_takes_the_place_of_the_templates():
    command = with_args("--attention_backend=triton_attn", "--max-num-batched-tokens 8192", "--seed", "7")
    assert "--attention-backend" not in command.argv
    assert command.argv[-5:] == (
        "--attention_backend=triton_attn",
        "--max-num-batched-tokens",
        "8192",
        "--seed",
        "7",
    )
    assert command.argv.count("--max-num-batched-tokens") == 1


def test_the_opposite_of_a_switch_takes_its_place():
    command = with_args("--enable-prefix-caching")
    assert "--no-enable-prefix-caching" not in command.argv
    assert "--enable-prefix-caching" in command.argv


def test_a_note_on_what_was_replaced_is_not_given():
    assert any("Blackwell" in note for note in with_args(engine="sglang").notes)
    assert not any(
        "Blackwell" in note for note in with_args("--attention-backend=fa3", engine="sglang").notes
    )


def test_a_server_arg_can_be_for_one_arm():
    server_args = (
        "dflash:--seed",
        "dflash:7",
        "baseline:--max-num-seqs 4",
        "ngram:--k=5",
        "--chat-template=http://x",
    )
    drafting = with_args(*server_args).argv
    base = with_args(*server_args, arm=BASE).argv
    assert drafting[-3:] == ("--seed", "7", "--chat-template=http://x")
    assert base[-3:] == ("--max-num-seqs", "4", "--chat-template=http://x")


@pytest.mark.parametrize(
    ("engine", "arm", "server_args", "known"),
    [
        ("vllm", BASE, (), (None, None)),
        ("vllm", DRAFTING, (), (None, "dflash")),
        ("sglang", DRAFTING, ("--dtype=half",), ("float16", "dflash")),
        ("vllm", BASE, ("--dtype float", "--dtype bfloat16"), ("bfloat16", None)),
        ("vllm", BASE, ("--dtype", "auto"), (None, None)),
        ("vllm", DRAFTING, ('--speculative-config={"method": "Eagle3"}',), (None, "eagle3")),
        ("vllm", DRAFTING, ("--speculative_config={no JSON",), (None, None)),
        ("vllm", DRAFTING, ("--speculative-config=[3]",), (None, None)),
    ],
)
def test_what_a_server_is_started_as_is_what_its_words_say(engine, arm, server_args, known):
    started_as = with_args(*server_args, arm=arm, engine=engine).started_as
    assert (started_as.dtype, started_as.method) == known


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_on_a_cpu_the_words_say_the_dtype(engine):
    assert launch_command(engine, BASE, ON_CPU).started_as.dtype == "float32"


def test_a_value_with_blanks_or_a_colon_stays_one_word():
    config = '{"method": "dflash", "model": "d", "num_speculative_tokens": 3}'
    assert with_args(f"--speculative-config={config}").argv[-1] == f"--speculative-config={config}"
    assert with_args(f"--speculative-config {config}").argv[-2:] == ("--speculative-config", config)
    assert with_args("--load", "s3://bucket/x").argv[-2:] == ("--load", "s3://bucket/x")


@pytest.mark.parametrize("word", ["--port=1", "--host", "--model x", "dflash:--model_path=y", "--uds=/x"])
def test_what_is_said_elsewhere_is_refused(word):
    with pytest.raises(UsageError, match="cannot be given"):
        with_args(word)


def test_an_arm_without_a_published_command_is_started_by_its_own_words():
    arm = Arm("ngram", 6)
    config = '{"method": "ngram", "num_speculative_tokens": 5}'
    command = with_args(f"ngram:--speculative-config={config}", arm=arm)
    assert command.argv[-1] == f"--speculative-config={config}"
    assert options(command)["--per-request-spec-decode-metrics"] == "detailed"
    with pytest.raises(UsageError, match="no published command"):
        with_args("--seed=1", arm=arm)


def test_secrets_are_in_nothing_that_is_shown():
    settings = LaunchSettings(
        model="target",
        draft_model="draft",
        server_args=("--api-key", KEY, "--hf_token=hf-secret-token", "--seed", "3"),
        environment={"HF_TOKEN": "env-secret-token", "OMP_NUM_THREADS": "2"},
    )
    command = launch_command("vllm", BASE, settings)
    assert command.argv[-5:] == ("--api-key", KEY, "--hf_token=hf-secret-token", "--seed", "3")
    assert set(command.secrets) == {KEY, "hf-secret-token", "env-secret-token"}
    for shown in (command.printable(), repr(command), repr(settings)):
        assert not any(secret in shown for secret in command.secrets)
    assert command.printable().endswith("--api-key '***' '--hf_token=***' --seed 3")


def test_numbers_of_tokens_are_no_secrets():
    assert "--max-num-batched-tokens 32768" in launch_command("vllm", BASE, SETTINGS).printable()


def test_what_is_printed_is_what_is_run():
    command = launch_command("vllm", DRAFTING, SETTINGS, install("vllm")).with_port(4321)
    words = shlex.split(command.printable())
    assert tuple(words[words.index("/env/bin/python") :]) == command.argv
    assert options(command)["--port"] == "4321"
    assert command.url == "http://127.0.0.1:4321"
    assert "PATH=/env/bin:$PATH" in words


def test_options_that_a_release_does_not_have_are_left_out_and_noted():
    found = install("vllm", version="0.21.0", options=frozenset({"enable-prompt-tokens-details"}))
    command = launch_command("vllm", DRAFTING, SETTINGS, found)
    assert "--enable-prompt-tokens-details" in command.argv
    for flag in ("--enable-per-request-metrics", "--per-request-spec-decode-metrics"):
        assert flag not in command.argv
        assert f"vLLM 0.21.0 has no {flag}: left out" in command.notes
    assert "detailed" not in command.argv


def test_vllm_without_a_distribution_of_its_name_is_started_by_the_server_alone():
    command = launch_command("vllm", BASE, SETTINGS, install("vllm", distributions=("vllm-cpu",)))
    start = ("/env/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "Qwen/Qwen3-8B")
    assert command.argv[: len(start)] == start


@pytest.mark.parametrize(
    ("arm", "settings", "words"),
    [
        (Arm("dflash"), SETTINGS, "--block-size"),
        (DRAFTING, LaunchSettings(model="target"), "--draft-model"),
        (BASE, LaunchSettings(model="target", device="cuda:1"), "CUDA_VISIBLE_DEVICES"),
        (BASE, LaunchSettings(model="target", device="mps"), "cpu or cuda"),
    ],
)
def test_what_is_missing_or_unknown_is_named(arm, settings, words):
    with pytest.raises(UsageError, match=words):
        launch_command("vllm", arm, settings)


def test_a_cpu_build_cannot_be_asked_for_a_gpu():
    settings = LaunchSettings(model="target", device="cuda")
    with pytest.raises(UsageError, match="built for CPU"):
        launch_command("vllm", BASE, settings, install("vllm", version="0.32.0", is_cpu_build=True))
