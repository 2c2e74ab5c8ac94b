"""The draft's forward against a plain one: explicit loops over the whole context, no cache, no fused attention."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from loops.tiny_models import HIDDEN, tiny_config, tiny_draft
from torch.nn import functional

from dflash.draft_config import FULL, SLIDING
from dflash.draft_layers import RotaryEmbedding, block_mask, grouped_attention
from dflash.model import DFlashDraftModel

NUM_CONTEXT, BLOCK = 11, 5
VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding and causal": {"layer_types": [SLIDING, FULL], "sliding_window": 4},
    "sliding, not causal": {"layer_types": [SLIDING, SLIDING], "sliding_window": 3, "is_causal": False},
    "full and causal": {"is_causal": True},
    "biased": {"attention_bias": True},
    "heads of another size": {"head_dim": 12, "num_attention_heads": 6, "num_key_value_heads": 3},
    "one key per query": {"num_key_value_heads": 4},
    "scaled": {"output_multiplier": 0.2, "input_embedding_scale": 3.0},
}


def plain_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean(dim=-1, keepdim=True) + eps).sqrt() * weight


def plain_rope(x: torch.Tensor, position: int, theta: float) -> torch.Tensor:
    """One head at one position: pairs (i, i + half) turned by position / theta ** (2 i / size)."""
    half = len(x) // 2
    turned = x.clone()
    for index in range(half):
        angle = position / theta ** (2 * index / len(x))
        turned[index] = x[index] * math.cos(angle) - x[index + half] * math.sin(angle)
        turned[index + half] = x[index + half] * math.cos(angle) + x[index] * math.sin(angle)
    return turned


def is_seen(draft: DFlashDraftModel, layer: int, query: int, key: int) -> bool:
    config = draft.config
    if config.layer_is_causal[layer] and key > query:
        return False
    return config.layer_types[layer] == FULL or query - key < (config.sliding_window or 0)


def plain_forward(draft: DFlashDraftModel, block: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """`[B, hidden]` from block `[B, hidden]` and features `[n, width]` of the whole context."""
    config, eps = draft.config, draft.config.rms_norm_eps
    num_context, num_block = len(features), len(block)
    group = config.num_attention_heads // config.num_key_value_heads
    context = plain_norm(features @ draft.fc.weight.T, draft.hidden_norm.weight, eps)
    hidden = block * config.input_embedding_scale
    for number, layer in enumerate(draft.layers):
        attention: Any = layer.self_attn
        normed = plain_norm(hidden, layer.input_layernorm.weight, eps)
        source = torch.cat((context, normed))
        queries = attention.q_proj(normed).unflatten(-1, (config.num_attention_heads, -1))
        keys = attention.k_proj(source).unflatten(-1, (config.num_key_value_heads, -1))
        values = attention.v_proj(source).unflatten(-1, (config.num_key_value_heads, -1))
        rows = []
        for slot in range(num_block):
            heads = []
            for head in range(config.num_attention_heads):
                position = num_context + slot
                query = plain_norm(queries[slot, head], attention.q_norm.weight, eps)
                query = plain_rope(query, position, config.rope_theta)
                seen = [k for k in range(len(source)) if is_seen(draft, number, position, k)]
                scores = []
                for place in seen:
                    key = plain_norm(keys[place, head // group], attention.k_norm.weight, eps)
                    scores.append(query @ plain_rope(key, place, config.rope_theta))
                weights = (torch.stack(scores) / math.sqrt(config.head_dim)).softmax(dim=0)
                heads.append(weights @ values[seen, head // group])
            rows.append(attention.o_proj(torch.cat(heads)))
        hidden = hidden + torch.stack(rows)
        normed = plain_norm(hidden, layer.post_attention_layernorm.weight, eps)
        mlp: Any = layer.mlp
        hidden = hidden + mlp.down_proj(functional.silu(mlp.gate_proj(normed)) * mlp.up_proj(normed))
    return plain_norm(hidden, draft.norm.weight, eps) * config.output_multiplier


def random_inputs(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Block `[1, B, hidden]`, features `[1, n, 2 * hidden]`."""
    generator = torch.Generator().manual_seed(seed)
    block = torch.randn(1, BLOCK, HIDDEN, generator=generator)
    return block, torch.randn(1, NUM_CONTEXT, 2 * HIDDEN, generator=generator)


