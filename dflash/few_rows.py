"""Products and attention for forwards of a few rows, where the usual kernels were made for one row or for many.

A verify forward has B rows. On a CPU, `F.linear` in float32 takes a slow path between about 2 and 32 rows: its cost
jumps to two or three times that of one row, while the same product with the weight on the left stays near the cost of
reading the weight once (`benchmarks/few_row_products.py` prints both). Attention with a mask makes transformers copy
every key and value for every query head; here the query heads are grouped instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from dflash.draft_layers import grouped_attention

MIN_ROWS, MAX_ROWS = 2, 32
ATTENTION_NAME = "grouped_heads_sdpa"  # a name with "flash" in it would be taken for a kernel of the hub


class FewRowLinear(nn.Linear):
    """`nn.Linear` that puts the weight on the left where the input has few rows; one row and many stay as they are."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs `[..., in features]` -> `[..., out features]`."""
        num_rows = inputs.numel() // self.in_features
        if not MIN_ROWS <= num_rows <= MAX_ROWS:
            return F.linear(inputs, self.weight, self.bias)
        rows = inputs.reshape(num_rows, self.in_features)
        product = torch.mm(self.weight, rows.t()).t().contiguous()  # [rows, out features]
        if self.bias is not None:
            product += self.bias
        return product.view(*inputs.shape[:-1], self.out_features)


def use_few_row_products(model: nn.Module) -> int:
    """Make every plain float32 linear layer on the CPU a `FewRowLinear`, in place; how many were changed.

    Weights, names and hooks stay as they are.
    """
    num_changed = 0
    for module in model.modules():
        # Only the plain class: a subclass (quantised, adapted) computes something of its own.
        if (
            type(module) is nn.Linear
            and module.weight.device.type == "cpu"
            and module.weight.dtype == torch.float32
        ):
            module.__class__ = FewRowLinear
            num_changed += 1
    return num_changed


def use_grouped_attention(model: Any) -> bool:
    """Let a target that attends by transformers' `sdpa` use grouped query heads; whether that was changed."""
    if getattr(model.config, "_attn_implementation", None) != "sdpa":
        return False
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    def attend(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        if attention_mask is None or query.shape[2] > MAX_ROWS or dropout or key.shape[1] == query.shape[1]:
            return sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
            )
        attended = grouped_attention(query, key, value, attention_mask, scaling)
        return attended.transpose(1, 2).contiguous(), None

    AttentionInterface.register(ATTENTION_NAME, attend)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    model.set_attn_implementation(ATTENTION_NAME)
    return True
