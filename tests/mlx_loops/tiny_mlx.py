"""Tiny random targets of mlx-lm, drafts whose proposals are scripted, and a plain greedy reference."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from loops.tiny_models import (
    HIDDEN,
    MASK_ID,
    NUM_DISTINCT,
    NUM_LAYERS,
    PROMPT_LENGTH,
    VOCABULARY,
    tiny_config,
)
from mlx.utils import tree_map_with_path
from mlx_lm.models.cache import make_prompt_cache

from dflash.draft_config import DraftConfig
from dflash.mlx_draft import DFlashDraftModel, DraftCache
from dflash.mlx_target import MLXTarget

KINDS = ("qwen3", "llama", "gemma4", "qwen3_5")
WINDOW = 8  # of the sliding layers of gemma4: shorter than the prompt and every output
REFERENCE_LENGTH = 36


def tiny_args(kind: str) -> tuple[Any, dict[str, Any]]:
    """The module of mlx-lm and what its config.json would say."""
    from mlx_lm.models import gemma4_text, llama, qwen3, qwen3_5

    shape: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    if kind == "gemma4":
        gemma = {
            "global_head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": WINDOW,
            "num_kv_shared_layers": 2,  # one of them is read by the drafts
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCABULARY,
        }
        return gemma4_text, {**shape, **gemma, "model_type": "gemma4_text"}
    if kind == "qwen3_5":
        hybrid = {
            "full_attention_interval": 2,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        }
        return qwen3_5, {**shape, **hybrid, "model_type": "qwen3_5"}
    return {"qwen3": qwen3, "llama": llama}[kind], {**shape, "model_type": kind}


def tiny_target(kind: str, seed: int = 0) -> Any:
    """A random causal language model of mlx-lm, float32."""
    module, content = tiny_args(kind)
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(content))

    def drawn(path: str, array: mx.array) -> mx.array:
        name = path.rsplit(".", 2)[-2] if "." in path else path
        if "norm" in name:
            return mx.random.uniform(0.5, 1.5, array.shape)
        if path.endswith(("A_log", "dt_bias", "layer_scalar")):
            return array
        drawn = mx.random.normal(array.shape, scale=0.3)
        if "lm_head" in path:
            return drawn / mx.linalg.norm(drawn, axis=-1, keepdims=True)  # row t of the head has argmax t
        return (
            drawn * 3.0 if "embed_tokens" in path else drawn
        )  # the last token weighs more: fewer repetitions

    model.update(tree_map_with_path(drawn, model.parameters()))
    model.eval()
    mx.eval(model.parameters())
    return model


def tiny_draft(seed: int = 0, **changes: Any) -> DFlashDraftModel:
    """A random draft, norm weights and biases included, so that no norm is a mere scaling."""
    draft = DFlashDraftModel(tiny_config(**changes))
    mx.random.seed(seed)

    def drawn(path: str, array: mx.array) -> mx.array:
        if "norm" in path:
            return mx.random.uniform(0.5, 1.5, array.shape)
        return mx.random.normal(array.shape, scale=0.3)

    draft.update(tree_map_with_path(drawn, draft.parameters()))
    mx.eval(draft.parameters())
    return draft


def greedy_reference(model: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Plain greedy decoding without a cache: a forward over everything for each token."""
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append(int(mx.argmax(model(mx.array([ids]))[0, -1])))
    return ids[len(prompt) :]


def case_with_distinct_tokens(kind: str) -> SimpleNamespace:
    """A target, a prompt whose first outputs all differ (a stop fits in every slot), and its reference."""
    for seed in range(24):
        model = tiny_target(kind, seed)
        mx.random.seed(1)
        prompts = mx.random.randint(3, VOCABULARY - 1, (64, PROMPT_LENGTH))
        cache = make_prompt_cache(model)
        outputs: list[list[int]] = []
        given = prompts
        for _ in range(NUM_DISTINCT):
            given = mx.argmax(model(given, cache=cache)[:, -1], axis=-1)[:, None]
            outputs.append(given[:, 0].tolist())
        for row, prompt in enumerate(prompts.tolist()):
            if len({column[row] for column in outputs}) == NUM_DISTINCT:
                reference = greedy_reference(model, prompt, REFERENCE_LENGTH)
                return SimpleNamespace(kind=kind, seed=seed, model=model, prompt=prompt, reference=reference)
    raise AssertionError(f"no prompt gives {NUM_DISTINCT} different tokens with the tiny {kind}")


class ScriptedDraft:
    """Stands in for a draft: makes the loop propose chosen tokens through the real target's head."""

    def __init__(self, model: Any, config: DraftConfig | None = None) -> None:
        self.config = config or tiny_config()
        self.block_size = self.config.block_size
        self.target_layer_ids = self.config.target_layer_ids
        self.num_calls = 0
        head: Any = MLXTarget(model).head
        self._head = (head if isinstance(head, nn.Module) else head.__self__).weight

    def new_cache(self, capacity: int) -> DraftCache:
        self.num_calls = 0
        return DraftCache(0, capacity)

    def proposals(self, num_slots: int, num_committed: int) -> list[int]:
        raise NotImplementedError

    def __call__(self, block: mx.array, features: mx.array, cache: DraftCache) -> mx.array:
        cache.commit(features.shape[1])
        proposals = self.proposals(block.shape[1] - 1, cache.length)
        self.num_calls += 1
        return self._head[mx.array([0, *proposals])][None]


class OracleDraft(ScriptedDraft):
    """Proposes what the target will say, in step s for exactly `script[s]` slots, then wrong tokens."""

    def __init__(
        self, model: Any, prompt: Sequence[int], reference: Sequence[int], script: Sequence[int]
    ) -> None:
        super().__init__(model)
        self._num_prompt, self._script = len(prompt), script
        self._reference = [*reference, *[0] * 64]

    def proposals(self, num_slots: int, num_committed: int) -> list[int]:
        anchor = num_committed - self._num_prompt  # output index of the anchor
        right = self._script[self.num_calls % len(self._script)]
        return [
            (self._reference[anchor + slot] + (slot > right)) % VOCABULARY for slot in range(1, num_slots + 1)
        ]


class ConstantDraft(ScriptedDraft):
    """Proposes one token in every slot."""

    def __init__(self, model: Any, token_id: int = MASK_ID, config: DraftConfig | None = None) -> None:
        super().__init__(model, config)
        self._token_id = token_id

    def proposals(self, num_slots: int, num_committed: int) -> list[int]:
        return [self._token_id] * num_slots
