"""A feature is what leaves a block; nothing stays in the target between two forwards; generations keep apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from loops.tiny_models import HIDDEN, MASK_ID, NUM_LAYERS, tiny_config
from mlx.utils import tree_flatten
from mlx_loops.tiny_mlx import tiny_draft, tiny_target

from dflash.errors import DraftError, ModelError
from dflash.mlx_decoding import decode, decode_steps
from dflash.mlx_draft import DFlashDraftModel
from dflash.mlx_target import MLXTarget


def places(model: Any) -> list[tuple[str, int]]:
    """Every module of a model by path and identity, and every parameter by name."""
    modules = sorted((path, id(module)) for path, module in model.named_modules())
    layers = [("layers", id(layer)) for layer in MLXTarget(model).layers]
    return modules + layers + sorted((name, 0) for name, _ in tree_flatten(model.parameters()))


def residuals_by_hand(model: Any, ids: list[int]) -> list[np.ndarray]:
    """What enters each block after the first, and the final norm: what left the block before it."""
    target = MLXTarget(model)
    decoder = target._decoder
    entered: list[np.ndarray] = []

    class Watch:
        def __init__(self, module: Any) -> None:
            self.module = module

        def __call__(self, hidden: mx.array, *given: Any, **options: Any) -> Any:
            entered.append(np.array(hidden))
            return self.module(hidden, *given, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.module, name)

    before = [*target.layers, decoder["norm"]]
    for index, layer in enumerate(before[:-1]):
        target.layers[index] = Watch(layer)
    decoder["norm"] = Watch(before[-1])
    try:
        mx.eval(model(mx.array([ids]), cache=target.new_cache().caches))
    finally:
        target.layers[:] = before[:-1]
        decoder["norm"] = before[-1]
    return entered[1:]


@pytest.mark.parametrize("layer_ids", [(0, 2), (2, 0), (1,), (0, 1, 2)])
def test_a_feature_is_what_leaves_its_block(case: SimpleNamespace, layer_ids: tuple[int, ...]) -> None:
    target = MLXTarget(case.model)
    residuals = residuals_by_hand(case.model, case.prompt)
    assert len(residuals) == NUM_LAYERS
    forward = target.forward(mx.array(case.prompt), target.new_cache(), layer_ids=layer_ids)
    assert forward.features is not None
    features = np.array(forward.features)
    assert features.shape == (1, len(case.prompt), len(layer_ids) * HIDDEN)
    wanted = np.concatenate([residuals[layer_id] for layer_id in layer_ids], axis=-1)
    np.testing.assert_allclose(features, wanted, atol=1e-5)
    # One off in either direction is another feature.
    assert not np.allclose(features[..., :HIDDEN], residuals[layer_ids[0] + 1], atol=1e-3)


def test_the_last_block_is_refused() -> None:
    model = tiny_target("qwen3")
    for layer_id in (NUM_LAYERS - 1, NUM_LAYERS):
        draft = tiny_draft(dflash_config={"mask_token_id": 63, "target_layer_ids": [0, layer_id]})
        with pytest.raises(DraftError, match=f"reads target block {layer_id}, .* 0 to 2 can be read"):
            decode_steps(model, draft, [1], 5, None)


def test_the_loop_hands_over_features_of_committed_tokens_only(
    case: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the draft is given, put together, is the feature of prompt and output in one plain forward."""
    given: list[np.ndarray] = []
    blocks: list[np.ndarray] = []
    call = DFlashDraftModel.__call__

    def watched(self: Any, block: mx.array, features: mx.array, cache: Any) -> mx.array:
        given.append(np.array(features))
        blocks.append(np.array(block))
        return call(self, block, features, cache)

    monkeypatch.setattr(DFlashDraftModel, "__call__", watched)
    decode(case.model, tiny_draft(), case.prompt, 12, None, block_size=5)
    features = np.concatenate(given, axis=1)  # [1, committed, 2 * hidden]
    ids = [*case.prompt, *case.reference][: features.shape[1]]
    target = MLXTarget(case.model)
    wanted = target.forward(mx.array(ids), target.new_cache(), layer_ids=(0, 2)).features
    assert len(given) > 1
    assert given[0].shape[1] == len(case.prompt)
    # The block's embeddings are the rows as they are stored, which Gemma's own forward multiplies.
    rows = np.array(target.embedding.weight)[[case.reference[0], *[MASK_ID] * 4]]
    np.testing.assert_array_equal(blocks[0][0], rows)
    assert wanted is not None
    np.testing.assert_allclose(features, np.array(wanted), atol=5e-4, rtol=1e-4)


def test_fc_comes_before_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, seen = tiny_draft(), []
    layer = draft.layers[0]
    monkeypatch.setattr(
        type(layer), "__call__", lambda self, block, context, *rest: seen.append(np.array(context)) or block
    )
    features = mx.random.normal((1, 6, 2 * HIDDEN), key=mx.random.key(0))
    draft(mx.zeros((1, 3, HIDDEN)), features, draft.new_cache(9))
    projected = np.array(features) @ np.array(draft.fc.weight).T
    root_mean_square = np.sqrt(np.mean(projected**2, axis=-1, keepdims=True) + draft.config.rms_norm_eps)
    wanted = projected / root_mean_square * np.array(draft.hidden_norm.weight)
    np.testing.assert_allclose(seen[0], wanted, atol=1e-5, rtol=1e-5)
    normed = np.array(features) / np.sqrt(np.mean(np.array(features) ** 2, axis=-1, keepdims=True) + 1e-6)
    other_way_round = normed @ np.array(draft.fc.weight).T * np.array(draft.hidden_norm.weight)
    assert np.abs(seen[0] - other_way_round).max() > 0.1


