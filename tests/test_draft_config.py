"""The reader of a draft's config.json: published forms are accepted, everything unknown is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dflash.draft_config import (
    FULL,
    SLIDING,
    DraftConfig,
    build_target_layer_ids,
    check_block_size,
    check_target,
    parse_draft_config,
)
from dflash.errors import DraftError

QWEN3_4B: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "attention_bias": False,
    "block_size": 16,
    "bos_token_id": 151643,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "layer_types": [FULL] * 5,
    "max_position_embeddings": 40960,
    "max_window_layers": 5,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 36,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def changed(nested: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The Qwen3-4B config with other keys; a key set to `...` is left out."""
    content = {**QWEN3_4B, **changes}
    content["dflash_config"] = {**QWEN3_4B["dflash_config"], **(nested or {})}
    for mapping in (content, content["dflash_config"]):
        for key in [key for key, value in mapping.items() if value is ...]:
            del mapping[key]
    return content


def parsed(nested: dict[str, Any] | None = None, **changes: Any) -> DraftConfig:
    return parse_draft_config(changed(nested, **changes))


@pytest.mark.parametrize(
    ("num_target_layers", "num_draft_layers", "wanted"),
    [
        (36, 5, [1, 9, 17, 25, 33]),
        (32, 5, [1, 8, 15, 22, 29]),
        (40, 5, [1, 10, 19, 28, 37]),
        (24, 5, [1, 6, 11, 16, 21]),
        (64, 5, [1, 16, 31, 46, 61]),
        (40, 8, [1, 6, 11, 16, 22, 27, 32, 37]),
        (36, 1, [18]),
        (5, 2, [1, 2]),
    ],
)
def test_layer_ids_are_the_published_ones(
    num_target_layers: int, num_draft_layers: int, wanted: list[int]
) -> None:
    assert build_target_layer_ids(num_target_layers, num_draft_layers) == wanted


