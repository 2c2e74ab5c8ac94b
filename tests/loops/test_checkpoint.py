"""A draft's folder: what is written is what is loaded, and tensors that do not match the config are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from loops.tiny_models import (
    HIDDEN,
    KINDS,
    draft_config_json,
    greedy_reference,
    save_tiny_draft,
    save_tiny_pair,
    tiny_draft,
)
from safetensors.torch import load_file, save_file

from dflash.decoding import dflash_generate
from dflash.draft_checkpoint import find_checkpoint, read_draft_config
from dflash.errors import DraftError, ModelError
from dflash.model import DFlashDraftModel

Weights = dict[str, torch.Tensor]


def test_a_saved_draft_comes_back(tiny_pair: SimpleNamespace) -> None:
    for path in (tiny_pair.draft, str(tiny_pair.draft)):
        loaded = DFlashDraftModel.from_pretrained(path)
        assert loaded.config == tiny_pair.draft_model.config
        assert not loaded.training
        saved = tiny_pair.draft_model.state_dict()
        assert loaded.state_dict().keys() == saved.keys()
        assert all(torch.equal(tensor, saved[name]) for name, tensor in loaded.state_dict().items())
    half = DFlashDraftModel.from_pretrained(tiny_pair.draft, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_pair_decodes_as_before(tmp_path: Path, kind: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    pair = save_tiny_pair(tmp_path, kind)
    target = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(pair.target)
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "what is one plus two"}], tokenize=False, add_generation_prompt=True
    )
    prompt = tokenizer(rendered, add_special_tokens=False)["input_ids"]
    assert prompt == [1, 4, 6, 7, 8, 11, 9, 2, 5]
    assert target.generation_config.eos_token_id == [2, 5]
    draft = DFlashDraftModel.from_pretrained(pair.draft)
    ids = dflash_generate(draft, target, prompt, 15, None, block_size=5)
    assert ids[0].tolist() == [*prompt, *greedy_reference(pair.model, prompt, 15)]


def drop_fc(weights: Weights) -> None:
    del weights["fc.weight"]


def add_embedding(weights: Weights) -> None:
    weights["embed_tokens.weight"] = torch.zeros(64, HIDDEN)


def widen_fc(weights: Weights) -> None:
    weights["fc.weight"] = torch.zeros(HIDDEN, 3 * HIDDEN)


def rename_fc(weights: Weights) -> None:
    weights["encoder.fc.weight"] = weights.pop("fc.weight")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_fc, "lacks the tensor fc.weight"),
        (add_embedding, "unknown tensor embed_tokens.weight"),
        (widen_fc, r"fc.weight of the draft has shape \[32, 96\], its config.json says \[32, 64\]"),
        (rename_fc, "lacks the tensor fc.weight"),
    ],
)
def test_other_tensors_are_refused(tmp_path: Path, change: Callable[[Weights], None], message: str) -> None:
    folder = save_tiny_draft(tmp_path / "draft", tiny_draft())
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(DraftError, match=message):
        DFlashDraftModel.from_pretrained(folder)


def test_a_biased_config_needs_biases(tmp_path: Path) -> None:
    folder = save_tiny_draft(tmp_path / "draft", tiny_draft(), attention_bias=True)
    with pytest.raises(DraftError, match=r"lacks the tensor layers.0.self_attn.k_proj.bias"):
        DFlashDraftModel.from_pretrained(folder)
    biased = save_tiny_draft(tmp_path / "biased", tiny_draft(attention_bias=True), attention_bias=True)
    assert DFlashDraftModel.from_pretrained(biased).layers[0].self_attn.o_proj.bias is not None


def test_shards_are_put_together(tmp_path: Path) -> None:
    folder = save_tiny_draft(tmp_path / "draft", tiny_draft())
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    save_file({name: weights[name] for name in names[::2]}, folder / "model-00001-of-00002.safetensors")
    save_file({name: weights[name] for name in names[1::2]}, folder / "model-00002-of-00002.safetensors")
    loaded = DFlashDraftModel.from_pretrained(folder).state_dict()
    assert all(torch.equal(loaded[name], weights[name]) for name in names)


def test_broken_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DraftError, match=r"config.json cannot be read \(FileNotFoundError\)"):
        DFlashDraftModel.from_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text("{", encoding="utf-8")
    with pytest.raises(DraftError, match="cannot be read"):
        read_draft_config(tmp_path)
    config.write_text("[]", encoding="utf-8")
    with pytest.raises(DraftError, match="holds no object"):
        read_draft_config(tmp_path)
    config.write_text(json.dumps(draft_config_json()), encoding="utf-8")
    with pytest.raises(DraftError, match="no safetensors file"):
        DFlashDraftModel.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(DraftError, match=r"model.safetensors cannot be read"):
        DFlashDraftModel.from_pretrained(tmp_path)


def test_an_unknown_draft_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*given: object, **options: object) -> str:
        raise OSError("no such repository")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ModelError, match="'nobody/no-draft' is no folder"):
        find_checkpoint("nobody/no-draft")
