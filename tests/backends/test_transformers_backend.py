"""The Transformers backend on tiny saved pairs: both arms, what it says about itself, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loops.tiny_models import (
    MASK_ID,
    VOCABULARY,
    save_tiny_draft,
    save_tiny_pair,
    tiny_draft,
)
from transformers import AutoTokenizer

from dflash.backends import transformers as backend_module
from dflash.backends.base import BackendSettings, Generation, GenerationRequest, Message, Sampling
from dflash.backends.chat_template import reasoning_arguments, render_prompt, stop_token_ids
from dflash.backends.in_process import folder_revision
from dflash.backends.transformers import TransformersBackend
from dflash.errors import DFlashError, DraftError, ModelError, RequestError, UsageError
from dflash.results.records import BASELINE, Arm, Cell, RequestRecord, Workload
from dflash.results.verify import acceptance_fault, histogram_fault, stamps_fault, tokens_fault

PROMPTS = ("what is one plus two", "the sum of three and w40 w41", "two")
CONTEXT = 512  # of the tiny targets
BASELINE_ARM = Arm(BASELINE)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def any_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return save_tiny_pair(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return save_tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def copied_pair(pair: SimpleNamespace, tmp_path: Path) -> SimpleNamespace:
    """A pair whose files a test may change."""
    for name in ("target", "draft"):
        shutil.copytree(getattr(pair, name), tmp_path / name)
    return SimpleNamespace(target=tmp_path / "target", draft=tmp_path / "draft")


def opened(
    pair: SimpleNamespace, arms: Sequence[Arm] = (BASELINE_ARM, Arm("dflash", 4)), **settings: Any
) -> tuple[TransformersBackend, Any]:
    values = {"model": str(pair.target), "draft_model": str(pair.draft), "device": "cpu", **settings}
    backend = TransformersBackend(BackendSettings(**values))
    return backend, asyncio.run(backend.open(arms))


def request_for(arm: Arm, text: str = PROMPTS[0], **values: Any) -> GenerationRequest:
    return GenerationRequest("r", arm, (Message("user", text),), **{"max_new_tokens": 24, **values})


def rewrite(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None takes the key out."""
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def one_line_with(error: DFlashError, *words: str) -> None:
    """A message names the fault and the mend, in one line."""
    message = str(error)
    assert "\n" not in message
    assert error.fault
    assert error.mend, message
    for word in words:
        assert word in message, message


# --- both arms


def as_record(generation: Generation) -> RequestRecord:
    names = RequestRecord.__dataclass_fields__.keys() & Generation.__dataclass_fields__.keys()
    return RequestRecord("c", "p", **{name: getattr(generation, name) for name in names})


def cell_of(arm: Arm) -> Cell:
    workload = Workload("t", None, "float32", "d", "x", 1, 24, 0.0, None, None, 0, "off")
    return Cell("c", "w", "a", "transformers", workload, arm)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, 0.9, 20)], ids=["greedy", "sampled"])
def test_arms_agree_and_their_counts_add_up(any_pair: SimpleNamespace, sampling: Sampling) -> None:
    arms = (BASELINE_ARM, Arm("dflash", 2), Arm("dflash", 5), Arm("dflash"))
    backend, description = opened(any_pair, arms)
    assert [arm.block_size for arm in description.arms] == [None, 2, 5, 16]
    for text in PROMPTS:
        given = [backend.run(request_for(arm, text, sampling=sampling, seed=7)) for arm in description.arms]
        assert len({generation.output_ids for generation in given}) == 1
        assert len({generation.text for generation in given}) == 1
        for arm, generation in zip(description.arms, given, strict=True):
            record, cell = as_record(generation), cell_of(arm)
            assert generation.num_output_tokens == len(generation.output_ids or ()) > 1
            assert sum(generation.chunk_num_tokens) == generation.num_output_tokens
            assert tokens_fault(cell, record) is None
            assert histogram_fault(cell, record) is None
            assert acceptance_fault(cell, record) is None
            assert stamps_fault(record) is None
            assert (generation.num_verify_steps == 0) == arm.is_baseline