@pytest.mark.parametrize(
    ("num_target_layers", "num_draft_layers", "message"),
    [
        (3, 1, "too shallow"),
        (0, 1, "too shallow"),
        (4, 2, "read a block twice"),
        (7, 5, "read a block twice"),
        (36, 0, "at least 1"),
    ],
)
def test_layer_ids_that_would_repeat_are_refused(
    num_target_layers: int, num_draft_layers: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build_target_layer_ids(num_target_layers, num_draft_layers)


def test_every_size_and_depth_gives_blocks_that_can_be_read_or_a_refusal() -> None:
    for num_target_layers in range(4, 81):
        for num_draft_layers in range(1, 10):
            try:
                ids = build_target_layer_ids(num_target_layers, num_draft_layers)
            except ValueError:
                assert num_draft_layers > num_target_layers - 3
                continue
            assert ids == sorted(set(ids))
            assert 0 <= ids[0] <= ids[-1] < num_target_layers - 1


def test_the_first_published_draft_is_read() -> None:
    config = parse_draft_config(QWEN3_4B)
    assert (config.block_size, config.mask_token_id) == (16, 151669)
    assert config.target_layer_ids == (1, 9, 17, 25, 33)
    assert (config.hidden_size, config.target_hidden_size) == (2560, 2560)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (32, 8, 128)
    assert (config.rope_theta, config.rope_parameters["rope_type"]) == (1e6, "default")
    assert (config.layer_types, config.sliding_window) == ((FULL,) * 5, None)
    assert config.layer_is_causal == (False,) * 5
    assert not config.attention_bias
    assert (config.output_multiplier, config.final_logit_softcapping) == (1.0, None)


@pytest.mark.parametrize("block_size", [8, 10, 16])
def test_block_mask_and_layers_stand_at_the_top_or_nested(block_size: int) -> None:
    top = parsed(
        {"mask_token_id": ..., "target_layer_ids": ...},
        block_size=block_size,
        mask_token_id=151669,
        target_layer_ids=[1, 9, 17, 25, 33],
    )
    nested = parsed({"block_size": block_size}, block_size=...)
    both = parsed({"block_size": block_size}, block_size=block_size)
    assert top == nested == both
    assert top.block_size == block_size


@pytest.mark.parametrize(
    ("nested", "changes", "name"),
    [
        ({"block_size": 8}, {}, "block_size"),
        ({}, {"mask_token_id": 5}, "mask_token_id"),
        ({}, {"target_layer_ids": [1, 2]}, "target_layer_ids"),
        ({"num_target_layers": 32}, {}, "num_target_layers"),
        ({"output_multiplier": 0.5}, {"output_multiplier": 0.25}, "output_multiplier"),
    ],
)
def test_contradictions_are_refused(nested: dict[str, Any], changes: dict[str, Any], name: str) -> None:
    with pytest.raises(DraftError, match=f"^{name} is .* at the top .* in dflash_config: make them agree"):
        parsed(nested, **changes)


@pytest.mark.parametrize(
    ("nested", "changes", "name"),
    [
        ({}, {"block_size": ...}, "block_size"),
        ({"mask_token_id": ...}, {}, "mask_token_id"),
        ({}, {"rope_theta": ...}, "rope_theta"),
        ({}, {"hidden_size": ...}, "hidden_size"),
        ({}, {"num_hidden_layers": ..., "layer_types": ...}, "num_hidden_layers"),
        ({}, {"num_attention_heads": ...}, "num_attention_heads"),
        ({}, {"intermediate_size": ...}, "intermediate_size"),
        ({}, {"vocab_size": ...}, "vocab_size"),
        ({}, {"rms_norm_eps": ...}, "rms_norm_eps"),
        ({}, {"max_position_embeddings": ...}, "max_position_embeddings"),
        ({"target_layer_ids": ...}, {"num_target_layers": ...}, "num_target_layers"),
    ],
)
def test_nothing_that_decides_the_output_has_a_default(
    nested: dict[str, Any], changes: dict[str, Any], name: str
) -> None:
    with pytest.raises(DraftError, match=f"has no {name}: add"):
        parsed(nested, **changes)


def test_layer_ids_follow_from_the_targets_depth_where_none_are_given() -> None:
    assert parsed({"target_layer_ids": ...}).target_layer_ids == (1, 9, 17, 25, 33)
    assert parsed(
        {"target_layer_ids": ..., "num_target_layers": 32}, num_target_layers=...
    ).target_layer_ids == (
        1,
        8,
        15,
        22,
        29,
    )
    # With ids given the depth may be missing.
    assert parsed(num_target_layers=...).num_target_layers is None
    with pytest.raises(DraftError, match="read a block twice"):
        parsed({"target_layer_ids": ...}, num_target_layers=6)


@pytest.mark.parametrize("ids", [[], "1,9", 9, [1, 1], [1, -9], [1, 9.0], [True, 9]])
def test_odd_layer_ids_are_refused(ids: Any) -> None:
    with pytest.raises(DraftError, match="target_layer_ids"):
        parsed({"target_layer_ids": ids})


@pytest.mark.parametrize("mask", [True, -1, 1.5, "<|MASK|>"])
def test_odd_mask_ids_are_refused(mask: Any) -> None:
    with pytest.raises(DraftError, match="mask_token_id of the draft is"):
        parsed({"mask_token_id": mask})


@pytest.mark.parametrize(
    "changes",
    [
        {"pad_token_id": 151669},
        {"eos_token_id": 151669},
        {"eos_token_id": [151645, 151669]},
        {"pad_token_id": 151669, "eos_token_id": 151669},
    ],
)
def test_a_mask_that_is_pad_or_stop_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DraftError, match="mask_token_id 151669 is also the pad or stop token"):
        parsed(**changes)


def test_mask_id_zero_is_an_id() -> None:
    assert parsed({"mask_token_id": 0}).mask_token_id == 0


@pytest.mark.parametrize("block_size", [0, 1, -4, True, 16.0, "16"])
def test_odd_block_sizes_are_refused(block_size: Any) -> None:
    with pytest.raises(DraftError, match="block_size"):
        parsed(block_size=block_size)


YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("changes", "theta", "rope_type"),
    [
        ({"rope_theta": 1e7}, 1e7, "default"),
        ({"rope_theta": ..., "rope_parameters": {"rope_theta": 1e7, "rope_type": "default"}}, 1e7, "default"),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e7, "rope_type": "default"}}, 5e5, "default"),
        ({"rope_theta": ..., "rope_scaling": {**YARN, "rope_theta": 150000}}, 150000, "yarn"),
        ({"rope_theta": 150000, "rope_scaling": YARN}, 150000, "yarn"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 1e6, "linear"),
    ],
)
def test_rope_is_read_wherever_it_stands(changes: dict[str, Any], theta: float, rope_type: str) -> None:
    config = parsed(**changes)
    assert config.rope_theta == config.rope_parameters["rope_theta"] == theta
    assert config.rope_parameters["rope_type"] == rope_type
    if rope_type == "yarn":
        assert config.rope_parameters["factor"] == 32.0
        assert config.rope_parameters["original_max_position_embeddings"] == 4096


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "mrope"}}, "rope type 'mrope'"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
        ({"is_neox_style": False}, "neox"),
        ({"rope_is_neox_style": False}, "neox"),
    ],
)
def test_other_rope_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DraftError, match=message):
        parsed(**changes)


