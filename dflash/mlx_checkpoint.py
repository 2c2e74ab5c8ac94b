"""Targets and drafts from their folders into MLX, quantised ones too; what would run wrongly is repaired or refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.utils import load_config, load_model

from dflash.draft_checkpoint import check_weights, read_config_json, weight_files
from dflash.draft_config import DRAFT_BITS, DraftConfig, parse_draft_config
from dflash.errors import DraftError, ModelError, UsageError, first_line
from dflash.mlx_draft import DFlashDraftModel

TARGET_PATTERNS = ("*.json", "*.safetensors*", "*.jinja", "*.txt", "tokenizer.model", "*.tiktoken")
GROUP_SIZES = (64, 32)  # weights that share a scale; the first that fits


def load_target(
    folder: Path, *, dtype: mx.Dtype | None = None, trust_remote_code: bool = False
) -> tuple[Any, dict[str, Any]]:
    """A target of mlx-lm and its config, with every id that ends an answer under `eos_token_id`.

    Some models of mlx-lm read the rope at the top of the config only, and take a default where transformers 5 wrote
    `rope_parameters`: it is put where they look, and what the model was made with is compared.

    Args:
        dtype: of the weights that are not quantised; default the checkpoint's.

    Raises:
        ModelError: it cannot be loaded, or would run with another rope than its config says.
    """
    mend = "name a folder with config.json and safetensors of a model that mlx-lm knows"
    try:
        config: dict[str, Any] = load_config(folder)
        model, _ = load_model(
            folder, model_config=rope_repair(config), lazy=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # what a wrong config makes of a model is up to the model
        raise ModelError(f"the target in {folder} cannot be loaded ({first_line(error)})", mend) from error
    check_rope(model, config)
    if dtype is not None:
        cast(model, dtype)
    mx.eval(model.parameters())
    return model, config


def stop_ids_of(config: Mapping[str, Any]) -> frozenset[int]:
    """Every stop id that a target's config names; mlx-lm puts those of `generation_config.json` there."""
    ids = config.get("eos_token_id")
    if ids is None:
        ids = _text_config(config).get("eos_token_id")
    return frozenset(ids if isinstance(ids, (list, tuple)) else () if ids is None else (ids,))