@pytest.mark.parametrize("pieces", [[11], [1] * 11, [6, 1, 4], [3, 5, 3]])
@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_are_the_plain_ones_however_the_context_arrives(
    variant: str, pieces: list[int]
) -> None:
    draft = tiny_draft(**VARIANTS[variant])
    block, features = random_inputs()
    cache, start = draft.new_cache(NUM_CONTEXT + BLOCK), 0
    with torch.inference_mode():
        for number, length in enumerate(pieces):
            is_last = number == len(pieces) - 1
            other = random_inputs(number + 1)[0]  # a block that was drafted and thrown away
            given = block if is_last else other[:, : min(BLOCK, NUM_CONTEXT - start)]
            hidden = draft(given, features[:, start : start + length], cache)
            start += length
            assert cache.length == start
        wanted = plain_forward(draft, block[0], features[0])
    torch.testing.assert_close(hidden[0], wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_keys", [5, 6, 12])
@pytest.mark.parametrize("window", [None, 1, 3, 5, 12, 40])
@pytest.mark.parametrize("is_causal", [False, True])
def test_masks_are_those_of_a_brute_force(num_keys: int, window: int | None, is_causal: bool) -> None:
    wanted = [
        [
            (not is_causal or key <= query) and (window is None or query - key < window)
            for key in range(num_keys)
        ]
        for query in range(num_keys - BLOCK, num_keys)
    ]
    mask = block_mask(BLOCK, num_keys, is_causal, window)
    if mask is None:
        assert all(all(row) for row in wanted)
    else:
        assert mask.tolist() == wanted


@pytest.mark.parametrize(
    ("changes", "sees_later_slots"), [({}, True), ({"is_causal": True}, False), ({"is_causal": False}, True)]
)
def test_a_slot_sees_later_slots_unless_the_draft_is_causal(
    changes: dict[str, Any], sees_later_slots: bool
) -> None:
    draft = tiny_draft(**changes)
    block, features = random_inputs()
    other = block.clone()
    other[0, -1] += 1.0
    with torch.inference_mode():
        before, after = (
            draft(given, features, draft.new_cache(NUM_CONTEXT + BLOCK))[0] for given in (block, other)
        )
    assert not torch.equal(before[-1], after[-1])
    assert ((before[1] - after[1]).abs().max() > 1e-3) == sees_later_slots


@pytest.mark.parametrize("with_mask", [False, True])
def test_grouped_attention_is_that_of_repeated_keys(with_mask: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(1, 6, BLOCK, 8, generator=generator)
    keys, values = torch.randn(2, 1, 2, 12, 8, generator=generator)
    mask = block_mask(BLOCK, 12, True, 4) if with_mask else None
    wanted = functional.scaled_dot_product_attention(
        queries, keys.repeat_interleave(3, dim=1), values.repeat_interleave(3, dim=1), mask, scale=0.3
    )
    attended = grouped_attention(queries, keys, values, mask, 0.3)
    torch.testing.assert_close(attended, wanted, atol=1e-5, rtol=1e-5)
    batched = None if mask is None else mask[None, None]
    torch.testing.assert_close(grouped_attention(queries, keys, values, batched, 0.3), attended)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5},
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {
            "rope_theta": 1.5e5,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        },
    ],
    ids=["default", "linear", "yarn"],
)
def test_rope_is_that_of_transformers(rope: dict[str, Any]) -> None:
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    config = tiny_config(**rope, max_position_embeddings=2048)
    reference = Qwen3RotaryEmbedding(
        Qwen3Config(
            hidden_size=HIDDEN,
            num_attention_heads=4,
            head_dim=8,
            max_position_embeddings=2048,
            rope_parameters=dict(config.rope_parameters),
        )
    )
    positions = torch.arange(100, 140)
    wanted = reference(torch.zeros(1, 40, HIDDEN), positions[None])
    rotation = RotaryEmbedding(config)(100, 140, torch.float32)
    for ours, theirs in zip(rotation, wanted, strict=True):
        torch.testing.assert_close(ours, theirs[0], atol=1e-6, rtol=1e-6)
