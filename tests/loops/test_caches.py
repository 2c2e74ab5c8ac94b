"""The draft cache holds the committed context after each step; nothing grows, moves, or outlives a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loops.tiny_models import OracleDraft, tiny_draft

from dflash.decoded import Decoded
from dflash.decoding import dflash_generate, plain_generate
from dflash.errors import DFlashError
from dflash.rollback_cache import DraftCache, RollbackCache
from dflash.target import Target


class WatchedTarget(Target):
    """Notes how many positions each forward adds, where the buffers lie, and what was rolled back to."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.num_given: list[int] = []
        self.length_before: list[int] = []
        self.addresses: list[tuple[int, ...]] = []
        self.caches: list[RollbackCache] = []

    def new_cache(self, capacity: int) -> RollbackCache:
        self.caches.append(super().new_cache(capacity))
        return self.caches[-1]

    def forward(self, input_ids: torch.Tensor, cache: RollbackCache, **options: Any) -> torch.Tensor:
        self.num_given.append(input_ids.shape[1])
        self.length_before.append(cache.length)
        logits = super().forward(input_ids, cache, **options)
        self.addresses.append(
            tuple(tensor.data_ptr() for layer in cache.layers for tensor in (layer.keys, layer.values))
        )
        return logits


class WatchedCache(DraftCache):
    def __init__(self, *given: int) -> None:
        super().__init__(*given)
        self.lengths: list[int] = []
        self.addresses: set[tuple[int, ...]] = set()

    def commit(self, num_context: int) -> None:
        super().commit(num_context)
        self.lengths.append(self.length)
        self.addresses.add(tuple(tensor.data_ptr() for pair in self._buffers for tensor in pair or ()))


def watch(draft: Any, monkeypatch: pytest.MonkeyPatch) -> list[WatchedCache]:
    caches: list[WatchedCache] = []

    def new_cache(capacity: int) -> WatchedCache:
        caches.append(WatchedCache(draft.config.num_hidden_layers, capacity))
        return caches[-1]

    monkeypatch.setattr(draft, "new_cache", new_cache)
    return caches


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
    caches = watch(draft, monkeypatch)
    decoded = dflash_generate(draft, target, case.prompt, 24, None, block_size=block_size, return_stats=True)
    assert caches[0].lengths == committed_lengths(decoded)
    assert target.length_before == [0, *committed_lengths(decoded)]
    assert target.num_given == [len(case.prompt)] + [block_size] * decoded.num_decode_steps
    assert len(caches) == len(target.caches) == 1
    assert len(set(target.addresses)) == 1
    assert len(caches[0].addresses) == 1


def test_plain_decoding_gives_one_token_a_forward_and_keeps_its_buffers(case: SimpleNamespace) -> None:
    target = WatchedTarget(case.model)
    plain_generate(target, case.prompt, 24, None)
    assert target.num_given == [len(case.prompt)] + [1] * 23
    assert target.length_before == [0, *range(len(case.prompt), len(case.prompt) + 23)]
    assert len(set(target.addresses)) == 1


def test_the_second_request_gets_caches_of_its_own(
    case: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft, target = tiny_draft(), WatchedTarget(case.model)
    caches = watch(draft, monkeypatch)
    long_prompt = [*case.prompt, *case.reference]
    first = dflash_generate(draft, target, long_prompt, 12, None, block_size=5, return_stats=True)
    second = dflash_generate(draft, target, case.prompt, 12, None, block_size=5, return_stats=True)
    alone = dflash_generate(tiny_draft(), case.model, case.prompt, 12, None, block_size=5, return_stats=True)
    assert (second.output_ids, second.step_num_accepted) == (alone.output_ids, alone.step_num_accepted)
    assert [cache.lengths for cache in caches] == [committed_lengths(first), committed_lengths(second)]
    assert len({id(cache) for cache in target.caches}) == 2


def test_a_rolled_back_cache_is_as_if_never_written() -> None:
    cache = RollbackCache(2, 8)
    keys = torch.arange(8.0).reshape(1, 1, 8, 1)
    for layer in range(2):
        cache.update(keys[:, :, :5], -keys[:, :, :5], layer)
    cache.rollback_to(3)
    assert (cache.length, cache.get_seq_length()) == (3, 3)
    for layer in range(2):
        seen_keys, seen_values = cache.update(keys[:, :, 6:], -keys[:, :, 6:], layer)
        assert seen_keys.flatten().tolist() == [0, 1, 2, 6, 7]
        assert seen_values.flatten().tolist() == [0, -1, -2, -6, -7]
    assert cache.get_mask_sizes(4, 0) == (9, 0)
    with pytest.raises(DFlashError, match="cannot be rolled back to 6"):
        cache.rollback_to(6)
    with pytest.raises(DFlashError, match="8 positions was given 9"):
        cache.update(keys[:, :, :4], keys[:, :, :4], 0)


def test_a_draft_cache_forgets_the_block_and_keeps_the_context() -> None:
    cache = DraftCache(1, 6)
    values = torch.arange(6.0).reshape(1, 1, 6, 1)
    cache.write(0, values[:, :, :5], values[:, :, :5])  # 2 of context, 3 of the block
    cache.commit(2)
    keys, _ = cache.write(0, values[:, :, 3:], values[:, :, 3:])
    assert keys.flatten().tolist() == [0, 1, 3, 4, 5]
    with pytest.raises(DFlashError, match="6 positions was given 7"):
        cache.write(0, values[:, :, :5], values[:, :, :5])