def test_nothing_is_left_in_the_target_and_after_an_error_neither(
    case: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = places(case.model)
    steps = decode_steps(case.model, tiny_draft(), case.prompt, 12, None, block_size=5)
    for _ in steps:
        assert places(case.model) == before  # not even between two steps
    last = MLXTarget(case.model).layers[-1].mlp
    forward = type(last).__call__
    for num_calls in (1, 2, 4):  # in a prefill, in its last token, in a verify forward
        calls: list[int] = []

        def fails_later(self: Any, *given: Any, calls: list[int] = calls, wanted: int = num_calls) -> Any:
            calls.append(1)
            if len(calls) == wanted * NUM_LAYERS:
                raise MemoryError("made up")
            return forward(self, *given)

        with monkeypatch.context() as patched:
            patched.setattr(type(last), "__call__", fails_later)
            with pytest.raises(MemoryError):
                decode(case.model, tiny_draft(), case.prompt, 12, None, block_size=5)
        assert places(case.model) == before
    decoded = decode(case.model, tiny_draft(), case.prompt, 12, None, block_size=5)
    assert list(decoded.output_ids) == case.reference[:12]


def test_a_generator_that_is_left_leaves_nothing(case: SimpleNamespace) -> None:
    before = places(case.model)
    steps = decode_steps(case.model, tiny_draft(), case.prompt, 12, None, block_size=5)
    next(steps)
    next(steps)
    steps.close()
    assert places(case.model) == before


def test_a_second_draft_reads_its_own_layers(case: SimpleNamespace) -> None:
    """Fault U15: with the first draft's layers still read, the second would accept other tokens."""
    others = {"dflash_config": {"mask_token_id": 63, "target_layer_ids": [1, 0]}}
    for changes in ({}, others, {}):
        fresh = tiny_target(case.kind, case.seed)
        alone = decode(fresh, tiny_draft(**changes), case.prompt, 8, None, block_size=5)
        together = decode(case.model, tiny_draft(**changes), case.prompt, 8, None, block_size=5)
        assert together.output_ids == alone.output_ids
        assert together.step_num_accepted == alone.step_num_accepted


def test_generators_that_live_at_once_do_not_disturb_each_other(case: SimpleNamespace) -> None:
    """Two drafts with other layers, and plain decoding, step by step in turns on one target."""
    others = {"dflash_config": {"mask_token_id": 63, "target_layer_ids": [1, 0]}}
    requests: list[tuple[Any, list[int], int]] = [
        (tiny_draft(), case.prompt, 5),
        (tiny_draft(1, **others), case.prompt[2:], 3),
        (None, case.prompt[1:], 2),
    ]
    alone = [
        decode(case.model, draft, prompt, 8, None, block_size=block_size)
        for draft, prompt, block_size in requests
    ]
    waiting = {
        number: decode_steps(case.model, draft, prompt, 8, None, block_size=block_size)
        for number, (draft, prompt, block_size) in enumerate(requests)
    }
    ended = {}
    while waiting:
        for number, steps in list(waiting.items()):
            try:
                next(steps)
            except StopIteration as end:
                ended[number] = end.value
                del waiting[number]
    for number, wanted in enumerate(alone):
        assert ended[number].output_ids == wanted.output_ids
        assert ended[number].step_num_accepted == wanted.step_num_accepted


def test_targets_without_blocks_or_head_are_refused() -> None:
    import mlx.nn as nn

    with pytest.raises(ModelError, match="no single list of decoder blocks"):
        MLXTarget(nn.Sequential(nn.Linear(4, 4)))
    for heads in ([], ["lm_head", "other"]):
        model = tiny_target("qwen3")
        head = model.pop("lm_head")
        for name in heads:
            model[name] = nn.Sequential(head)
        if heads:
            model["other"]["lm_head"] = head
            model["lm_head"] = head
        with pytest.raises(ModelError, match="the LM head of the target cannot be found"):
            MLXTarget(model)


def test_features_that_are_not_of_each_position_are_refused() -> None:
    """Some targets keep several streams beside each other."""
    target = MLXTarget(tiny_target("qwen3"))
    two, three = target.layers[2:4]
    target.layers[2] = lambda *given, **options: two(*given, **options)[None]
    target.layers[3] = lambda hidden, *given, **options: three(hidden[0], *given, **options)
    with pytest.raises(ModelError, match="no hidden state for each position"):
        target.forward(mx.array([5, 9, 20]), target.new_cache(), layer_ids=(2,))


def test_a_tied_head_is_the_embedding() -> None:
    from mlx_lm.models import qwen3
    from mlx_loops.tiny_mlx import tiny_args

    _, content = tiny_args("qwen3")
    model = qwen3.Model(qwen3.ModelArgs.from_dict({**content, "tie_word_embeddings": True}))
    target = MLXTarget(model)
    hidden = mx.random.normal((3, HIDDEN))
    np.testing.assert_allclose(
        np.array(target.head(hidden)), np.array(hidden) @ np.array(target.embedding.weight).T, atol=1e-5
    )
    assert (target.hidden_size, target.vocab_size, len(target.layers)) == (HIDDEN, 64, NUM_LAYERS)
    assert tiny_config().hidden_size == target.hidden_size