def test_tokens_are_handed_on_as_they_come(pair: SimpleNamespace) -> None:
    backend, description = opened(pair)
    for arm in description.arms:
        steps: list[tuple[int, ...]] = []
        generation = backend.run(request_for(arm), on_tokens=steps.append)
        assert sum(steps, ()) == generation.output_ids
        assert tuple(map(len, steps)) == generation.chunk_num_tokens


def test_the_description_names_models_and_bytes(pair: SimpleNamespace) -> None:
    _, description = opened(pair)
    target_bytes = sum(p.numel() * 4 for p in pair.model.parameters())
    draft_bytes = sum(p.numel() * 4 for p in pair.draft_model.parameters())
    assert description.dtype == "float32"
    assert description.weights_bytes == {"baseline": target_bytes, "dflash": target_bytes + draft_bytes}
    assert description.target_revision == folder_revision(pair.target)
    assert description.arms[1].draft == str(pair.draft)
    assert description.arms[1].draft_revision == folder_revision(pair.draft)
    assert description.arms[1].acceptance_rule == "equality"


def test_the_revision_changes_with_the_weights(copied_pair: SimpleNamespace) -> None:
    before = folder_revision(copied_pair.draft)
    assert folder_revision(copied_pair.draft) == before
    save_tiny_draft(copied_pair.draft, tiny_draft(seed=1))
    assert folder_revision(copied_pair.draft) != before


def test_the_logit_gap_is_that_of_a_plain_forward(pair: SimpleNamespace) -> None:
    backend, description = opened(pair)
    request = request_for(description.arms[0])
    generation = backend.run(request)
    assert generation.prompt_ids is not None
    prefix = generation.output_ids[:3] if generation.output_ids else ()
    with torch.inference_mode():
        logits = pair.model(torch.tensor([[*generation.prompt_ids, *prefix]])).logits[0, -1]
    ordered = sorted(logits.tolist(), reverse=True)
    gap = asyncio.run(backend.logit_gap(request, prefix))
    assert gap == pytest.approx(ordered[0] - ordered[1], abs=1e-4)


# --- prompts and stops


def test_the_begin_token_stands_once(pair: SimpleNamespace) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer: Any = AutoTokenizer.from_pretrained(pair.target)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 1)]
    )
    assert tokenizer("two")["input_ids"][0] == 1, "this tokenizer adds the begin token by itself"
    messages = (Message("user", "two"),)
    ids = render_prompt(tokenizer, messages, "off")
    assert ids.count(1) == 1
    assert ids[0] == 1
    tokenizer.chat_template = None
    assert render_prompt(tokenizer, messages, "off") == tuple(tokenizer("two")["input_ids"])


def test_stop_ids_are_those_of_the_config_and_the_tokenizer(pair: SimpleNamespace) -> None:
    def model(ids: Any) -> Any:
        return SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=ids))

    assert stop_token_ids(model([5, 7]), SimpleNamespace(eos_token_id=2)) == {2, 5, 7}
    assert stop_token_ids(model(5), SimpleNamespace(eos_token_id=None)) == {5}
    assert stop_token_ids(model(None), SimpleNamespace(eos_token_id=2)) == {2}
    backend, _ = opened(pair)
    assert backend._stop_token_ids == {2, 5}


def test_a_stop_id_of_the_list_ends_both_arms(copied_pair: SimpleNamespace) -> None:
    backend, description = opened(copied_pair)
    ids = backend.run(request_for(description.arms[0])).output_ids
    assert ids is not None
    stop = ids[4]
    rewrite(copied_pair.target / "generation_config.json", eos_token_id=[60, stop])
    backend, description = opened(copied_pair)
    for arm in description.arms:
        generation = backend.run(request_for(arm))
        assert generation.finish_reason == "stop"
        assert generation.output_ids == ids[: ids.index(stop) + 1]


