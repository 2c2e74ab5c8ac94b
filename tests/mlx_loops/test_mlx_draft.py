"""The MLX draft and the torch draft: the same hidden states from the same weights and features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from loops.tiny_models import HIDDEN, save_tiny_draft, tiny_config
from loops.tiny_models import tiny_draft as torch_draft

from dflash.draft_layers import RotaryEmbedding
from dflash.draft_layers import block_mask as torch_block_mask
from dflash.errors import DraftError, UsageError
from dflash.mlx_draft import DFlashDraftModel, block_mask
from dflash.model_mlx import load_draft
from dflash.rope_frequencies import inverse_frequencies

SLIDING_LAYERS = ["sliding_attention", "full_attention"]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "original_max_position_embeddings": 64}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "nested": {
        "block_size": None,
        "dflash_config": {"mask_token_id": 63, "target_layer_ids": [2, 0], "block_size": 16},
    },
    "one feature": {"dflash_config": {"mask_token_id": 63, "target_layer_ids": [1]}},
    "windows": {"layer_types": SLIDING_LAYERS, "sliding_window": 4},
    "windows seen both ways": {"layer_types": SLIDING_LAYERS, "sliding_window": 4, "is_causal": False},
    "causal": {"is_causal": True},
    "causal, nested": {"dflash_config": {"mask_token_id": 63, "target_layer_ids": [0, 2], "causal": True}},
    "biases": {"attention_bias": True},
    "muse": {
        "is_causal": False,
        "output_multiplier": 0.1961,
        "final_logit_softcapping": 20.0,
        "input_embedding_scale": 5.7,
        "layer_types": ["sliding_attention"] * 2,
        "sliding_window": 6,
    },
    "linear rope": {"rope_theta": None, "rope_scaling": {"type": "linear", "factor": 3.0, "rope_theta": 5e4}},
    "llama3 rope": {"rope_theta": None, "rope_parameters": LLAMA3},
    "yarn rope": {"rope_theta": None, "rope_parameters": YARN},
    "yarn rope of gpt-oss": {
        "rope_theta": None,
        "rope_parameters": {**YARN, "truncate": False, "beta_fast": 16.0},
    },
    "yarn rope, own attention": {"rope_theta": None, "rope_parameters": {**YARN, "attention_factor": 1.3}},
    "yarn rope of deepseek": {
        "rope_theta": None,
        "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4},
    },
    "gelu": {"hidden_act": "gelu_pytorch_tanh"},
    "one head group": {"num_key_value_heads": 4, "head_dim": 16},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_both_give_the_same_hidden_states(tmp_path: Path, variant: str) -> None:
    changes = VARIANTS[variant]
    reference = torch_draft(3, **changes)
    mine = load_draft(save_tiny_draft(tmp_path, reference, **changes))
    assert mine.config == reference.config
    generator = torch.Generator().manual_seed(5)
    num_features = len(reference.target_layer_ids) * HIDDEN
    cache, torch_cache = mine.new_cache(60), reference.new_cache(60)
    for num_context, block_size in ((9, 5), (1, 5), (3, 5), (5, 5), (2, 16)):
        block = torch.randn(1, block_size, HIDDEN, generator=generator)
        features = torch.randn(1, num_context, num_features, generator=generator)
        with torch.inference_mode():
            wanted = reference(block, features, torch_cache).numpy()
        given = mine(mx.array(block.numpy()), mx.array(features.numpy()), cache)
        np.testing.assert_allclose(np.array(given), wanted, atol=1e-4, rtol=1e-4)
        assert cache.length == torch_cache.length


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "rope" in name])
def test_rope_is_that_of_transformers(variant: str) -> None:
    config = tiny_config(**VARIANTS[variant])
    reference = RotaryEmbedding(config)
    frequencies, scaling = inverse_frequencies(config)
    np.testing.assert_allclose(frequencies, reference.inverse_frequencies.numpy(), rtol=2e-6)
    assert scaling == pytest.approx(reference.scaling)
    plain, _ = inverse_frequencies(tiny_config())
    assert not np.allclose(frequencies, plain)


def test_a_scaled_rope_that_lacks_a_parameter_is_refused() -> None:
    for missing in ("factor", "low_freq_factor"):
        rope = {key: value for key, value in LLAMA3.items() if key != missing}
        with pytest.raises(DraftError, match=f"of type llama3 has no {missing}"):
            DFlashDraftModel(tiny_config(rope_theta=None, rope_parameters=rope))


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 3, 30])
def test_masks_are_those_of_torch(is_causal: bool, window: int | None) -> None:
    for num_queries, num_keys in ((1, 1), (4, 4), (4, 11)):
        wanted = torch_block_mask(num_queries, num_keys, is_causal, window)
        given = block_mask(num_queries, num_keys, is_causal, window)
        assert (given is None) == (wanted is None)
        if given is not None and wanted is not None:
            assert given.tolist() == wanted.tolist()


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(DraftError, match="'xielu' is not implemented for MLX: one of silu"):
        DFlashDraftModel(tiny_config(hidden_act="xielu"))


def test_bits_other_than_4_and_8_are_refused(tmp_path: Path) -> None:
    folder = save_tiny_draft(tmp_path, torch_draft())
    for bits in (2, 16):
        with pytest.raises(UsageError, match=f"draft-bits {bits} is not possible: choose 4 or 8"):
            load_draft(folder, bits=bits)


@pytest.mark.parametrize(("bits", "tolerance"), [(8, 0.05), (4, 0.9)])
def test_a_quantised_draft_is_near_the_plain_one(tmp_path: Path, bits: int, tolerance: float) -> None:
    changes = {"intermediate_size": 64}
    folder = save_tiny_draft(tmp_path, torch_draft(0, **changes), **changes)
    plain, quantised = load_draft(folder), load_draft(folder, bits=bits)
    block = mx.random.normal((1, 5, HIDDEN), key=mx.random.key(1))
    features = mx.random.normal((1, 7, 2 * HIDDEN), key=mx.random.key(2))
    wanted = np.array(plain(block, features, plain.new_cache(12)))
    given = np.array(quantised(block, features, quantised.new_cache(12)))
    difference = np.abs(given - wanted).mean() / np.abs(wanted).mean()
    assert 0 < difference < tolerance
    assert quantised.fc.bits == bits