MIXED = [SLIDING] * 4 + [FULL]


@pytest.mark.parametrize(
    ("nested", "changes", "types", "window", "causal"),
    [
        ({}, {"layer_types": ...}, [FULL] * 5, None, [False] * 5),
        ({}, {"layer_types": MIXED, "sliding_window": 2048}, MIXED, 2048, [True] * 4 + [False]),
        ({}, {"layer_types": MIXED, "sliding_window": 2048, "is_causal": False}, MIXED, 2048, [False] * 5),
        ({"causal": True}, {}, [FULL] * 5, None, [True] * 5),
        ({"causal": True}, {"is_causal": False}, [FULL] * 5, None, [False] * 5),
        ({}, {"sliding_window": 2048}, [FULL] * 5, None, [False] * 5),
        (
            {},
            {"layer_types": ..., "use_sliding_window": True, "max_window_layers": 2, "sliding_window": 64},
            [FULL] * 2 + [SLIDING] * 3,
            64,
            [False] * 2 + [True] * 3,
        ),
        (
            {"use_swa": True, "swa_window_size": 128},
            {"layer_types": ...},
            [SLIDING] * 5,
            128,
            [True] * 5,
        ),
    ],
)
def test_windows_and_causality_are_read_per_layer(
    nested: dict[str, Any], changes: dict[str, Any], types: list[str], window: int | None, causal: list[bool]
) -> None:
    config = parsed(nested, **changes)
    assert config.layer_types == tuple(types)
    assert config.sliding_window == window
    assert config.layer_is_causal == tuple(causal)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": [FULL] * 4}, "do not describe 5 layers"),
        ({"layer_types": [FULL] * 4 + ["linear_attention"]}, "linear_attention"),
        ({"layer_types": MIXED}, "no sliding_window"),
        ({"layer_types": MIXED, "sliding_window": 0}, "no sliding_window"),
    ],
)
def test_odd_layer_types_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DraftError, match=message):
        parsed(**changes)


def test_a_gpt_oss_draft_is_read() -> None:
    config = parsed(
        {"mask_token_id": 200000, "target_layer_ids": [1, 6, 11, 16, 21]},
        model_type="gpt_oss",
        attention_bias=True,
        block_size=8,
        head_dim=64,
        hidden_size=2880,
        num_attention_heads=64,
        num_hidden_layers=8,
        layer_types=[FULL] * 8,
        num_target_layers=24,
        rope_theta=150000,
        rope_scaling=YARN,
        vocab_size=201088,
        eos_token_id=200002,
    )
    assert config.attention_bias
    assert (config.block_size, config.head_dim, config.num_hidden_layers) == (8, 64, 8)
    assert config.target_layer_ids == (1, 6, 11, 16, 21)  # fewer ids than layers


def test_shapes_and_scales_of_other_drafts_are_read() -> None:
    assert parsed(head_dim=...).head_dim == 2560 // 32
    assert parsed(num_key_value_heads=...).num_key_value_heads == 32
    assert parsed(target_hidden_size=5120).target_hidden_size == 5120
    scaled = parsed({"output_multiplier": 0.1961}, final_logit_softcapping=20, input_embedding_scale=50.6)
    assert (scaled.output_multiplier, scaled.final_logit_softcapping) == (0.1961, 20.0)
    assert scaled.input_embedding_scale == 50.6
    # No architectures key, but a dflash_config: read by its content.
    assert parsed(architectures=...) == parse_draft_config(QWEN3_4B)


@pytest.mark.parametrize(
    "architecture",
    [
        "DFlash2DraftModel",
        "DSparkDraftModel",
        "Qwen3DSparkModel",
        "DominoDraftModel",
        "DFlashSpeculator",
        "Qwen3DFlash2Model",
        "DFlashLagunaForCausalLM",
        "Qwen3ForCausalLM",
    ],
)
def test_other_architectures_are_refused(architecture: str) -> None:
    with pytest.raises(DraftError, match=f"draft architecture {architecture} is not implemented"):
        parsed(architectures=[architecture])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quantization_config", {"quant_method": "awq"}),
        ("draft_vocab_size", 32000),
        ("projector_type", "domino"),
        ("markov_rank", 16),
        ("attention_mode", "mla"),
        ("conv_kernel_size", 2),
        ("selector_rank", 256),
        ("attention_sink_bias", True),
        ("attention_value_scale", 0.7),
        ("sample_from_anchor", True),
        ("has_lm_head", True),
        ("has_embed_tokens", True),
    ],
)
def test_what_is_not_built_is_refused_wherever_it_stands(key: str, value: Any) -> None:
    for content in (changed(**{key: value}), changed({key: value})):
        with pytest.raises(DraftError, match=rf"\({key}\), which is not implemented"):
            parse_draft_config(content)


