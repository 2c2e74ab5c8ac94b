"""The one reader of a draft's `config.json`, shared by the torch and the MLX models. Pure: no tensor, no file.

What a key means and where it may stand differs between checkpoints; nothing that changes the output is ever replaced
by a default: a draft without mask id, block size or rope theta is refused, and so is every feature that is not built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.errors import DraftError

ARCHITECTURE = "DFlashDraftModel"
FULL, SLIDING = "full_attention", "sliding_attention"
ROPE_TYPES = ("default", "linear", "yarn", "llama3")
MIN_TARGET_LAYERS = 4
DRAFT_BITS = (4, 8)  # of a weight, where an engine quantises a draft

# Keys of checkpoints whose forward pass differs: running them without it would draft badly and say nothing.
_NOT_BUILT = {
    "quantization_config": "a quantised draft",
    "draft_vocab_size": "a draft vocabulary of its own",
    "projector_type": "a projector",
    "markov_rank": "a Markov head",
    "attention_mode": "another attention mode",
    "conv_kernel_size": "DFlash 2 convolutions",
    "selector_rank": "a DFlash 2 candidate selector",
    "attention_sink_bias": "attention sinks",
    "attention_value_scale": "a scaled attention value",
    "sample_from_anchor": "proposals from the anchor slot",
    "has_lm_head": "an LM head of its own",
    "has_embed_tokens": "an embedding of its own",
}


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """What a DFlash draft is made of; sizes in elements, ids zero-based."""

    block_size: int  # B = 1 anchor + B-1 draft tokens
    mask_token_id: int
    target_layer_ids: tuple[int, ...]  # a feature is the residual stream after that block
    hidden_size: int
    target_hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    hidden_act: str
    rms_norm_eps: float
    attention_bias: bool
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rope_parameters: Mapping[str, Any]  # with rope_type and rope_theta
    layer_types: tuple[str, ...]
    sliding_window: int | None  # includes the current token
    layer_is_causal: tuple[bool, ...]  # inside the block
    num_target_layers: int | None
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    input_embedding_scale: float = 1.0


def build_target_layer_ids(num_target_layers: int, num_draft_layers: int) -> list[int]:
    """Target blocks that feed the draft, spread evenly from block 1 to block N-3 (arXiv 2602.06036, published code).

    Raises:
        ValueError: the target has fewer than 4 blocks, or the ids would repeat.
    """
    if num_target_layers < MIN_TARGET_LAYERS:
        raise ValueError(
            f"a target of {num_target_layers} blocks is too shallow: at least {MIN_TARGET_LAYERS}"
        )
    if num_draft_layers < 1:
        raise ValueError(f"a draft of {num_draft_layers} layers: at least 1")
    if num_draft_layers == 1:
        return [num_target_layers // 2]
    first, last = 1, num_target_layers - 3
    ids = [
        round(first + index * (last - first) / (num_draft_layers - 1)) for index in range(num_draft_layers)
    ]
    if len(set(ids)) != len(ids):
        raise ValueError(
            f"{num_draft_layers} draft layers on {num_target_layers} target blocks would read a block twice: {ids}"
        )
    return ids


def parse_draft_config(config: Mapping[str, Any]) -> DraftConfig:
    """Read the content of a draft's `config.json`.

    Raises:
        DraftError: a key that decides the output is missing or contradictory, or a feature is not implemented.
    """
    nested = config.get("dflash_config") or {}
    if not isinstance(nested, Mapping):
        raise DraftError(
            "dflash_config of the draft's config.json is not an object", "use an unedited checkpoint"
        )
    _refuse_other_kinds(config, nested)
    num_layers = _integer(config, nested, "num_hidden_layers")
    hidden_size = _integer(config, nested, "hidden_size")
    num_heads = _integer(config, nested, "num_attention_heads")
    layer_types, window = _layer_types(config, nested, num_layers)
    rope = _rope_parameters(config)
    return DraftConfig(
        block_size=_block_size(config, nested),
        mask_token_id=_mask_token_id(config, nested),
        target_layer_ids=_target_layer_ids(config, nested, num_layers),
        hidden_size=hidden_size,
        target_hidden_size=_optional_integer(config, nested, "target_hidden_size") or hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=_optional_integer(config, nested, "num_key_value_heads") or num_heads,
        head_dim=_optional_integer(config, nested, "head_dim") or hidden_size // num_heads,
        intermediate_size=_integer(config, nested, "intermediate_size"),
        hidden_act=str(config.get("hidden_act", "silu")),
        rms_norm_eps=float(_required(config, nested, "rms_norm_eps")),
        attention_bias=bool(config.get("attention_bias", False)),
        vocab_size=_integer(config, nested, "vocab_size"),
        max_position_embeddings=_integer(config, nested, "max_position_embeddings"),
        rope_theta=float(rope["rope_theta"]),
        rope_parameters=rope,
        layer_types=layer_types,
        sliding_window=window,
        layer_is_causal=_causality(config, nested, layer_types),
        num_target_layers=_optional_integer(config, nested, "num_target_layers"),
        output_multiplier=float(_either(config, nested, "output_multiplier") or 1.0),
        final_logit_softcapping=_optional_float(config, nested, "final_logit_softcapping"),
        input_embedding_scale=float(_either(config, nested, "input_embedding_scale") or 1.0),
    )


def check_target(
    draft: DraftConfig, *, hidden_size: int, vocab_size: int, num_layers: int, target: str = "the target"
) -> None:
    """Check that a draft was made for a target of this shape.

    Raises:
        DraftError: hidden size, vocabulary, depth or layer ids do not fit; the message names both values.
    """
    mend = "use the draft that was trained for this target"
    if draft.target_hidden_size != hidden_size:
        raise DraftError(
            f"the draft reads features of width {draft.target_hidden_size}, {target} has hidden size {hidden_size}",
            mend,
        )
    if draft.hidden_size != hidden_size:
        raise DraftError(
            f"the draft has hidden size {draft.hidden_size}, and the embedding that it shares with {target} "
            f"has {hidden_size}",
            mend,
        )
    if draft.vocab_size != vocab_size:
        raise DraftError(
            f"the draft has a vocabulary of {draft.vocab_size} tokens, {target} has {vocab_size}", mend
        )
    if draft.num_target_layers is not None and draft.num_target_layers != num_layers:
        raise DraftError(
            f"the draft was made for a target of {draft.num_target_layers} blocks, {target} has {num_layers}",
            mend,
        )
    # The output of the last block is stored normalised by some engines, so a draft must not depend on it.
    outside = [layer_id for layer_id in draft.target_layer_ids if layer_id >= num_layers - 1]
    if outside:
        raise DraftError(
            f"the draft reads target block {outside[0]}, and of {num_layers} only 0 to {num_layers - 2} can be read",
            mend,
        )
    if draft.mask_token_id >= vocab_size:
        raise DraftError(
            f"mask token id {draft.mask_token_id} is outside the vocabulary of {vocab_size}", mend
        )


def check_block_size(draft: DraftConfig, block_size: int, *, force: bool = False) -> None:
    """Refuse blocks that cannot draft (below 2) or that the draft was not trained for, unless forced.

    Raises:
        DraftError: with the sizes that are possible.
    """
    if block_size < 2:
        raise DraftError(
            f"block size {block_size} drafts nothing", "choose 2 or more, or run the baseline arm"
        )
    if block_size > draft.block_size and not force:
        raise DraftError(
            f"block size {block_size} is above {draft.block_size}, which the draft was trained for",
            "choose a smaller --block-size, or add --force-block-size",
        )


def _refuse_other_kinds(config: Mapping[str, Any], nested: Mapping[str, Any]) -> None:
    architectures = config.get("architectures") or []
    if architectures and architectures != [ARCHITECTURE]:
        raise DraftError(
            f"draft architecture {', '.join(map(str, architectures))} is not implemented",
            f"use a {ARCHITECTURE} checkpoint",
        )
    if not architectures and not nested:
        raise DraftError(
            "config.json names no draft architecture and has no dflash_config", "is this a DFlash draft?"
        )
    for key, what in _NOT_BUILT.items():
        value = _either(config, nested, key)
        if value not in (None, False, 0):
            raise DraftError(
                f"the draft needs {what} ({key}), which is not implemented", "use another checkpoint"
            )


def _either(config: Mapping[str, Any], nested: Mapping[str, Any], key: str) -> Any:
    """The value of a key that may stand at the top or in `dflash_config`; both must agree."""
    top, inner = config.get(key), nested.get(key)
    if top is not None and inner is not None and top != inner:
        raise DraftError(
            f"{key} is {top} at the top of the draft's config.json and {inner} in dflash_config",
            "make them agree",
        )
    return inner if top is None else top


def _required(config: Mapping[str, Any], nested: Mapping[str, Any], key: str) -> Any:
    value = _either(config, nested, key)
    if value is None:
        raise DraftError(
            f"the draft's config.json has no {key}", f"add {key} as the draft was trained with it"
        )
    return value


def _whole(value: Any, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise DraftError(f"{key} of the draft is {value!r}, not a whole number", "use an unedited checkpoint")
    return value


def _integer(config: Mapping[str, Any], nested: Mapping[str, Any], key: str) -> int:
    value = _whole(_required(config, nested, key), key)
    if value == 0:
        raise DraftError(f"{key} of the draft is 0", "use an unedited checkpoint")
    return value


def _optional_integer(config: Mapping[str, Any], nested: Mapping[str, Any], key: str) -> int | None:
    value = _either(config, nested, key)
    return None if value is None else _whole(value, key)


def _optional_float(config: Mapping[str, Any], nested: Mapping[str, Any], key: str) -> float | None:
    value = _either(config, nested, key)
    return None if value is None else float(value)


def _block_size(config: Mapping[str, Any], nested: Mapping[str, Any]) -> int:
    block_size = _whole(_required(config, nested, "block_size"), "block_size")
    if block_size < 2:
        raise DraftError(
            f"block_size of the draft is {block_size}", "a block holds an anchor and at least one draft token"
        )
    return block_size


def _mask_token_id(config: Mapping[str, Any], nested: Mapping[str, Any]) -> int:
    mask_token_id = _whole(_required(config, nested, "mask_token_id"), "mask_token_id")
    stops = config.get("eos_token_id")
    reserved = {config.get("pad_token_id"), *(stops if isinstance(stops, Sequence) else (stops,))}
    if mask_token_id in reserved:
        raise DraftError(
            f"mask_token_id {mask_token_id} is also the pad or stop token", "name the id it was trained with"
        )
    return mask_token_id


def _target_layer_ids(
    config: Mapping[str, Any], nested: Mapping[str, Any], num_layers: int
) -> tuple[int, ...]:
    ids = _either(config, nested, "target_layer_ids")
    if ids is None:
        try:
            return tuple(build_target_layer_ids(_integer(config, nested, "num_target_layers"), num_layers))
        except ValueError as error:
            raise DraftError(str(error), "name target_layer_ids in the draft's config.json") from error
    if not isinstance(ids, Sequence) or isinstance(ids, str) or not ids:
        raise DraftError(f"target_layer_ids of the draft is {ids!r}", "it is a list of block numbers")
    numbers = tuple(_whole(value, "target_layer_ids") for value in ids)
    if len(set(numbers)) != len(numbers):
        raise DraftError(
            f"target_layer_ids names a block twice: {list(numbers)}", "use an unedited checkpoint"
        )
    return numbers


def _rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rope type, theta and scaling; an explicit theta at the top wins, and there is no default for it."""
    found: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        found.update(config.get(key) or {})
    if config.get("rope_theta") is not None:
        found["rope_theta"] = config["rope_theta"]
    if found.get("rope_theta") is None:
        raise DraftError(
            "the draft's config.json has no rope_theta", "add the rope_theta that it was trained with"
        )
    found["rope_type"] = found.pop("type", None) or found.get("rope_type") or "default"
    if found["rope_type"] not in ROPE_TYPES:
        raise DraftError(
            f"rope type {found['rope_type']!r} is not implemented", f"one of {', '.join(ROPE_TYPES)}"
        )
    if config.get("is_neox_style") is False or config.get("rope_is_neox_style") is False:
        raise DraftError("interleaved (not neox style) rope is not implemented", "use another checkpoint")
    return found


