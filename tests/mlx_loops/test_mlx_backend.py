"""The MLX backend on tiny saved pairs: both arms, the same as the Transformers backend, and what it refuses."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from loops.tiny_models import save_tiny_draft, save_tiny_pair, tiny_draft

from dflash.backends import create_backend, thermal
from dflash.backends import mlx as backend_module
from dflash.backends.base import (
    BackendDescription,
    BackendSettings,
    Generation,
    GenerationRequest,
    Message,
    Sampling,
)
from dflash.backends.in_process import folder_revision
from dflash.backends.mlx import MLXBackend
from dflash.backends.transformers import TransformersBackend
from dflash.benchmark import main
from dflash.errors import DraftError, MissingExtraError, ModelError, RequestError, UsageError
from dflash.generate import main as generate
from dflash.mlx_decoding import decode
from dflash.results.metrics import acceptance_length, tpot_s
from dflash.results.records import BASELINE, Arm
from dflash.results.store import load_run

PROMPTS = ("what is one plus two", "the sum of three and w40 w41", "two")
ARMS = (Arm(BASELINE), Arm("dflash", 2), Arm("dflash", 5), Arm("dflash"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return save_tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(autouse=True)
def opened_backends() -> Iterator[None]:
    yield
    mx.disable_compile()  # a backend that is closed enables it


def settings(pair: SimpleNamespace, **changes: Any) -> BackendSettings:
    return BackendSettings(model=str(pair.target), draft_model=str(pair.draft), **changes)


def opened(
    pair: SimpleNamespace, arms: Sequence[Arm] = ARMS, **changes: Any
) -> tuple[MLXBackend, BackendDescription]:
    backend = MLXBackend(settings(pair, **changes))
    description = asyncio.run(backend.open(arms))
    mx.disable_compile()
    return backend, description


def ask(backend: Any, arm: Arm, prompt: str, **changes: Any) -> Generation:
    request = GenerationRequest("r", arm, (Message("user", prompt),), **{"max_new_tokens": 20, **changes})
    generation: Generation = backend.run(request)
    return generation


def test_both_arms_say_what_the_transformers_backend_says(any_pair: SimpleNamespace) -> None:
    backend, description = opened(any_pair)
    other = TransformersBackend(settings(any_pair, device="cpu"))
    wanted = asyncio.run(other.open(ARMS))
    assert description.arms == wanted.arms
    assert (description.dtype, description.target_revision) == ("float32", wanted.target_revision)
    assert description.weights_bytes == wanted.weights_bytes
    for sampling, prompt in ((Sampling(), PROMPTS[0]), (Sampling(0.8, top_p=0.9, top_k=20), PROMPTS[1])):
        for arm in description.arms:
            mine = ask(backend, arm, prompt, sampling=sampling, seed=3)
            theirs = ask(other, arm, prompt, sampling=sampling, seed=3)
            assert mine.prompt_ids == theirs.prompt_ids  # rule 4
            assert (mine.output_ids, mine.text) == (theirs.output_ids, theirs.text)
            assert mine.step_num_accepted == theirs.step_num_accepted
            assert mine.acceptance_histogram == theirs.acceptance_histogram
            assert mine.finish_reason == theirs.finish_reason
    assert asyncio.run(backend.logit_gap(_request(PROMPTS[0]), (7, 9))) == pytest.approx(
        asyncio.run(other.logit_gap(_request(PROMPTS[0]), (7, 9))), abs=1e-4
    )
    asyncio.run(backend.aclose())


def test_a_logit_gap_computes_the_logits_of_one_position(
    pair: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a long prompt would need more memory than its decoding did."""
    backend, _ = opened(pair, ARMS[:1])
    target = backend._target
    assert target is not None
    forward, given = target.forward, []

    def watched(token_ids: mx.array, *more: Any, **options: Any) -> Any:
        given.append(token_ids.shape[0])
        return forward(token_ids, *more, **options)

    monkeypatch.setattr(target, "forward", watched)
    gap = asyncio.run(backend.logit_gap(_request(PROMPTS[0]), (7, 9)))
    assert gap is not None
    assert gap > 0
    assert given[-1] == 1
    assert len(given) == 2