def rope_repair(config: Mapping[str, Any]) -> dict[str, Any]:
    """What to set in a target's config so that every model of mlx-lm finds the rope that it says."""
    text = _text_config(config)
    rope = _rope_parameters(text)
    if _is_by_layer_type(rope):
        return {}
    found = {key: rope.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    if (rope.get("rope_type") or rope.get("type") or "default") != "default":
        found["rope_scaling"] = dict(rope)
    changes = {key: value for key, value in found.items() if value is not None and text.get(key) is None}
    if not changes:
        return {}
    return {"text_config": {**text, **changes}} if "text_config" in config else changes


def check_rope(model: Any, config: Mapping[str, Any]) -> None:
    """Compare the rope that a model was made with to its config.

    Raises:
        ModelError: the config names no theta, or the model has another.
    """
    text = _text_config(config)
    said = _thetas(text)
    modules = [module for _, module in model.named_modules()]
    used = {float(module.base) for module in modules if isinstance(module, nn.RoPE)}
    thetas = [getattr(getattr(module, "args", None), "rope_theta", None) for module in modules]
    used |= {float(theta) for theta in thetas if theta is not None}
    if _is_hidden_by_layer_type(text) and not _reads_rope_parameters(modules):
        raise ModelError(
            f"mlx-lm does not read the rope_parameters of {config.get('model_type')}, which differ between its layers",
            "write them at the top of its config.json as mlx-lm reads them, and leave rope_parameters out",
        )
    if not used:
        return
    if not said:
        raise ModelError(
            "the target's config.json names no rope_theta", "add the rope_theta that it was trained with"
        )
    if not used <= said:
        raise ModelError(
            f"mlx-lm would run the target with rope_theta {min(used - said):g}, its config.json says "
            f"{', '.join(f'{theta:g}' for theta in sorted(said))}",
            "install another release of mlx-lm, or write rope_theta at the top of its config.json",
        )


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def _rope_parameters(text: Mapping[str, Any]) -> Mapping[str, Any]:
    rope = text.get("rope_parameters")
    return rope if isinstance(rope, Mapping) else {}


def _is_by_layer_type(rope: Mapping[str, Any]) -> bool:
    return bool(rope) and all(isinstance(value, Mapping) for value in rope.values())


def _is_hidden_by_layer_type(text: Mapping[str, Any]) -> bool:
    """Whether the rope of a config stands under the types of layers, and not at the top as well."""
    rope = _rope_parameters(text)
    if not _is_by_layer_type(rope):
        return False
    is_scaled = any((each.get("rope_type") or "default") != "default" for each in rope.values())
    return text.get("rope_theta") is None or (is_scaled and text.get("rope_scaling") is None)


def _reads_rope_parameters(modules: Sequence[Any]) -> bool:
    settings = [getattr(module, name, None) for module in modules for name in ("args", "config")]
    return any(hasattr(each, "rope_parameters") for each in settings)


def _thetas(text: Mapping[str, Any]) -> set[float]:
    rope = _rope_parameters(text)
    holders = [text, *(rope.values() if _is_by_layer_type(rope) else [rope])]
    names = ("rope_theta", "rope_local_base_freq")
    found = [holder[name] for holder in holders for name in names if holder.get(name) is not None]
    for theta in found:
        if isinstance(theta, bool) or not isinstance(theta, (int, float)):
            raise ModelError(
                f"rope_theta of the target's config.json is {theta!r}, not a number",
                "use an unedited checkpoint",
            )
    return {float(theta) for theta in found}


def load_draft_model(
    folder: Path, *, dtype: mx.Dtype | None = None, bits: int | None = None
) -> DFlashDraftModel:
    """A draft from its folder; safetensors only, no code of the checkpoint is run.

    Args:
        dtype: of the weights that are not quantised; default the checkpoint's.
        bits: quantise the linear layers to 4 or 8 bits a weight.

    Raises:
        DraftError: config or weights are not those of an implemented draft, or cannot be quantised so.
        UsageError: other bits, or a draft that is quantised already.
    """
    config, quantisation = read_quantised_config(folder, bits)
    draft = DFlashDraftModel(config)
    weights: dict[str, mx.array] = {}
    for file in weight_files(folder):
        try:
            weights.update(mx.load(str(file)))
        except (OSError, RuntimeError, ValueError) as error:
            raise DraftError(
                f"{file} cannot be read ({first_line(error)})", "fetch the draft again"
            ) from error
    if quantisation is not None:
        _make_quantised(draft, quantisation, weights)
    check_weights(_shapes(dict(tree_flatten(draft.parameters()))), _shapes(weights), folder)
    draft.load_weights(list(weights.items()))
    if dtype is not None:
        cast(draft, dtype)
    if bits is not None:
        nn.quantize(draft, group_size=_group_size(draft), bits=bits, class_predicate=_is_linear)
    draft.eval()
    mx.eval(draft.parameters())
    return draft


def read_quantised_config(
    folder: Path, bits: int | None = None
) -> tuple[DraftConfig, Mapping[str, Any] | None]:
    """A draft's config, and how MLX has quantised it (None: it has not).

    Args:
        bits: that it is to be quantised to.

    Raises:
        DraftError: the config is not that of an implemented draft, another kind of quantisation among it, or the draft
            cannot be quantised.
        UsageError: other bits, or a draft that is quantised already.
    """
    content = read_config_json(folder)
    quantisation = content.pop("quantization", None)
    if quantisation is not None:
        if content.get("quantization_config") in (None, quantisation):
            content.pop("quantization_config", None)  # mlx-lm writes the same under both names
        _check_quantisation(quantisation)
    config = parse_draft_config(content)
    if bits is not None:
        if bits not in DRAFT_BITS:
            raise UsageError(f"--draft-bits {bits} is not possible", "choose 4 or 8, or drop it")
        if quantisation is not None:
            raise UsageError(
                f"--draft-bits contradicts a draft that is quantised to {quantisation['bits']} bits already",
                "drop it",
            )
        _group_size(DFlashDraftModel(config))  # MLX makes no weights before they are looked at
    return config, quantisation


def _check_quantisation(quantisation: Any) -> None:
    values = quantisation if isinstance(quantisation, Mapping) else {}
    for name in ("group_size", "bits"):
        if type(values.get(name)) is not int or values[name] < 1:
            raise DraftError(
                f"quantization in the draft's config.json names no {name}", "use an unedited checkpoint"
            )


def _make_quantised(draft: Any, quantisation: Mapping[str, Any], weights: Mapping[str, mx.array]) -> None:
    """Put quantised layers where the checkpoint has them.

    Raises:
        DraftError: the group size does not divide a layer, or it is none that MLX knows; no layer is quantised.
    """
    group_size = quantisation["group_size"]
    if not any(name.endswith(".scales") for name in weights):
        raise DraftError(
            "the draft's config.json says that it is quantised, and no weight is",
            "use an unedited checkpoint",
        )

    def is_quantised(path: str, module: Any) -> bool:
        if f"{path}.scales" not in weights:
            return False
        width = module.weight.shape[-1]
        if width % group_size:
            raise DraftError(
                f"the draft is quantised in groups of {group_size}, and {path} has {width} inputs",
                "quantise it in groups that divide every layer, or use the draft that is not quantised",
            )
        return True

    try:
        nn.quantize(
            draft,
            group_size=group_size,
            bits=quantisation["bits"],
            mode=quantisation.get("mode", "affine"),
            class_predicate=is_quantised,
        )
    except (ValueError, TypeError) as error:
        raise DraftError(
            f"the draft's quantisation is not possible ({first_line(error)})", "use another checkpoint"
        ) from error


def _group_size(draft: Any) -> int:
    widths = {
        path: module.weight.shape[-1] for path, module in draft.named_modules() if _is_linear(path, module)
    }
    for group_size in GROUP_SIZES:
        if not any(width % group_size for width in widths.values()):
            return group_size
    path, width = next(item for item in widths.items() if item[1] % GROUP_SIZES[-1])
    raise DraftError(
        f"the draft cannot be quantised: {path} has {width} inputs, which groups of "
        f"{' or '.join(map(str, GROUP_SIZES))} do not divide",
        "drop --draft-bits",
    )


def _is_linear(path: str, module: Any) -> bool:
    return isinstance(module, nn.Linear)


def cast(model: Any, dtype: mx.Dtype) -> None:
    """Give the floating-point weights of a model another dtype, but those that it wants to keep."""
    is_cast = getattr(model, "cast_predicate", lambda path: True)

    def other(path: str, array: mx.array) -> mx.array:
        return array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) and is_cast(path) else array

    model.update(tree_map_with_path(other, model.parameters()))


def _shapes(weights: Mapping[str, mx.array]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in weights.items()}


def num_bytes(model: Any) -> int:
    """Bytes of all parameters."""
    return sum(array.nbytes for _, array in tree_flatten(model.parameters()))