@pytest.mark.parametrize("key", ["markov_rank", "sample_from_anchor", "quantization_config", "has_lm_head"])
def test_features_that_are_switched_off_are_no_obstacle(key: str) -> None:
    value = {"markov_rank": 0, "quantization_config": None}.get(key, False)
    assert parsed({key: value}) == parse_draft_config(QWEN3_4B)


def test_configs_that_are_no_draft_are_refused() -> None:
    speculators = {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "block_size": 8,
        "aux_hidden_state_layer_ids": [2, 10, 18],
        "draft_vocab_size": 32000,
        "transformer_layer_config": {"hidden_size": 2560},
    }
    with pytest.raises(DraftError, match="DFlashSpeculator"):
        parse_draft_config(speculators)
    del speculators["architectures"]
    for content in (speculators, {}, changed(architectures=...) | {"dflash_config": None}):
        with pytest.raises(DraftError, match="is this a DFlash draft"):
            parse_draft_config(content)
    with pytest.raises(DraftError, match="not an object"):
        parse_draft_config(QWEN3_4B | {"dflash_config": [1]})


SHAPE = {"hidden_size": 2560, "vocab_size": 151936, "num_layers": 36}


@pytest.mark.parametrize(
    ("config_changes", "shape_changes", "message"),
    [
        ({}, {"hidden_size": 4096}, "features of width 2560, Qwen3-8B has hidden size 4096"),
        ({"hidden_size": 1024}, {}, "the draft has hidden size 1024, .* has 2560"),
        ({}, {"vocab_size": 128256}, "vocabulary of 151936 tokens, Qwen3-8B has 128256"),
        ({}, {"num_layers": 32}, "a target of 36 blocks, Qwen3-8B has 32"),
        ({"num_target_layers": None}, {"num_layers": 34}, "block 33, and of 34 only 0 to 32"),
        ({"num_target_layers": None}, {"num_layers": 20}, "block 25, and of 20 only 0 to 18"),
        ({"mask_token_id": 151936}, {}, "mask token id 151936 is outside the vocabulary of 151936"),
    ],
)
def test_a_draft_for_another_target_is_refused(
    config_changes: dict[str, Any], shape_changes: dict[str, int], message: str
) -> None:
    config = replace(parse_draft_config(QWEN3_4B), **config_changes)
    with pytest.raises(DraftError, match=message):
        check_target(config, **{**SHAPE, **shape_changes}, target="Qwen3-8B")


def test_the_right_target_passes() -> None:
    config = parse_draft_config(QWEN3_4B)
    check_target(config, **SHAPE)
    check_target(replace(config, num_target_layers=None, mask_token_id=151935), **{**SHAPE, "num_layers": 35})


def test_blocks_from_two_to_the_trained_size_pass_and_larger_ones_only_by_force() -> None:
    config = parse_draft_config(QWEN3_4B)
    for block_size in range(2, 17):
        check_block_size(config, block_size)
    for block_size in (-1, 0, 1):
        for force in (False, True):
            with pytest.raises(DraftError, match=f"block size {block_size} drafts nothing"):
                check_block_size(config, block_size, force=force)
    with pytest.raises(DraftError, match=r"block size 17 is above 16, .* --force-block-size"):
        check_block_size(config, 17)
    check_block_size(config, 17, force=True)


@pytest.mark.parametrize(
    "change",
    [
        {"dflash_config": {"use_swa": True, "swa_window_size": 8}, "layer_types": [FULL]},
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": None, "layer_types": None},
    ],
)
def test_a_window_that_no_layer_would_use_is_refused(change: dict[str, Any]) -> None:
    nested = {**QWEN3_4B["dflash_config"], **change.get("dflash_config", {})}
    kinds = change["layer_types"] and [FULL] * QWEN3_4B["num_hidden_layers"]
    with pytest.raises(DraftError, match="sliding"):
        parse_draft_config({**QWEN3_4B, **change, "layer_types": kinds, "dflash_config": nested})
