"""Targets and drafts from their folders: what would run wrongly is repaired or refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from loops.tiny_models import save_tiny_draft
from loops.tiny_models import tiny_draft as torch_draft
from mlx.utils import tree_flatten
from mlx_loops.tiny_mlx import KINDS, tiny_args, tiny_draft, tiny_target

from dflash.errors import DraftError, ModelError, UsageError
from dflash.mlx_checkpoint import check_rope, load_target, rope_repair, stop_ids_of
from dflash.mlx_decoding import decode
from dflash.model_mlx import load_draft


def test_the_loaded_target_is_transformers_own(any_pair: SimpleNamespace) -> None:
    """Also where only `rope_parameters` says the theta, which mlx-lm's llama does not read."""
    import torch

    config = json.loads((any_pair.target / "config.json").read_text())
    assert "rope_theta" not in config
    assert config["rope_parameters"]["rope_theta"] == 10000.0
    model, _ = load_target(any_pair.target)
    ids = [5, 9, 20, 33, 41, 8]
    with torch.inference_mode():
        wanted = any_pair.model(torch.tensor([ids])).logits.numpy()
    np.testing.assert_allclose(np.array(model(mx.array([ids]))), wanted, atol=1e-4, rtol=1e-4)


def with_config(folder: Path, to: Path, **changes: Any) -> Path:
    """A copy of a target whose config says something else; a change to None leaves the key out."""
    shutil.copytree(folder, to)
    config = json.loads((folder / "config.json").read_text()) | changes
    kept = {key: value for key, value in config.items() if value is not None}
    (to / "config.json").write_text(json.dumps(kept))
    return to


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}},
        {"rope_parameters": None, "rope_theta": 777.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}, "rope_theta": 777.0},
    ],
)
def test_a_hidden_rope_theta_is_found(
    any_pair: SimpleNamespace, tmp_path: Path, changes: dict[str, Any]
) -> None:
    model, _ = load_target(with_config(any_pair.target, tmp_path / "target", **changes))
    bases = {module.base for _, module in model.named_modules() if isinstance(module, nn.RoPE)}
    assert bases == {777.0}
    default, _ = load_target(any_pair.target)
    ids = mx.array([[5, 9, 20, 33]])
    assert not np.allclose(np.array(model(ids)), np.array(default(ids)), atol=1e-2)


