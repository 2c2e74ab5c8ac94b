"""Inverse frequencies of a draft's rotary embedding, in NumPy, for engines without rules of their own.

The formulas are those of transformers (`modeling_rope_utils`), to which the tests compare them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dflash.draft_config import DraftConfig
from dflash.errors import DraftError

if TYPE_CHECKING:
    import numpy as np


def inverse_frequencies(config: DraftConfig) -> tuple[np.ndarray, float]:
    """Inverse frequencies `[head dim / 2]` (float32) and the factor that cosines and sines are scaled by.

    Raises:
        DraftError: a scaled kind lacks one of its parameters.
    """
    import numpy as np

    exponents = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    plain = config.rope_theta**-exponents
    rope = config.rope_parameters
    kind, scaling = rope["rope_type"], 1.0
    if kind == "linear":
        plain = plain / _parameter(rope, "factor")
    elif kind == "llama3":
        plain = _llama3(plain, rope)
    elif kind == "yarn":
        plain, scaling = _yarn(plain, config)
    return plain.astype(np.float32), scaling


def _parameter(rope: Mapping[str, Any], key: str) -> float:
    if rope.get(key) is None:
        raise DraftError(
            f"the draft's rope of type {rope['rope_type']} has no {key}", "use an unedited checkpoint"
        )
    return float(rope[key])


def _llama3(plain: np.ndarray, rope: Mapping[str, Any]) -> np.ndarray:
    """Long wavelengths are divided by the factor, short ones kept, and those between are blended."""
    import numpy as np

    factor = _parameter(rope, "factor")
    low, high = _parameter(rope, "low_freq_factor"), _parameter(rope, "high_freq_factor")
    turns = _parameter(rope, "original_max_position_embeddings") * plain / (2 * math.pi)  # in the old context
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    blended: np.ndarray = kept * plain + (1.0 - kept) * plain / factor
    return blended


def _yarn(plain: np.ndarray, config: DraftConfig) -> tuple[np.ndarray, float]:
    """YaRN (arXiv 2309.00071): the same by the number of turns, as a ramp over dimensions, and a scaled attention."""
    import numpy as np

    rope = config.rope_parameters
    old_context = float(rope.get("original_max_position_embeddings") or config.max_position_embeddings)
    factor = float(rope.get("factor") or config.max_position_embeddings / old_context)

    def dimension_of(num_turns: float) -> float:
        turns_of_first = old_context / (num_turns * 2 * math.pi)
        return config.head_dim * math.log(turns_of_first) / (2 * math.log(config.rope_theta))

    low = dimension_of(float(rope.get("beta_fast") or 32))
    high = dimension_of(float(rope.get("beta_slow") or 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    ramp = np.clip((np.arange(len(plain)) - low) / (high - low if high != low else 0.001), 0.0, 1.0)
    return plain * (1.0 - ramp) + plain / factor * ramp, _yarn_scaling(rope, factor)


def _yarn_scaling(rope: Mapping[str, Any], factor: float) -> float:
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])

    def scale(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return scale(float(rope["mscale"])) / scale(float(rope["mscale_all_dim"]))
    return scale(1.0)
