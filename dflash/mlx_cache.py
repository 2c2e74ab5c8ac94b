"""Rolling back the caches of mlx-lm: each kind exactly, and none that is not known.

`trim` of mlx-lm does nothing for caches that cannot be trimmed, and takes a rotating cache apart once it is full:
rejected tokens would stay in the state and corrupt all that follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from dflash.errors import DFlashError, ModelError

Place = tuple[Any, Any, Any]  # a list or a module, the index or name in it, what stands there for a while


@contextmanager
def put_in_place(places: Sequence[Place]) -> Iterator[None]:
    """Put something else into lists and modules, and what was there back at the end, also on error."""
    before = [holder[key] for holder, key, _ in places]
    try:
        for holder, key, other in places:
            holder[key] = other
        yield
    finally:
        for (holder, key, _), original in zip(places, before, strict=True):
            holder[key] = original


class _Recorder:
    """Stands in for a projection of a recurrent layer during a forward, and keeps what went in and came out."""

    def __init__(self, projection: Any) -> None:
        self._projection = projection
        self.inputs: Any = None
        self.outputs: Any = None

    def __call__(self, inputs: mx.array) -> mx.array:
        self.inputs = inputs  # [1, n, hidden]
        self.outputs = self._projection(inputs)  # [1, n, size]
        return self.outputs


class _Player:
    """Stands in for the same projection, and gives the first outputs that were kept."""

    def __init__(self, outputs: mx.array) -> None:
        self._outputs = outputs

    def __call__(self, inputs: mx.array) -> mx.array:
        return self._outputs


class RecurrentRollback:
    """State and convolution state of a recurrent layer, after fewer tokens than it was given.

    The projections of the last forward are kept. To go back, the layer runs again from the state before, on the first
    of them: its own code, so the state is the one that it would have had; and as nothing reads the layer's output, MLX
    computes convolution and recurrence only.
    """

    def __init__(self, module: Any, cache: ArraysCache) -> None:
        self._module = module
        self._cache = cache
        self._names = [name for name in module.children() if name.startswith("in_proj")]
        self._before: list[mx.array | None] = []
        self._recorders: dict[str, _Recorder] = {}

    def record(self) -> list[Place]:
        """Begin to keep what the next forward computes."""
        self._before = list(self._cache.cache)
        self._recorders = {name: _Recorder(self._module[name]) for name in self._names}
        return [(self._module, name, recorder) for name, recorder in self._recorders.items()]

    def keep_first(self, num_tokens: int) -> None:
        """Be as if the recorded forward had been given its first `num_tokens` only."""
        kept = {name: recorder.outputs[:, :num_tokens] for name, recorder in self._recorders.items()}
        inputs = self._recorders[self._names[0]].inputs[:, :num_tokens]
        self._cache.cache = list(self._before)
        with put_in_place([(self._module, name, _Player(outputs)) for name, outputs in kept.items()]):
            self._module(inputs, mask=None, cache=self._cache)


class TargetCache:
    """The caches of one request, as the model itself makes them.

    Raises:
        ModelError: a kind of cache that cannot be rolled back here.
    """

    def __init__(self, layers: Sequence[Any], caches: list[Any]) -> None:
        self.caches = caches
        self.length = 0  # positions that went through the model
        self._recurrent: dict[int, RecurrentRollback] = {}
        for index, cache in enumerate(caches):
            if type(cache) is ArraysCache:
                self._recurrent[index] = RecurrentRollback(_recurrent_module(layers, caches, index), cache)
            elif type(cache) is not KVCache and not (type(cache) is RotatingKVCache and cache.keep == 0):
                raise ModelError(
                    f"layer {index} of the target keeps a {type(cache).__name__}, which cannot be rolled back",
                    "use a target with attention or gated delta net layers",
                )

    def recording(self) -> AbstractContextManager[None]:
        """While this is open, the forward is one that can be rolled back."""
        return put_in_place([place for layer in self._recurrent.values() for place in layer.record()])

    def arrays(self) -> list[Any]:
        """All that the caches hold, to be evaluated."""
        return [cache.state for cache in self.caches]

    def rollback(self, num_given: int, num_kept: int) -> None:
        """Be as if the last forward, of `num_given` tokens, had been given its first `num_kept` only.

        A forward of one token is not rolled back.
        """
        if not 0 < num_kept <= num_given <= self.length:
            raise DFlashError(f"{num_kept} of the last {num_given} of {self.length} positions cannot be kept")
        num_dropped = num_given - num_kept
        self.length -= num_dropped
        if num_dropped == 0:
            return
        for index, cache in enumerate(self.caches):
            if index in self._recurrent:
                self._recurrent[index].keep_first(num_kept)
            elif isinstance(cache, RotatingKVCache):
                _drop_from_window(cache, num_dropped)
            else:
                cache.trim(num_dropped)


def _drop_from_window(cache: RotatingKVCache, num_dropped: int) -> None:
    """A forward of several tokens leaves a rotating cache in order of time, with the window of its first token: the
    last positions can be cut off, and what is left is the window of any token that follows."""
    kept = cache.keys.shape[2] - num_dropped
    cache.keys, cache.values = cache.keys[:, :, :kept], cache.values[:, :, :kept]
    cache.offset -= num_dropped
    cache._idx = kept


def _recurrent_module(layers: Sequence[Any], caches: Sequence[Any], index: int) -> Any:
    """The gated delta net of a layer: what its state is made by."""
    module = getattr(layers[index], "linear_attn", None) if len(caches) == len(layers) else None
    if module is None or not any(name.startswith("in_proj") for name in module.children()):
        raise ModelError(
            f"layer {index} of the target keeps a state that cannot be rolled back here",
            "use a target with attention or gated delta net layers",
        )
    return module