def test_a_scaled_rope_that_is_hidden_is_found(any_pair: SimpleNamespace, tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    model, _ = load_target(with_config(any_pair.target, tmp_path / "target", rope_parameters=rope))
    scales = {module.scale for _, module in model.named_modules() if isinstance(module, nn.RoPE)}
    assert scales == {0.25}


def test_a_rope_that_is_not_said_or_not_used_is_refused(any_pair: SimpleNamespace, tmp_path: Path) -> None:
    silent = with_config(any_pair.target, tmp_path / "silent", rope_parameters=None)
    with pytest.raises(ModelError, match=r"rope_theta"):
        load_target(silent)
    model, config = load_target(any_pair.target)
    with pytest.raises(
        ModelError, match=r"run the target with rope_theta 10000, its config\.json says 500000"
    ):
        check_rope(model, {**config, "rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5}})


def test_a_rope_that_no_number_says_is_refused(any_pair: SimpleNamespace, tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": "ten thousand"}
    for number, changes in enumerate(
        ({"rope_parameters": rope}, {"rope_parameters": [1], "rope_theta": "x"})
    ):
        with pytest.raises(ModelError, match=r"not a number|cannot be loaded"):
            load_target(with_config(any_pair.target, tmp_path / str(number), **changes))


def test_ropes_that_differ_between_layers_are_read_by_the_model_or_refused() -> None:
    """mlx-lm's Gemma 3 looks at the top alone: the thetas would be right by chance, and the scaling lost."""
    from mlx_lm.models import gemma3_text

    _, content = tiny_args("qwen3")
    sliding = {"rope_type": "default", "rope_theta": 1e4}
    scaled = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    by_type = {
        "rope_parameters": {"sliding_attention": sliding, "full_attention": scaled},
        "model_type": "gemma3_text",
    }
    shape = {key: value for key, value in content.items() if key != "rope_theta"}
    model = gemma3_text.Model(gemma3_text.ModelArgs.from_dict({**shape, "model_type": "gemma3_text"}))
    with pytest.raises(ModelError, match="does not read the rope_parameters of gemma3_text, which differ"):
        check_rope(model, by_type)
    at_the_top = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": scaled}
    check_rope(model, {**by_type, **at_the_top})
    check_rope(tiny_target("gemma4"), {**by_type, "model_type": "gemma4_text"})  # which reads them


def test_a_target_that_is_quantised_in_another_way_is_refused(
    any_pair: SimpleNamespace, tmp_path: Path
) -> None:
    other = with_config(
        any_pair.target, tmp_path / "target", quantization_config={"quant_method": "gptq", "bits": 4}
    )
    with pytest.raises(ModelError, match=r"the target in .* cannot be loaded") as caught:
        load_target(other)
    assert "\n" not in str(caught.value)


def test_what_is_repaired_stands_where_models_look() -> None:
    rope = {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.25}
    top = {"rope_theta": 5e5, "partial_rotary_factor": 0.25}
    assert rope_repair({"rope_parameters": rope}) == top
    assert rope_repair({"rope_parameters": rope, **top}) == {}
    nested = {"model_type": "x", "text_config": {"rope_parameters": rope, "hidden_size": 4}}
    assert rope_repair(nested) == {"text_config": {"rope_parameters": rope, "hidden_size": 4, **top}}
    by_type = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    assert rope_repair({"rope_parameters": by_type}) == {}
    assert rope_repair({"rope_theta": 5e5}) == {}


def test_every_stop_id_of_a_config_is_known() -> None:
    assert stop_ids_of({"eos_token_id": [2, 5]}) == {2, 5}
    assert stop_ids_of({"eos_token_id": 2}) == {2}
    assert stop_ids_of({"text_config": {"eos_token_id": [7]}}) == {7}
    assert stop_ids_of({}) == frozenset()


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_of_4_bits_works(tmp_path: Path, kind: str) -> None:
    """Saved and loaded as mlx-lm does, and the arms agree: the quantised model is the target."""
    _, content = tiny_args(kind)
    wide = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "linear_value_head_dim": 32}
    content |= {key: value for key, value in wide.items() if key in content}
    if kind == "gemma4":
        content |= {"hidden_size_per_layer_input": 64, "global_head_dim": 16}
    module, _ = tiny_args(kind)
    mx.random.seed(0)
    model = module.Model(module.ModelArgs.from_dict(content))
    nn.quantize(model, group_size=32, bits=4)
    folder = tmp_path / kind
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    quantisation = {"group_size": 32, "bits": 4}
    (folder / "config.json").write_text(json.dumps({**content, "quantization": quantisation}))
    loaded, _ = load_target(folder, dtype=mx.float32)
    draft = tiny_draft(hidden_size=64)
    prompt = [5, 9, 20, 33, 41]
    plain = decode(loaded, None, prompt, 12, None)
    assert decode(loaded, draft, prompt, 12, None, block_size=4).output_ids == plain.output_ids


def save_quantised_draft(folder: Path, **changes: Any) -> Path:
    """In groups of 32 and 8 bits as MLX writes it, with both names in the config, and changes there."""
    shape = {"intermediate_size": 64}
    save_tiny_draft(folder, torch_draft(0, **shape), **shape)
    draft = load_draft(folder)
    nn.quantize(draft, group_size=32, bits=8)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(draft.parameters())))
    config = json.loads((folder / "config.json").read_text())
    quantisation = {"group_size": 32, "bits": 8, **changes}
    config |= {"quantization": quantisation, "quantization_config": quantisation}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_draft_that_mlx_has_quantised_is_read(tmp_path: Path) -> None:
    folder = save_quantised_draft(tmp_path / "draft")
    draft = load_draft(folder)
    assert (draft.fc.group_size, draft.fc.bits) == (32, 8)
    model = tiny_target("qwen3")
    plain = decode(model, None, [5, 9, 20], 12, None)
    assert decode(model, draft, [5, 9, 20], 12, None, block_size=5).output_ids == plain.output_ids
    with pytest.raises(
        UsageError, match="draft-bits contradicts a draft that is quantised to 8 bits already"
    ):
        load_draft(folder, bits=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 64}, r"quantised in groups of 64, and \S+ has 32 inputs"),
        ({"group_size": None}, "names no group_size"),
        ({"group_size": True}, "names no group_size"),
        ({"bits": "4"}, "names no bits"),
        ({"bits": 4}, r"tensor \S+ of the draft has shape"),
        ({"bits": 7}, "quantisation is not possible"),
        ({"mode": "other"}, "quantisation is not possible"),
    ],
)
def test_a_quantisation_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = save_quantised_draft(tmp_path / "draft", **changes)
    with pytest.raises(DraftError, match=message) as caught:
        load_draft(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("quantisation", "message"),
    [
        ("4bit", "names no group_size"),
        ([], "names no group_size"),
        ({}, "names no group_size"),
        ({"group_size": 32, "bits": 8}, "says that it is quantised, and no weight is"),
    ],
)
def test_a_draft_that_is_said_to_be_quantised_and_is_not_is_refused(
    tmp_path: Path, quantisation: Any, message: str
) -> None:
    folder = save_tiny_draft(tmp_path / "draft", torch_draft(), quantization=quantisation)
    with pytest.raises(DraftError, match=message):
        load_draft(folder)


def test_another_kind_of_quantisation_and_broken_files_are_refused(tmp_path: Path) -> None:
    folder = save_tiny_draft(tmp_path / "draft", torch_draft(), quantization_config={"quant_method": "fp8"})
    with pytest.raises(DraftError, match="a quantised draft"):
        load_draft(folder)
    save_tiny_draft(folder, torch_draft())
    (folder / "model.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(DraftError, match=r"model.safetensors cannot be read"):
        load_draft(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(DraftError, match="no safetensors file"):
        load_draft(folder)
    with pytest.raises(ModelError, match=r"the target in .* cannot be loaded"):
        load_target(folder)


def test_missing_and_unknown_tensors_are_refused(tmp_path: Path) -> None:
    folder = save_tiny_draft(tmp_path / "draft", torch_draft())
    weights = mx.load(str(folder / "model.safetensors"))
    weights["embed_tokens.weight"] = mx.zeros((64, 32))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    with pytest.raises(DraftError, match=r"unknown tensor embed_tokens.weight"):
        load_draft(folder)
    del weights["embed_tokens.weight"], weights["fc.weight"]
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    with pytest.raises(DraftError, match=r"lacks the tensor fc.weight"):
        load_draft(folder)
