"""A target as the loops see it: its blocks, embedding and head, found by structure and not by a name pattern."""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dflash.draft_config import FULL, SLIDING
from dflash.errors import ModelError
from dflash.rollback_cache import RollbackCache


class Target:
    """A causal language model of transformers, seen from outside; nothing in it is changed.

    Raises:
        ModelError: its blocks, embedding or head cannot be found, or its cache cannot be rolled back.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config = model.config.get_text_config()
        self.layers = find_layers(model, int(self.config.num_hidden_layers))
        self.embedding = _module(model.get_input_embeddings(), "input embedding")
        self.head = _module(model.get_output_embeddings(), "LM head")
        self.device: torch.device = self.embedding.weight.device
        self.dtype: torch.dtype = self.embedding.weight.dtype
        _refuse_recurrent_layers(self.config)
        # The cache argument of forward() was renamed within transformers 5.
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        return int(self.embedding.weight.shape[0])

    def new_cache(self, capacity: int) -> RollbackCache:
        return RollbackCache(len(self.layers), capacity)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Rows of the embedding `[n, hidden]` for a draft, as they are stored.

        Gemma's module multiplies what it looks up; what a draft was trained with is in its own config
        (`input_embedding_scale`).
        """
        return functional.embedding(token_ids, self.embedding.weight)

    def forward(
        self, input_ids: torch.Tensor, cache: RollbackCache, *, num_logits: int = 0, has_tap: bool = False
    ) -> torch.Tensor:
        """Logits `[n or num_logits, vocabulary]` of the next tokens after `input_ids` `[1, n]`; the cache grows by n.

        Args:
            num_logits: only of the last so many positions; 0: of all.
            has_tap: features of all positions are read. Gemma 4 takes a plain number as leave to compute its last
                blocks for those positions only, and the positions themselves as none.
        """
        num_given = input_ids.shape[-1]
        kept: int | torch.Tensor = num_logits
        if num_logits and has_tap:
            kept = torch.arange(num_given - num_logits, num_given, device=input_ids.device)
        output = self.model(
            input_ids=input_ids, use_cache=True, logits_to_keep=kept, **{self._cache_argument: cache}
        )
        logits: torch.Tensor = output.logits[0]
        return logits


def find_layers(model: nn.Module, num_layers: int) -> nn.ModuleList:
    """The decoder blocks: the one list called `layers` that has as many entries as the config says.

    Raises:
        ModelError: there is none, or more than one (an encoder beside a decoder of equal depth).
    """
    get_decoder: Any = getattr(model, "get_decoder", None)
    decoder: nn.Module = model if get_decoder is None else get_decoder()
    for root in (decoder, model):
        found = [
            module
            for name, module in root.named_modules()
            if isinstance(module, nn.ModuleList)
            and name.split(".")[-1] == "layers"
            and len(module) == num_layers
        ]
        if len(found) == 1:
            return found[0]
    raise ModelError(
        f"{type(model).__name__} has no single list of {num_layers} decoder blocks",
        "use a decoder-only text model",
    )


def _module(module: Any, what: str) -> Any:
    if module is None or not hasattr(module, "weight"):
        raise ModelError(
            f"the {what} of the target cannot be found", "use a causal language model of transformers"
        )
    return module


def _refuse_recurrent_layers(config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ()) - {FULL, SLIDING}
    if kinds:
        raise ModelError(
            f"the target has layers of kind {', '.join(sorted(kinds))}, whose state cannot be rolled back here",
            "use a target with attention layers only",
        )


class FeatureTap:
    """Reads the residual stream after selected blocks while it is open; the hooks are gone afterwards, also on error.

    Hooks cost nothing on the other blocks, where `output_hidden_states` would keep every one.
    """

    def __init__(self, target: Target, layer_ids: Sequence[int]) -> None:
        self._layers = [target.layers[layer_id] for layer_id in layer_ids]
        self._captured: list[torch.Tensor | None] = [None] * len(layer_ids)
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> FeatureTap:
        for slot, layer in enumerate(self._layers):
            self._handles.append(layer.register_forward_hook(self._hook(slot)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._captured = [None] * len(self._captured)

    def _hook(self, slot: int) -> Any:
        def capture(module: nn.Module, inputs: Any, output: Any) -> None:
            self._captured[slot] = output[0] if isinstance(output, tuple) else output

        return capture

    def features(self, num_positions: int) -> torch.Tensor:
        """Features `[1, num_positions, layer ids * hidden]` of the first positions of the last forward."""
        parts = [hidden[:, :num_positions] for hidden in self._captured if hidden is not None]
        if len(parts) != len(self._captured):
            raise ModelError(
                "the target's forward did not pass the blocks that the draft reads", "use another target"
            )
        if any(part.dim() != 3 or part.shape[1] != num_positions for part in parts):
            raise ModelError(
                "the target's blocks give no hidden state for each position", "use another target"
            )
        return torch.cat(parts, dim=-1)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep progress bars and load reports off the terminal, and leave the settings as they were."""
    import transformers.utils.logging

    logging: Any = transformers.utils.logging

    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        # The bar of the GGUF reader heeds no setting.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
