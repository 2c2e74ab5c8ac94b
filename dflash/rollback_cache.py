"""Key/value caches that are allocated once and rolled back in place: no growth by concatenation, no copy."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from dflash.errors import DFlashError


class RollbackLayer(CacheLayerMixin):
    """One target layer's keys and values `[batch, key/value heads, capacity, head dim]`, of which `length` are valid.

    What lies behind `length` is never read: attention gets views of the valid part.
    """

    is_sliding = False  # a sliding layer keeps everything here; the model's own mask applies the window
    is_croppable = True
    keys: torch.Tensor  # type: ignore[assignment]  # None until the first update, which allocates them
    values: torch.Tensor  # type: ignore[assignment]

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor | None = None) -> None:
        value_states = key_states if value_states is None else value_states
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = key_states.new_empty((*key_states.shape[:2], self.capacity, key_states.shape[-1]))
        self.values = value_states.new_empty((*value_states.shape[:2], self.capacity, value_states.shape[-1]))
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[batch, heads, n, head dim]` behind the valid part and return views of all that is valid now."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.capacity:
            raise DFlashError(f"a cache of {self.capacity} positions was given {end}")
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        # Until transformers 5.3 the argument was the tensor of query positions.
        num_queries = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.length + num_queries, 0

    def get_seq_length(self, *args: Any) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity

    def get_max_cache_shape(self) -> int:  # its name in earlier 5.x releases
        return self.capacity

    def crop(self, *args: Any) -> None:
        raise NotImplementedError("its meaning changed between releases: use RollbackCache.rollback_to")


class RollbackCache(Cache):
    """A target's cache for one request of at most `capacity` positions."""

    layers: list[RollbackLayer]  # type: ignore[assignment]  # narrower than a cache of any kinds

    def __init__(self, num_layers: int, capacity: int) -> None:
        super().__init__(layers=[RollbackLayer(capacity) for _ in range(num_layers)])

    @property
    def length(self) -> int:
        return self.layers[0].length

    def rollback_to(self, length: int) -> None:
        """Forget every position from `length` on.

        Layers that were never written have none: some of Gemma 4 use the keys and values of an earlier one.
        """
        for layer in [layer for layer in self.layers if layer.is_initialized] or self.layers:
            if length > layer.length:
                raise DFlashError(f"a cache of {layer.length} positions cannot be rolled back to {length}")
            layer.length = length


class DraftCache:
    """A draft's keys and values of the committed context; the block's own are written behind it and never committed."""

    def __init__(self, num_layers: int, capacity: int) -> None:
        self.length = 0
        self._capacity = capacity
        self._buffers: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * num_layers

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[1, heads, n, head dim]` behind the committed part; views of both parts together."""
        end = self.length + keys.shape[-2]
        if end > self._capacity:
            raise DFlashError(f"a draft cache of {self._capacity} positions was given {end}")
        buffers = self._buffers[layer]
        if buffers is None:
            shape = (*keys.shape[:2], self._capacity, keys.shape[-1])
            buffers = self._buffers[layer] = (keys.new_empty(shape), values.new_empty(shape))
        buffers[0][:, :, self.length : end] = keys
        buffers[1][:, :, self.length : end] = values
        return buffers[0][:, :, :end], buffers[1][:, :, :end]

    def commit(self, num_context: int) -> None:
        """Keep the first `num_context` of what was written last."""
        self.length += num_context
