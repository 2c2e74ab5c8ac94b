"""The layers of a DFlash draft: Qwen3-style blocks whose attention also reads the target's features."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from dflash.draft_config import SLIDING, DraftConfig
from dflash.rollback_cache import DraftCache

Rotation = tuple[torch.Tensor, torch.Tensor]  # cos and sin, each [positions, head dim]


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if hidden.dtype == torch.float32:
            return F.rms_norm(hidden, self.weight.shape, self.weight, self.eps)
        return self.weight * F.rms_norm(hidden.float(), self.weight.shape, None, self.eps).to(hidden.dtype)


class RotaryEmbedding(nn.Module):
    """Angles of the rope of this config; scaled kinds are computed by transformers' own rules."""

    inverse_frequencies: torch.Tensor

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        inverse_frequencies, self.scaling = _inverse_frequencies(config)
        self.register_buffer("inverse_frequencies", inverse_frequencies, persistent=False)

    def forward(self, start: int, end: int, dtype: torch.dtype) -> Rotation:
        """Cosines and sines `[end - start, head dim]` of the positions from `start` to `end` - 1."""
        positions = torch.arange(start, end, device=self.inverse_frequencies.device, dtype=torch.float32)
        angles = torch.outer(positions, self.inverse_frequencies.float())  # [n, head dim / 2]
        angles = torch.cat((angles, angles), dim=-1)  # [n, head dim]
        return (angles.cos() * self.scaling).to(dtype), (angles.sin() * self.scaling).to(dtype)


def _inverse_frequencies(config: DraftConfig) -> tuple[torch.Tensor, float]:
    if config.rope_parameters["rope_type"] == "default":
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        return 1.0 / (config.rope_theta**exponents), 1.0
    from transformers import Qwen3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    reference = Qwen3Config(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=dict(config.rope_parameters),
    )
    frequencies, scaling = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](
        reference, torch.device("cpu")
    )
    return frequencies, float(scaling)


def rotate(states: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Apply rope (halves, neox style) to `[batch, heads, n, head dim]`."""
    cos, sin = rotation
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin


def grouped_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
) -> torch.Tensor:
    """Scaled dot-product attention where several query heads share a key/value head, without repeating keys or values.

    Args:
        queries: `[batch, heads, n, head dim]`; keys, values: `[batch, key/value heads, length, head dim]`.
        mask: boolean or additive, `[..., n, length]` without a head dimension of its own (1), or None for all.

    Returns:
        `[batch, heads, n, head dim]`.
    """
    batch, num_heads, num_queries, head_dim = queries.shape
    num_groups = num_heads // keys.shape[1]
    # The queries of one group become rows of one head: [batch, key/value heads, groups * n, head dim].
    rows = queries.reshape(batch, keys.shape[1], num_groups * num_queries, head_dim)
    if mask is not None and num_groups > 1:
        mask = mask.repeat(*(1,) * (mask.dim() - 2), num_groups, 1)
    attended = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scale)
    return attended.reshape(batch, num_heads, num_queries, head_dim)


class DraftAttention(nn.Module):
    """Queries from the block; keys and values from the target's features and from the block."""

    def __init__(self, config: DraftConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        self.is_causal = config.layer_is_causal[layer]
        self.window = config.sliding_window if config.layer_types[layer] == SLIDING else None
        query_size = config.num_attention_heads * config.head_dim
        key_size = config.num_key_value_heads * config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, key_size, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, key_size, bias=bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(
        self, block: torch.Tensor, context: torch.Tensor, rotation: Rotation, cache: DraftCache
    ) -> torch.Tensor:
        """block `[1, B, hidden]` (normalised), context `[1, n, hidden]`, rotation of n + B positions."""
        num_queries = block.shape[1]
        source = torch.cat((context, block), dim=1)  # [1, n + B, hidden]
        queries = self.q_norm(self._heads(self.q_proj(block)))  # [1, heads, B, head dim]
        keys = self.k_norm(self._heads(self.k_proj(source)))  # [1, key/value heads, n + B, head dim]
        values = self._heads(self.v_proj(source))
        queries = rotate(queries, (rotation[0][-num_queries:], rotation[1][-num_queries:]))
        keys, values = cache.write(self.layer, rotate(keys, rotation), values)
        mask = block_mask(num_queries, keys.shape[2], self.is_causal, self.window, device=keys.device)
        attended = grouped_attention(queries, keys, values, mask, self.head_dim**-0.5)
        return self.o_proj(attended.transpose(1, 2).reshape(1, num_queries, -1))

    def _heads(self, states: torch.Tensor) -> torch.Tensor:
        return states.view(1, states.shape[1], -1, self.head_dim).transpose(1, 2)


def block_mask(
    num_queries: int, num_keys: int, is_causal: bool, window: int | None, device: torch.device | None = None
) -> torch.Tensor | None:
    """Which keys each query of the block sees, boolean `[B, keys]`; None where every query sees every key.

    The block is the last `num_queries` keys. A window includes the query's own position.
    """
    if not is_causal and (window is None or window >= num_keys):
        return None
    query_positions = torch.arange(num_keys - num_queries, num_keys, device=device)[:, None]
    distance = query_positions - torch.arange(num_keys, device=device)[None, :]  # [B, keys]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if is_causal:
        seen &= distance >= 0
    if window is not None:
        seen &= distance < window
    return seen


class DraftMLP(nn.Module):
    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act = ACT2FN[config.hidden_act]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act(self.gate_proj(hidden)) * self.up_proj(hidden))


class DraftLayer(nn.Module):
    def __init__(self, config: DraftConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = DraftAttention(config, layer)
        self.mlp = DraftMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, block: torch.Tensor, context: torch.Tensor, rotation: Rotation, cache: DraftCache
    ) -> torch.Tensor:
        # The context is normalised once, by the model's hidden_norm; only the block passes the layer's own norm.
        block = block + self.self_attn(self.input_layernorm(block), context, rotation, cache)
        return block + self.mlp(self.post_attention_layernorm(block))