def _request(prompt: str) -> GenerationRequest:
    return GenerationRequest("r", Arm(BASELINE), (Message("user", prompt),), max_new_tokens=4)


def test_one_prompt_is_answered_as_by_the_transformers_backend(
    pair: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verb `generate`: the same text and the same counts from both engines."""
    models = ["--model", str(pair.target), "--draft-model", str(pair.draft), "--device", "cpu"]
    found = []
    for backend in ("mlx", "transformers"):
        assert generate([PROMPTS[0], "--backend", backend, *models, "--max-new-tokens", "12"]) == 0
        printed = capsys.readouterr()
        found.append((printed.out, printed.err[printed.err.index("acceptance length") :]))
    assert found[0] == found[1]
    assert found[0][0].strip()


def test_what_a_request_gives(pair: SimpleNamespace) -> None:
    backend, description = opened(pair)
    assert description.arms[3].block_size == 16
    assert description.arms[1].draft_revision == folder_revision(pair.draft)
    assert description.environment["device_kind"] == "cpu"
    assert {"mlx", "mlx_lm"} <= description.environment.keys()
    generation = ask(backend, description.arms[2], PROMPTS[0])
    assert generation.num_first_chunk_tokens == 1
    assert generation.sent_ns < (generation.first_ns or 0) < (generation.last_ns or 0)
    assert generation.num_output_tokens == sum(generation.chunk_num_tokens)
    assert generation.num_decode_steps == generation.num_verify_steps == len(generation.chunk_gaps_ns)
    assert generation.num_draft_tokens == 4 * (generation.num_decode_steps or 0)
    parts_ns = (generation.draft_ns or 0, generation.verify_ns or 0)  # known on a CPU
    assert min(parts_ns) > 0
    assert sum(parts_ns) <= sum(generation.chunk_gaps_ns)
    assert generation.peak_memory_bytes
    plain = ask(backend, description.arms[0], PROMPTS[0])
    assert (plain.num_verify_steps, plain.acceptance_histogram, plain.step_num_accepted) == (0, None, None)
    for prompt in ("", "  "):
        with pytest.raises(RequestError, match="empty"):
            ask(backend, description.arms[0], prompt)
    with pytest.raises(RequestError, match="exceed the context of 512"):
        ask(backend, description.arms[0], PROMPTS[0], max_new_tokens=512)


@pytest.mark.parametrize(
    "message",
    [
        "[malloc] Unable to allocate 99 bytes.",
        "[METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPU)",
    ],
)
def test_memory_that_is_not_there_fails_the_request_only(
    pair: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    backend, _ = opened(pair, ARMS[:1])

    def fail(*given: Any, **options: Any) -> Any:
        raise RuntimeError(message)

    with monkeypatch.context() as patched:
        patched.setattr(backend_module, "decode", fail)
        with pytest.raises(RequestError, match="out of memory with a prompt of"):
            ask(backend, ARMS[0], PROMPTS[0])
    assert ask(backend, ARMS[0], PROMPTS[0]).output_ids


def test_history_and_text_hold_no_special_token(pair: SimpleNamespace) -> None:
    """Fault U16: with the stop token in the text, the second turn's prompt would hold it twice."""
    backend, description = opened(pair)
    backend._stop_token_ids = frozenset()
    free = ask(backend, description.arms[0], PROMPTS[1], max_new_tokens=12)
    assert free.output_ids is not None
    stop = free.output_ids[4]
    backend._stop_token_ids = frozenset({stop})
    backend._tokenizer.add_special_tokens({"eos_token": backend._tokenizer.convert_ids_to_tokens(stop)})
    stopped = ask(backend, description.arms[2], PROMPTS[1], max_new_tokens=12)
    assert stopped.output_ids is not None
    assert stopped.output_ids[-1] == stop
    assert stopped.text is not None
    assert backend._tokenizer.eos_token not in stopped.text
    history = (Message("user", PROMPTS[1]), Message("assistant", stopped.text), Message("user", "two"))
    ids = backend.run(GenerationRequest("t2", ARMS[0], history, max_new_tokens=1)).prompt_ids
    other = TransformersBackend(settings(pair, device="cpu"))
    asyncio.run(other.open(ARMS[:1]))
    other._tokenizer.add_special_tokens({"eos_token": backend._tokenizer.eos_token})
    assert other.run(GenerationRequest("t2", ARMS[0], history, max_new_tokens=1)).prompt_ids == ids


def test_draft_bits_are_part_of_the_arm_and_change_no_token(pair: SimpleNamespace, tmp_path: Path) -> None:
    changes = {"hidden_size": 32, "intermediate_size": 64, "head_dim": 8}
    folder = save_tiny_draft(tmp_path / "wide", tiny_draft(**changes), **changes)
    wide = SimpleNamespace(target=pair.target, draft=folder)
    wanted = None
    for bits in (None, 4, 8):
        backend, description = opened(wide, ARMS[:2], draft_bits=bits)
        suffix = "" if bits is None else f"-{bits}bit"
        assert description.arms[1].draft_revision == folder_revision(folder) + suffix
        assert description.environment["draft_bits"] == bits
        ids = ask(backend, description.arms[1], PROMPTS[0]).output_ids
        wanted = wanted or ids
        assert ids == wanted
    nowhere = SimpleNamespace(target="./nowhere", draft=pair.draft)  # it is said before a target is loaded
    with pytest.raises(
        DraftError, match=r"layers\.\d\.mlp\.down_proj has 48 inputs, which groups of 64 or 32"
    ):
        opened(nowhere, draft_bits=4)


def test_bad_input_is_one_clear_line(pair: SimpleNamespace, tmp_path: Path) -> None:
    def refused(
        error: type[Exception], match: str, target: Path = pair.target, draft: Path = pair.draft
    ) -> None:
        with pytest.raises(error, match=match) as caught:
            opened(SimpleNamespace(target=target, draft=draft))
        assert "\n" not in str(caught.value)

    other = save_tiny_draft(tmp_path / "other", tiny_draft(vocab_size=99), vocab_size=99)
    refused(DraftError, "a vocabulary of 99 tokens, .* has 64", draft=other)
    settings = {"mask_token_id": 5, "target_layer_ids": [0, 2]}
    stop = save_tiny_draft(tmp_path / "stop", tiny_draft(dflash_config=settings), dflash_config=settings)
    refused(DraftError, "mask token id 5 is a stop token", draft=stop)
    with pytest.raises(ModelError, match=r"target '\./nowhere' is no folder"):
        asyncio.run(MLXBackend(BackendSettings(model="./nowhere", draft_model=str(pair.draft))).open(ARMS))
    unknown = tmp_path / "unknown"
    shutil.copytree(pair.target, unknown)
    config = json.loads((unknown / "config.json").read_text())
    (unknown / "config.json").write_text(json.dumps({**config, "model_type": "qwen3", "head_dim": 4}))
    refused(ModelError, "the target in .* cannot be loaded", target=unknown)
    for device, match in (("cuda:0", "not one of MLX: use cpu or gpu"), ("gpu", "MLX sees no such device")):
        if device == "gpu" and mx.is_available(mx.gpu):
            continue
        with pytest.raises(UsageError, match=match):
            opened(pair, device=device)
    with pytest.raises(UsageError, match="attn-implementation"):
        opened(pair, attn_implementation="eager")
    silent = tmp_path / "silent"
    shutil.copytree(pair.target, silent, ignore=shutil.ignore_patterns("tokenizer*"))
    refused(ModelError, "the tokenizer of .* knows no word", target=silent)
    backend, _ = opened(pair, ARMS[:1])
    with pytest.raises(UsageError, match="needs a draft"):
        ask(backend, ARMS[1], PROMPTS[0])


def test_without_mlx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins
    import sys

    real = builtins.__import__

    def without(name: str, *given: Any, **options: Any) -> Any:
        if name.split(".")[0] == "mlx":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *given, **options)

    mine = ("dflash.backends.mlx", "dflash.mlx_", "dflash.model_mlx")
    for module in [name for name in sys.modules if name.startswith(mine)]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"needs the package 'mlx.*pip install 'dflash\[mlx\]'"):
        create_backend("mlx", BackendSettings())
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'mlx.*: pip install 'dflash\[mlx\]'"):
        importlib.import_module("dflash.model_mlx")


