"""Products and attention for few rows give what the usual kernels give; nothing else is touched."""

from __future__ import annotations

import pytest
import torch
from loops.tiny_models import PROMPT_LENGTH, VOCABULARY, tiny_target
from torch import nn
from torch.nn import functional

from dflash import few_rows
from dflash.few_rows import (
    ATTENTION_NAME,
    MAX_ROWS,
    FewRowLinear,
    use_few_row_products,
    use_grouped_attention,
)
from dflash.target import Target

TOLERANCE = 1e-5


def few_row_linear(bias: bool) -> nn.Linear:
    torch.manual_seed(0)
    holder = nn.Sequential(nn.Linear(24, 40, bias=bias))
    assert use_few_row_products(holder) == 1
    assert type(holder[0]) is FewRowLinear
    return holder[0]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_rows", range(1, 41))
def test_product_equals_the_usual_one(num_rows: int, bias: bool) -> None:
    linear = few_row_linear(bias)
    rows = torch.randn(num_rows, 24, generator=torch.Generator().manual_seed(num_rows))
    expected = functional.linear(rows, linear.weight, linear.bias)
    torch.testing.assert_close(linear(rows), expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(
    "shape", [(24,), (1, 5, 24), (2, 3, 24), (1, 1, 1, 24), (2, 2, 2, 24), (0, 24), (1, 0, 24)]
)
def test_product_keeps_any_leading_shape(shape: tuple[int, ...]) -> None:
    linear = few_row_linear(bias=True)
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    expected = functional.linear(inputs, linear.weight, linear.bias)
    given = linear(inputs)
    assert given.shape == expected.shape
    assert given.is_contiguous()
    torch.testing.assert_close(given, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_product_takes_rows_that_are_not_contiguous() -> None:
    linear = few_row_linear(bias=True)
    inputs = torch.randn(24, 6, generator=torch.Generator().manual_seed(2)).t()[None]  # [1, 6, 24]
    expected = functional.linear(inputs, linear.weight, linear.bias)
    torch.testing.assert_close(linear(inputs), expected, rtol=TOLERANCE, atol=TOLERANCE)


class AdaptedLinear(nn.Linear):
    """Stands for a quantised or adapted layer."""


def test_only_plain_float32_layers_on_the_cpu_change() -> None:
    adapted, half = AdaptedLinear(4, 4), nn.Linear(4, 4, dtype=torch.bfloat16)
    elsewhere, plain = nn.Linear(4, 4, device="meta"), nn.Linear(4, 4)
    model = nn.ModuleDict(
        {
            "adapted": adapted,
            "bfloat16_layer": half,
            "elsewhere": elsewhere,
            "norm": nn.LayerNorm(4),
            "plain": plain,
        }
    )
    weight, names = plain.weight, list(model.state_dict())
    assert use_few_row_products(model) == 1
    assert type(plain) is FewRowLinear
    assert plain.weight is weight
    assert list(model.state_dict()) == names
    assert [type(adapted), type(half), type(elsewhere)] == [AdaptedLinear, nn.Linear, nn.Linear]
    assert use_few_row_products(model) == 0, "a second call finds nothing left to change"


@torch.inference_mode()
def prefill_and_verify(model: object, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a prefill of `PROMPT_LENGTH` and of a verify forward of `block` rows on its cache."""
    target = Target(model)
    ids = torch.randint(3, VOCABULARY, (1, PROMPT_LENGTH + block), generator=torch.Generator().manual_seed(3))
    cache = target.new_cache(64)
    prefill = target.forward(ids[:, :PROMPT_LENGTH], cache).clone()
    return prefill, target.forward(ids[:, PROMPT_LENGTH:], cache).clone()


@pytest.mark.parametrize("block", [1, 2, 5, 16, MAX_ROWS + 1])
def test_grouped_attention_equals_sdpa(block: int) -> None:
    model = tiny_target("llama")  # 4 query heads on 2 key/value heads
    assert model.config._attn_implementation == "sdpa"
    expected_prefill, expected = prefill_and_verify(model, block)
    assert use_grouped_attention(model)
    assert model.config._attn_implementation == ATTENTION_NAME
    prefill, verify = prefill_and_verify(model, block)
    torch.testing.assert_close(verify, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert torch.equal(prefill, expected_prefill), "a prefill without a cached prefix goes the usual way"


def test_verify_forwards_really_take_the_grouped_path(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def counted(queries: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(queries.shape[2])
        return original(queries, *rest)

    original = few_rows.grouped_attention
    monkeypatch.setattr(few_rows, "grouped_attention", counted)
    model = tiny_target("llama")
    use_grouped_attention(model)
    prefill_and_verify(model, 5)
    assert seen
    assert 5 in seen


def test_other_attention_stays() -> None:
    model = tiny_target("llama")
    model.set_attn_implementation("eager")
    assert not use_grouped_attention(model)
    assert model.config._attn_implementation == "eager"