def _layer_types(
    config: Mapping[str, Any], nested: Mapping[str, Any], num_layers: int
) -> tuple[tuple[str, ...], int | None]:
    """Kind of each layer, and the window of the sliding ones."""
    types = _either(config, nested, "layer_types")
    window = _optional_integer(config, nested, "sliding_window")
    if nested.get("use_swa"):
        window = _integer(nested, nested, "swa_window_size")
        types = types or [SLIDING] * num_layers
        if SLIDING not in types:
            raise DraftError(
                "use_swa asks for a window, layer_types names no sliding layer", "make them agree"
            )
    if types is None:
        first = config.get("max_window_layers") if config.get("use_sliding_window") else None
        if config.get("use_sliding_window") and first is None:
            raise DraftError(
                "use_sliding_window is set without layer_types or max_window_layers",
                "name the sliding layers",
            )
        types = (
            [FULL] * num_layers
            if first is None
            else [SLIDING if i >= first else FULL for i in range(num_layers)]
        )
    if len(types) != num_layers or set(types) - {FULL, SLIDING}:
        raise DraftError(
            f"layer_types {list(types)} do not describe {num_layers} layers", f"use {FULL} and {SLIDING}"
        )
    if SLIDING in types and not window:
        raise DraftError(
            "the draft has sliding layers and no sliding_window", "add the window it was trained with"
        )
    return tuple(types), window if SLIDING in types else None


def _causality(
    config: Mapping[str, Any], nested: Mapping[str, Any], layer_types: Sequence[str]
) -> tuple[bool, ...]:
    """Whether each layer is causal inside the block: `is_causal`, else `dflash_config.causal`, else sliding ones."""
    stated = config.get("is_causal")
    stated = nested.get("causal") if stated is None else stated
    return tuple(kind == SLIDING if stated is None else bool(stated) for kind in layer_types)
