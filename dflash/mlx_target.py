"""A target of mlx-lm as the loops see it: its blocks, embedding and head, found by structure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from dflash.errors import ModelError
from dflash.mlx_cache import TargetCache, put_in_place

# What stands in for a block during a forward must not be seen by a forward of another thread.
_forward_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class Forward:
    """What a forward gives, not yet evaluated."""

    logits: mx.array  # [n, vocabulary]
    features: mx.array | None  # [1, n, layer ids * hidden]


class _Tap:
    """Stands in for a block during one forward and keeps what leaves it: the residual stream."""

    def __init__(self, block: Any) -> None:
        self._block = block
        self.hidden: Any = None

    def __call__(self, *given: Any, **options: Any) -> Any:
        output = self._block(*given, **options)
        self.hidden = output[0] if isinstance(output, tuple) else output
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)  # models look at a block's kind


class MLXTarget:
    """A causal language model of mlx-lm, seen from outside; between two forwards nothing in it is changed.

    Raises:
        ModelError: its blocks, embedding or head cannot be found, or its cache cannot be rolled back.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._decoder = _find_decoder(model)
        self.layers: list[Any] = self._decoder["layers"]
        self.embedding: Any = self._decoder["embed_tokens"]
        self.head = _find_head(model, self.embedding)
        self.new_cache()  # refuses kinds that cannot be rolled back

    @property
    def hidden_size(self) -> int:
        return int(self._decoder["norm"].weight.shape[-1])

    @property
    def vocab_size(self) -> int:
        return int(self.embedding.weight.shape[0])

    @property
    def dtype(self) -> mx.Dtype:
        """Of the residual stream; weights may be quantised."""
        dtype: mx.Dtype = self.embedding(mx.array([0])).dtype
        return dtype

    def new_cache(self) -> TargetCache:
        return TargetCache(self.layers, make_prompt_cache(self.model))

    def forward(
        self,
        token_ids: mx.array,
        cache: TargetCache,
        *,
        layer_ids: Sequence[int] = (),
        can_roll_back: bool = False,
    ) -> Forward:
        """Logits of the next tokens after `token_ids` `[n]`, and the features of the blocks; the cache grows by n."""
        taps = [_Tap(self.layers[layer_id]) for layer_id in layer_ids]
        places = [(self.layers, layer_id, tap) for layer_id, tap in zip(layer_ids, taps, strict=True)]
        with _forward_lock, put_in_place(places), cache.recording() if can_roll_back else nullcontext():
            logits = self.model(token_ids[None], cache=cache.caches)[0]
        cache.length += token_ids.shape[0]
        if any(tap.hidden is None for tap in taps):
            raise ModelError(
                "the target's forward did not pass the blocks that the draft reads", "use another target"
            )
        if any(tap.hidden.shape[:-1] != (1, token_ids.shape[0]) for tap in taps):
            raise ModelError(
                "the target's blocks give no hidden state for each position", "use another target"
            )
        features = mx.concatenate([tap.hidden for tap in taps], axis=-1) if taps else None
        return Forward(logits, features)


def _find_decoder(model: Any) -> Any:
    """The module that holds the list of blocks beside the token embedding."""
    found = [
        module
        for _, module in model.named_modules()
        if isinstance(module.get("layers"), list) and {"embed_tokens", "norm"} <= module.keys()
    ]
    if len(found) != 1:
        raise ModelError(
            f"{type(model).__module__.split('.')[-1]}.{type(model).__name__} has no single list of decoder blocks "
            "with a token embedding",
            "use a decoder-only text model of mlx-lm",
        )
    return found[0]


def _find_head(model: Any, embedding: Any) -> Callable[[mx.array], mx.array]:
    """The LM head: a module of that name, or the embedding where the config ties both."""
    heads = [module["lm_head"] for _, module in model.named_modules() if "lm_head" in module]
    if len(heads) == 1:
        head: Callable[[mx.array], mx.array] = heads[0]
        return head
    settings = [getattr(module, "args", None) for _, module in model.named_modules()]
    is_tied = any(getattr(args, "tie_word_embeddings", False) for args in settings)
    if not heads and is_tied and isinstance(embedding, (nn.Embedding, nn.QuantizedEmbedding)):
        tied: Callable[[mx.array], mx.array] = embedding.as_linear
        return tied
    raise ModelError("the LM head of the target cannot be found", "use a causal language model of mlx-lm")