@pytest.mark.parametrize(
    ("template", "reasoning", "expected"),
    [
        ("{{ enable_thinking }}", "on", {"enable_thinking": True}),
        ("{{ enable_thinking }}", "off", {"enable_thinking": False}),
        ("{{ reasoning_effort }}", "low", {"reasoning_effort": "low"}),
        ("{{ reasoning_strength }}", "high", {"reasoning_strength": "high"}),
        ("{{ messages }}", "off", {}),
    ],
)
def test_a_template_is_told_what_it_knows(template: str, reasoning: str, expected: dict[str, Any]) -> None:
    assert reasoning_arguments(template, reasoning) == expected


@pytest.mark.parametrize(
    ("template", "reasoning"),
    [("{{ messages }}", "on"), ("{{ messages }}", "low"), ("{{ enable_thinking }}", "low")],
)
def test_a_setting_that_the_template_lacks_is_refused(template: str, reasoning: str) -> None:
    with pytest.raises(UsageError) as caught:
        reasoning_arguments(template, reasoning)
    one_line_with(caught.value, f"--reasoning {reasoning}")


# --- what cannot be opened


def change_draft(**changes: Any) -> Callable[[SimpleNamespace], None]:
    return lambda pair: rewrite(pair.draft / "config.json", **changes)


DRAFT_FAULTS = {
    "hidden size": (change_draft(hidden_size=48), ("48", "32")),
    "vocabulary": (change_draft(vocab_size=VOCABULARY + 8), ("72", "64")),
    "depth": (change_draft(num_target_layers=6), ("6", "4")),
    "last block": (
        change_draft(dflash_config={"mask_token_id": MASK_ID, "target_layer_ids": [0, 3]}),
        ("3",),
    ),
    "no mask id": (change_draft(dflash_config={"target_layer_ids": [0, 2]}), ("mask_token_id",)),
    "mask is a stop": (
        change_draft(dflash_config={"mask_token_id": 5, "target_layer_ids": [0, 2]}),
        ("mask token id 5", "stop"),
    ),
    "no theta": (change_draft(rope_theta=None), ("rope_theta",)),
    "other architecture": (change_draft(architectures=["Eagle3"]), ("Eagle3",)),
    "no config": (lambda pair: (pair.draft / "config.json").unlink(), ("config.json",)),
    "no weights": (lambda pair: (pair.draft / "model.safetensors").unlink(), ("safetensors",)),
}


@pytest.mark.parametrize("name", DRAFT_FAULTS)
def test_a_draft_that_does_not_fit_is_refused(copied_pair: SimpleNamespace, name: str) -> None:
    spoil, words = DRAFT_FAULTS[name]
    spoil(copied_pair)
    with pytest.raises(DraftError) as caught:
        opened(copied_pair)
    one_line_with(caught.value, *words)
    assert caught.value.exit_code == 2


def test_a_block_larger_than_trained_is_refused_unless_forced(copied_pair: SimpleNamespace) -> None:
    rewrite(copied_pair.draft / "config.json", block_size=4)
    with pytest.raises(DraftError) as caught:
        opened(copied_pair, [Arm("dflash", 6)])
    one_line_with(caught.value, "6", "4", "--force-block-size")
    backend, description = opened(copied_pair, [BASELINE_ARM, Arm("dflash", 6)], force_block_size=True)
    first, second = (backend.run(request_for(arm)).output_ids for arm in description.arms)
    assert first == second


SETTING_FAULTS: dict[str, tuple[dict[str, Any], type[DFlashError], tuple[str, ...]]] = {
    "target folder": ({"model": "no/such/folder/here"}, ModelError, ("no/such/folder/here",)),
    "draft folder": ({"draft_model": "no/such/folder/here"}, ModelError, ("no/such/folder/here",)),
    "no draft": ({"draft_model": None}, UsageError, ("--draft-model",)),
    "dtype": ({"dtype": "float8"}, UsageError, ("float8", "float32")),
    "device": ({"device": "abacus"}, UsageError, ("abacus",)),
    "device kind": ({"device": "meta"}, UsageError, ("meta",)),
}