def test_without_a_compiler_the_kernels_are_not_compiled(
    pair: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mx.is_available(mx.gpu):
        pytest.skip("the default device is a GPU, whose kernels need no compiler")
    monkeypatch.setattr(backend_module, "COMPILER", "no-such-compiler")
    backend, description = opened(pair, ARMS[:1])
    assert description.environment["mlx_compile"] is False
    assert ask(backend, ARMS[0], PROMPTS[0]).output_ids


def test_a_slower_draft_is_said_plainly_and_prompts_fall_into_lengths(
    pair: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults 13 and 14, and U13: a draft that is nearly never right, on a clock that is read once a step."""

    def timed(target: Any, draft: Any, *given: Any, **options: Any) -> Any:
        ticks = itertools.count(1, 10_000_000 if draft is None else 50_000_000)  # ns a step
        return decode(target, draft, *given, clock=lambda: next(ticks), **options)

    monkeypatch.setattr(backend_module, "decode", timed)
    rows = tmp_path / "rows.jsonl"
    texts = ["two", "sum of " * 60, "what is one", "the sum of w40", "three", "plus " * 90]
    rows.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    arguments = ["--backend", "mlx", "--model", str(pair.target), "--draft-model", str(pair.draft)]
    data = ["--dataset", "custom", "--dataset-file", str(rows), "--max-new-tokens", "16", "--warmup", "0"]
    place = ["--output-dir", str(tmp_path), "--run", "slow", "--quiet", "--block-size", "16"]
    assert main([*arguments, *data, *place]) == 0
    run = load_run(tmp_path / "slow")
    by_arm = {
        cell.arm.name: [record for record in run.records if record.cell_id == cell.cell_id]
        for cell in run.info.cells
    }
    tau = acceptance_length(by_arm["dflash"])
    assert tau is not None
    assert 1 <= tau < 2
    # One step a token, and the prefill's token is in neither clock nor count.
    assert tpot_s(by_arm[BASELINE]) == pytest.approx(0.01)
    assert tpot_s(by_arm["dflash"]) == pytest.approx(0.05 / tau)
    report = (tmp_path / "slow" / "report.md").read_text()
    assert f"Plain decoding is fastest: dflash B=16 decodes {0.2 * tau:.2f} times as fast" in report
    assert "By prompt length" in report
    assert not run.differences


def test_the_mac_says_how_hot_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thermal.platform, "system", lambda: "Linux")
    assert thermal.thermal_state() is None
    monkeypatch.setattr(thermal.platform, "system", lambda: "Darwin")

    class Runtime:
        number = 2

        def find_class(self, name: str) -> str:
            return name

        def send(self, result: Any, receiver: Any, message: str) -> Any:
            if message == "processInfo":
                assert receiver == "NSProcessInfo"
                return "process"
            assert (receiver, message) == ("process", "thermalState")
            return self.number

    monkeypatch.setattr(thermal, "_runtime", Runtime)
    assert thermal.thermal_state() == "serious"
    Runtime.number = 9
    assert thermal.thermal_state() is None

    def fail() -> Any:
        raise OSError("no such library")

    monkeypatch.setattr(thermal, "_runtime", fail)
    assert thermal.thermal_state() is None
    assert thermal.thermal_note([None, None]) is None
    assert "nominal at worst" in (thermal.thermal_note(["nominal", None]) or "")
    assert "serious at worst, serious or above at 2 of 3" in (
        thermal.thermal_note(["fair", "serious", "serious"]) or ""
    )


def test_heat_is_a_note_of_the_run(
    pair: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "thermal_state", lambda: "critical")
    arguments = ["--backend", "mlx", "--model", str(pair.target), "--arms", "baseline", "--num-prompts", "1"]
    place = ["--output-dir", str(tmp_path), "--run", "hot", "--quiet", "--max-new-tokens", "4"]
    assert main([*arguments, *place, "--reasoning", "off"]) == 0
    notes = load_run(tmp_path / "hot").info.notes
    assert any("thermal state was critical at worst" in note for note in notes)
