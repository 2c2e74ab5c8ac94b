"""Caches hold what is committed; a rolled-back state is the one that never saw the rejected tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from loops.tiny_models import VOCABULARY
from mlx.utils import tree_flatten
from mlx_loops.tiny_mlx import WINDOW, OracleDraft, tiny_draft, tiny_target

from dflash.decoded import Decoded
from dflash.errors import DFlashError, ModelError
from dflash.mlx_cache import TargetCache
from dflash.mlx_decoding import decode
from dflash.mlx_draft import DraftCache
from dflash.mlx_target import MLXTarget


class WatchedTarget(MLXTarget):
    """Notes what every forward is given, and how long the cache was before."""

    def __init__(self, model: Any) -> None:
        self.length_before: list[int] = []
        self.num_given: list[int] = []
        self.caches: list[TargetCache] = []
        super().__init__(model)
        self.caches.clear()

    def new_cache(self) -> TargetCache:
        self.caches.append(super().new_cache())
        return self.caches[-1]

    def forward(self, token_ids: mx.array, cache: TargetCache, **options: Any) -> Any:
        self.length_before.append(cache.length)
        self.num_given.append(token_ids.shape[0])
        return super().forward(token_ids, cache, **options)


def watch(draft: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Lengths of the draft's caches after each step, one list a request."""
    lengths: list[list[int]] = []

    class WatchedCache(DraftCache):
        def commit(self, num_context: int) -> None:
            super().commit(num_context)
            lengths[-1].append(self.length)

    def new_cache(capacity: int) -> DraftCache:
        lengths.append([])
        draft.num_calls = 0
        return WatchedCache(draft.config.num_hidden_layers, capacity)

    monkeypatch.setattr(draft, "new_cache", new_cache)
    return lengths


def committed_lengths(decoded: Decoded) -> list[int]:
    """Committed positions before each step: the prompt, then anchor and accepted tokens of each step."""
    lengths = [len(decoded.prompt_ids)]
    for accepted in decoded.step_num_accepted[:-1]:
        lengths.append(lengths[-1] + accepted + 1)
    return lengths


@pytest.mark.parametrize("block_size", [2, 5, 16])
@pytest.mark.parametrize("kind_of_draft", ["random", "oracle"])
def test_draft_and_target_caches_hold_the_committed_context(
    case: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, block_size: int, kind_of_draft: str
) -> None:
    target = WatchedTarget(case.model)
    draft: Any = tiny_draft()
    if kind_of_draft == "oracle":
        draft = OracleDraft(case.model, case.prompt, case.reference, [1, 0, block_size - 1])
    lengths = watch(draft, monkeypatch)
    num_prompt = len(case.prompt)
    decoded = decode(target, draft, case.prompt, 12, None, block_size=block_size)
    assert lengths == [committed_lengths(decoded)]
    assert target.length_before == [0, num_prompt - 1, *committed_lengths(decoded)]
    assert target.num_given == [num_prompt - 1, 1] + [block_size] * decoded.num_decode_steps
    assert len(target.caches) == 1


