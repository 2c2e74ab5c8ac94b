"""The DFlash draft in torch, and the public names that users know.

A draft writes a whole block in one forward pass: the known anchor token and B-1 mask tokens go in, non-causal inside
the block, and slot k (k = 1 .. B-1) proposes the token k places after the anchor. What it knows of the text are
features of the target: the residual stream after selected blocks, through `fc` and `hidden_norm`, becomes context of
the keys and values of every draft layer. Embedding and LM head are the target's (arXiv 2602.06036).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from dflash.decoded import Decoded
from dflash.decoding import dflash_generate, plain_generate
from dflash.draft_checkpoint import check_weights, find_checkpoint, read_draft_config, weight_files
from dflash.draft_config import DraftConfig, build_target_layer_ids
from dflash.draft_layers import DraftLayer, RMSNorm, RotaryEmbedding
from dflash.errors import DraftError
from dflash.rollback_cache import DraftCache

__all__ = [
    "DFlashDraftModel",
    "Decoded",
    "build_target_layer_ids",
    "dflash_generate",
    "extract_context_feature",
    "plain_generate",
]


class DFlashDraftModel(nn.Module):
    """A block-diffusion draft; see the module."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        feature_size = len(config.target_layer_ids) * config.target_hidden_size
        self.fc = nn.Linear(feature_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)

    @property
    def block_size(self) -> int:
        """The block that the draft was trained for."""
        return self.config.block_size

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.config.target_layer_ids

    def new_cache(self, capacity: int) -> DraftCache:
        """An empty cache for one request of at most `capacity` positions, the block included."""
        return DraftCache(self.config.num_hidden_layers, capacity)

    def forward(self, block: torch.Tensor, features: torch.Tensor, cache: DraftCache) -> torch.Tensor:
        """Hidden states of a block, ready for the target's LM head.

        Args:
            block: embeddings of the anchor and the mask tokens `[1, B, hidden]`.
            features: of the n positions that were committed since the last call `[1, n, layer ids * target hidden]`;
                the anchor, whose feature is not known yet, follows them.
            cache: holds what was committed before, and holds the n positions afterwards.

        Returns:
            `[1, B, hidden]`, after the final norm and the output multiplier.
        """
        num_context = features.shape[1]
        context = self.hidden_norm(self.fc(features))  # [1, n, hidden]: fc before norm
        end = cache.length + num_context + block.shape[1]
        rotation = self.rotary_emb(cache.length, end, block.dtype)
        hidden = block * self.config.input_embedding_scale
        for layer in self.layers:
            hidden = layer(hidden, context, rotation, cache)
        cache.commit(num_context)
        return self.norm(hidden) * self.config.output_multiplier

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        revision: str | None = None,
    ) -> DFlashDraftModel:
        """Load a draft from a folder or a hub id; safetensors only, no code of the checkpoint is run.

        Raises:
            ModelError: there is no such folder or id.
            DraftError: the config or the weights are not those of an implemented draft.
        """
        folder = find_checkpoint(path, revision)
        draft = cls(read_draft_config(folder))
        _load_weights(draft, folder)
        return draft.to(device=device, dtype=dtype).eval()


def extract_context_feature(hidden_states: Sequence[torch.Tensor], layer_ids: Sequence[int]) -> torch.Tensor:
    """Features `[batch, n, layer ids * hidden]` from the `hidden_states` of a transformers model.

    Entry 0 there is the embedding, so the residual stream after block `id` is entry `id + 1`. The last entry is
    normalised and no residual stream: it is refused.

    Raises:
        ValueError: an id of the last block, or outside the model.
    """
    for layer_id in layer_ids:
        if not 0 <= layer_id < len(hidden_states) - 2:
            raise ValueError(
                f"block {layer_id} cannot be read of a target with {len(hidden_states) - 1} blocks"
            )
    return torch.cat([hidden_states[layer_id + 1] for layer_id in layer_ids], dim=-1)


def _load_weights(draft: DFlashDraftModel, folder: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights: dict[str, torch.Tensor] = {}
    for file in weight_files(folder):
        try:
            weights.update(load_file(file))
        except (OSError, SafetensorError) as error:
            raise DraftError(f"{file} cannot be read ({error})", "fetch the draft again") from error
    check_weights(_shapes(draft.state_dict()), _shapes(weights), folder)
    draft.load_state_dict(weights, assign=True)


def _shapes(weights: dict[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in weights.items()}
