"""The DFlash draft in MLX: the same layers, names and numbers as the torch model (`model.py`), without torch."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from dflash.draft_config import SLIDING, DraftConfig
from dflash.errors import DFlashError, DraftError
from dflash.rope_frequencies import inverse_frequencies

ACTIVATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "silu": nn.silu,
    "swish": nn.silu,
    "relu": nn.relu,
    "gelu": nn.gelu,
    "gelu_pytorch_tanh": nn.gelu_approx,
    "gelu_new": nn.gelu_approx,
}


class DraftCache:
    """A draft's keys and values of the committed context; the block's own are written behind it and never committed."""

    def __init__(self, num_layers: int, capacity: int) -> None:
        self.length = 0
        self._capacity = capacity
        self._buffers: list[tuple[mx.array, mx.array] | None] = [None] * num_layers

    def write(self, layer: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write `[1, heads, n, head dim]` behind the committed part; both parts together."""
        end = self.length + keys.shape[2]
        if end > self._capacity:
            raise DFlashError(f"a draft cache of {self._capacity} positions was given {end}")
        buffers = self._buffers[layer]
        if buffers is None:
            shape = (*keys.shape[:2], self._capacity, keys.shape[-1])
            buffers = mx.zeros(shape, keys.dtype), mx.zeros(shape, values.dtype)
        # An assignment to a part replaces the array; memory of the old one is used again when nothing else reads it.
        all_keys, all_values = buffers
        all_keys[:, :, self.length : end] = keys
        all_values[:, :, self.length : end] = values
        self._buffers[layer] = all_keys, all_values
        return all_keys[:, :, :end], all_values[:, :, :end]

    def commit(self, num_context: int) -> None:
        """Keep the first `num_context` of what was written last."""
        self.length += num_context


class Rotation:
    """Rope (halves, neox style) of a draft, at any position."""

    def __init__(self, config: DraftConfig) -> None:
        frequencies, self._scaling = inverse_frequencies(config)
        self._wavelengths = mx.array(1.0 / frequencies)  # what mlx calls freqs
        self._head_dim = config.head_dim

    def __call__(self, states: mx.array, start: int) -> mx.array:
        """Rotate `[1, heads, n, head dim]`, the first of which is at position `start`."""
        rotated = mx.fast.rope(
            states,
            self._head_dim,
            traditional=False,
            base=None,
            scale=1.0,
            offset=start,
            freqs=self._wavelengths,
        )
        return rotated if self._scaling == 1.0 else rotated * self._scaling


def block_mask(num_queries: int, num_keys: int, is_causal: bool, window: int | None) -> mx.array | None:
    """Which keys each query of the block sees, boolean `[B, keys]`; None where every query sees every key.

    The block is the last `num_queries` keys. A window includes the query's own position.
    """
    if not is_causal and (window is None or window >= num_keys):
        return None
    distance = mx.arange(num_keys - num_queries, num_keys)[:, None] - mx.arange(num_keys)[None]  # [B, keys]
    seen = distance >= 0 if is_causal else mx.ones_like(distance).astype(mx.bool_)
    return seen if window is None else seen & (distance < window)


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
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def __call__(self, block: mx.array, context: mx.array, rotation: Rotation, cache: DraftCache) -> mx.array:
        """block `[1, B, hidden]` (normalised), context `[1, n, hidden]` behind the committed positions."""
        num_queries, num_context = block.shape[1], context.shape[1]
        source = mx.concatenate((context, block), axis=1)  # [1, n + B, hidden]
        queries = self.q_norm(self._heads(self.q_proj(block))).transpose(
            0, 2, 1, 3
        )  # [1, heads, B, head dim]
        keys = self.k_norm(self._heads(self.k_proj(source))).transpose(0, 2, 1, 3)
        values = self._heads(self.v_proj(source)).transpose(0, 2, 1, 3)
        queries = rotation(queries, cache.length + num_context)
        keys, values = cache.write(self.layer, rotation(keys, cache.length), values)
        mask = block_mask(num_queries, keys.shape[2], self.is_causal, self.window)
        attended = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self.head_dim**-0.5, mask=mask
        )
        return self.o_proj(attended.transpose(0, 2, 1, 3).reshape(1, num_queries, -1))

    def _heads(self, states: mx.array) -> mx.array:
        return states.reshape(1, states.shape[1], -1, self.head_dim)


class DraftMLP(nn.Module):
    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        if config.hidden_act not in ACTIVATIONS:
            raise DraftError(
                f"the draft's activation {config.hidden_act!r} is not implemented for MLX",
                f"one of {', '.join(ACTIVATIONS)}",
            )
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self._act = ACTIVATIONS[config.hidden_act]

    def __call__(self, hidden: mx.array) -> mx.array:
        return self.down_proj(self._act(self.gate_proj(hidden)) * self.up_proj(hidden))


class DraftLayer(nn.Module):
    def __init__(self, config: DraftConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = DraftAttention(config, layer)
        self.mlp = DraftMLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, block: mx.array, context: mx.array, rotation: Rotation, cache: DraftCache) -> mx.array:
        # The context is normalised once, by the model's hidden_norm; only the block passes the layer's own norm.
        block = block + self.self_attn(self.input_layernorm(block), context, rotation, cache)
        return block + self.mlp(self.post_attention_layernorm(block))


class DFlashDraftModel(nn.Module):
    """A block-diffusion draft; see `dflash.model`, whose names of tensors it shares."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        feature_size = len(config.target_layer_ids) * config.target_hidden_size
        self.fc = nn.Linear(feature_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = [DraftLayer(config, layer) for layer in range(config.num_hidden_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._rotation = Rotation(config)

    @property
    def block_size(self) -> int:
        """The block that the draft was trained for."""
        return self.config.block_size

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.config.target_layer_ids

    def new_cache(self, capacity: int) -> DraftCache:
        """An empty cache for one request of at most `capacity` positions, the block included."""
        return DraftCache(self.config.num_hidden_layers, capacity)

    def __call__(self, block: mx.array, features: mx.array, cache: DraftCache) -> mx.array:
        """Hidden states of a block, ready for the target's LM head.

        A `final_logit_softcapping` of the draft is not applied: it moves no logit past another, and the loop proposes
        the largest.

        Args:
            block: embeddings of the anchor and the mask tokens `[1, B, hidden]`.
            features: of the n positions that were committed since the last call `[1, n, layer ids * target hidden]`;
                the anchor, whose feature is not known yet, follows them.
            cache: holds what was committed before, and holds the n positions afterwards.

        Returns:
            `[1, B, hidden]`, after the final norm and the output multiplier.
        """
        context = self.hidden_norm(self.fc(features))  # [1, n, hidden]: fc before norm
        hidden = block * self.config.input_embedding_scale
        for layer in self.layers:
            hidden = layer(hidden, context, self._rotation, cache)
        cache.commit(features.shape[1])
        output: mx.array = self.norm(hidden) * self.config.output_multiplier
        return output