@pytest.mark.parametrize("name", SETTING_FAULTS)
def test_settings_that_cannot_be_honoured(
    pair: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    settings, kind, words = SETTING_FAULTS[name]
    with pytest.raises(kind) as caught:
        opened(pair, **settings)
    one_line_with(caught.value, *words)
    assert caught.value.exit_code == 2


def test_a_gpu_that_is_not_there(pair: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError) as caught:
        opened(pair, device="cuda")
    one_line_with(caught.value, "cuda", "--device cpu")


# --- requests that fail, and the next that does not


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_prompt_fails_alone(pair: SimpleNamespace, text: str) -> None:
    backend, description = opened(pair)
    with pytest.raises(RequestError) as caught:
        backend.run(request_for(description.arms[1], text))
    assert caught.value.kind == "empty_prompt"
    one_line_with(caught.value)
    assert backend.run(request_for(description.arms[1])).output_ids


def test_a_prompt_longer_than_the_context_fails_alone(pair: SimpleNamespace) -> None:
    backend, description = opened(pair)
    with pytest.raises(RequestError) as caught:
        backend.run(request_for(description.arms[1], "two " * CONTEXT))
    assert caught.value.kind == "prompt_too_long"
    one_line_with(caught.value, str(CONTEXT))
    num_prompt = backend.run(request_for(description.arms[1])).num_prompt_tokens
    assert num_prompt is not None
    with pytest.raises(RequestError):
        backend.run(request_for(description.arms[1], max_new_tokens=CONTEXT - num_prompt + 1))


@pytest.mark.parametrize("block_size", [2, 16])
def test_the_whole_context_can_be_used(pair: SimpleNamespace, block_size: int) -> None:
    backend, description = opened(pair, [BASELINE_ARM, Arm("dflash", block_size)])
    backend._stop_token_ids = frozenset()
    text = "two " * (CONTEXT - 30)
    num_prompt = len(render_prompt(backend._tokenizer, (Message("user", text),), "off"))
    left = CONTEXT - num_prompt
    assert 2 < left <= 30
    given = [backend.run(request_for(arm, text, max_new_tokens=left)) for arm in description.arms]
    assert given[0].output_ids == given[1].output_ids
    assert given[0].num_output_tokens == left


@pytest.mark.parametrize("loop", ["plain_generate", "dflash_generate"])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
        ),
        MemoryError(),
    ],
    ids=["cuda", "cpu", "python"],
)
def test_out_of_memory_fails_alone(
    pair: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, loop: str, error: BaseException
) -> None:
    backend, description = opened(pair)
    arm = description.arms[loop == "dflash_generate"]
    expected = backend.run(request_for(arm)).output_ids

    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(backend_module, loop, fail)
        with pytest.raises(RequestError) as caught:
            backend.run(request_for(arm))
    assert caught.value.kind == "out_of_memory"
    one_line_with(caught.value, "out of memory", "--max-new-tokens")
    assert backend.run(request_for(arm)).output_ids == expected


def test_another_runtime_error_is_not_taken_for_a_lack_of_memory(
    pair: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, description = opened(pair)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(backend_module, "plain_generate", fail)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        backend.run(request_for(description.arms[0]))


def test_closing_twice_is_allowed_and_ends_it(pair: SimpleNamespace) -> None:
    backend, description = opened(pair)
    asyncio.run(backend.aclose())
    asyncio.run(backend.aclose())
    with pytest.raises(RuntimeError, match="not open"):
        backend.run(request_for(description.arms[0]))


# --- through the verb


def test_the_verb_with_a_missing_model_leaves_nothing_behind(
    pair: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dflash.benchmark import main

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    reports = tmp_path / "reports"
    missing = ["--model", "no/such/folder/here", "--draft-model", str(pair.draft)]
    assert main([*missing, "--device", "cpu", "--num-prompts", "1", "--output-dir", str(reports)]) == 2
    assert not reports.exists() or not any(reports.iterdir())
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert "no/such/folder/here" in line