def test_the_second_request_gets_caches_of_its_own(
    case: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft, target = tiny_draft(), WatchedTarget(case.model)
    lengths = watch(draft, monkeypatch)
    first = decode(target, draft, [*case.prompt, *case.reference], 9, None, block_size=5)
    second = decode(target, draft, case.prompt, 9, None, block_size=5)
    alone = decode(case.model, tiny_draft(), case.prompt, 9, None, block_size=5)
    assert (second.output_ids, second.step_num_accepted) == (alone.output_ids, alone.step_num_accepted)
    assert lengths == [committed_lengths(first), committed_lengths(second)]
    assert len({id(cache) for cache in target.caches}) == 2


def held(cache: TargetCache) -> list[np.ndarray]:
    """What a cache holds of its valid positions, in the order of time."""
    arrays: list[np.ndarray] = []
    for layer in cache.caches:
        if hasattr(layer, "keys"):
            keys, values = layer.keys, layer.values
            if hasattr(layer, "_temporal_order"):
                keys, values = layer._temporal_order(keys), layer._temporal_order(values)
                keys, values = keys[:, :, -(WINDOW - 1) :], values[:, :, -(WINDOW - 1) :]
            else:
                keys, values = keys[:, :, : layer.offset], values[:, :, : layer.offset]
            arrays += [np.array(keys), np.array(values)]
        else:
            arrays += [np.array(array) for array in layer.cache]
    return arrays


@pytest.mark.parametrize("num_kept", [1, 2, 4, 5])
def test_a_rolled_back_cache_is_as_if_never_written(case: SimpleNamespace, num_kept: int) -> None:
    """Keys, values, recurrent and convolution states, and the next logits; also when rolled back time after time."""
    target = MLXTarget(case.model)
    mx.random.seed(3)
    cache, reference = target.new_cache(), target.new_cache()
    prompt = mx.random.randint(0, VOCABULARY, (11,))
    for each in (cache, reference):
        target.forward(prompt, each)
    for _ in range(3):
        block = mx.random.randint(0, VOCABULARY, (5,))
        target.forward(block, cache, can_roll_back=True)
        cache.rollback(5, num_kept)
        target.forward(block[:num_kept], reference)
        assert cache.length == reference.length
        for array, wanted in zip(held(cache), held(reference), strict=True):
            np.testing.assert_allclose(array, wanted, atol=2e-5, rtol=1e-4)
    token = mx.array([9, 4])
    np.testing.assert_allclose(
        np.array(target.forward(token, cache).logits),
        np.array(target.forward(token, reference).logits),
        atol=5e-4,
        rtol=1e-4,
    )


def test_every_recurrent_layer_is_rolled_back_by_itself() -> None:
    """As many states as recurrent layers, each from its own layer: with one for all, the logits would differ."""
    target = MLXTarget(tiny_target("qwen3_5"))
    cache = target.new_cache()
    assert sorted(cache._recurrent) == [0, 2]
    target.forward(mx.array([5, 6, 7]), cache)
    before = [[np.array(array) for array in cache.caches[index].cache] for index in (0, 2)]
    target.forward(mx.array([8, 9, 10, 11]), cache, can_roll_back=True)
    cache.rollback(4, 1)
    after = [[np.array(array) for array in cache.caches[index].cache] for index in (0, 2)]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(new[0][:, :-1], old[0][:, 1:])  # the convolution saw one token more
        assert not np.allclose(new[1], old[1])
    assert not np.allclose(after[0][1], after[1][1])


def test_rolling_back_is_bounded() -> None:
    target = MLXTarget(tiny_target("qwen3"))
    cache = target.new_cache()
    target.forward(mx.array([5, 6, 7]), cache)
    for given, kept in ((3, 0), (2, 3), (4, 1)):
        with pytest.raises(DFlashError, match="cannot be kept"):
            cache.rollback(given, kept)
    assert cache.length == 3


def test_unknown_caches_are_refused_and_not_trimmed_without_effect() -> None:
    from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache

    class OwnCache(KVCache):
        """A kind of which nothing is known, not even whether `trim` does something."""

    model = tiny_target("qwen3")
    layers = MLXTarget(model).layers
    unknown = (
        OwnCache(),
        QuantizedKVCache(),
        RotatingKVCache(max_size=8, keep=4),
        CacheList(KVCache()),
    )
    for other in unknown:
        with pytest.raises(ModelError, match=f"layer 2 of the target keeps a {type(other).__name__}, which"):
            TargetCache(layers, [KVCache(), KVCache(), other, KVCache()])
    with pytest.raises(ModelError, match="layer 1 of the target keeps a state that cannot be rolled back"):
        TargetCache(layers, [KVCache(), ArraysCache(2), KVCache(), KVCache()])
    hybrid = MLXTarget(tiny_target("qwen3_5"))
    with pytest.raises(ModelError, match="layer 0 of the target keeps a state"):  # the count does not fit
        TargetCache(hybrid.layers, [ArraysCache(2), KVCache(), ArraysCache(2)])


def test_a_draft_cache_forgets_the_block_and_keeps_the_context() -> None:
    cache = DraftCache(1, 6)
    values = mx.arange(6.0).reshape(1, 1, 6, 1)
    cache.write(0, values[:, :, :5], values[:, :, :5])  # 2 of context, 3 of the block
    cache.commit(2)
    keys, _ = cache.write(0, values[:, :, 3:], values[:, :, 3:])
    assert keys.flatten().tolist() == [0, 1, 3, 4, 5]
    with pytest.raises(DFlashError, match="6 positions was given 7"):
        cache.write(0, values[:, :, :5], values[:, :, :5])


def test_memory_does_not_grow_with_the_steps(case: SimpleNamespace) -> None:
    """What a step keeps of its forward goes with the next one: after many requests nothing is left."""
    draft, target = tiny_draft(), MLXTarget(case.model)
    held_bytes = []
    for _ in range(3):
        decode(target, draft, case.prompt, 12, None, block_size=5)
        mx.synchronize()
        held_bytes.append(mx.get_active_memory())
    assert held_bytes[1] == held_bytes[2]
    assert all(array.nbytes for _, array in tree_flatten(case.model.parameters()))
