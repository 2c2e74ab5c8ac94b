"""Transformers in process: both arms on one target, one request at a time."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from dflash import quickstart
from dflash.backends.base import (
    BackendDescription,
    BackendSettings,
    Capabilities,
    Generation,
    GenerationRequest,
)
from dflash.backends.chat_template import render_prompt, stop_token_ids
from dflash.backends.in_process import (
    check_block_sizes,
    check_draft,
    complete_arms,
    find_draft,
    find_target,
    folder_revision,
    is_quickstart_target,
    load_checked_tokenizer,
    make_generation,
    prompt_ids_of,
)
from dflash.backends.memory import PeakMemory
from dflash.decoded import Decoded, OnTokens
from dflash.decoding import dflash_generate, plain_generate
from dflash.draft_checkpoint import read_draft_config
from dflash.errors import ModelError, RequestError, UsageError, first_line
from dflash.few_rows import use_few_row_products, use_grouped_attention
from dflash.model import DFlashDraftModel
from dflash.reachability import local_files_only_if_unreachable
from dflash.results.records import Arm
from dflash.target import Target, quiet_transformers

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TransformersBackend:
    """See the module. With no model it is the quickstart pair; an arm with no block size uses the draft's own."""

    name = "transformers"
    capabilities = Capabilities(in_process=True, max_concurrency=1, has_logit_gap=True, interleaves_arms=True)

    def __init__(self, settings: BackendSettings) -> None:
        self._settings = settings
        self._target: Target | None = None
        self._draft: DFlashDraftModel | None = None
        self._tokenizer: Any = None
        self._stop_token_ids: frozenset[int] = frozenset()

    async def open(self, arms: Sequence[Arm]) -> BackendDescription:
        device = _device(self._settings.device)
        is_quickstart = is_quickstart_target(self._settings)
        drafts = any(not arm.is_baseline for arm in arms)
        draft_folder = find_draft(self._settings) if drafts else None
        if draft_folder is not None:  # what is wrong with the draft is said before a large target is loaded
            check_block_sizes(read_draft_config(draft_folder), arms, self._settings)
        location = find_target(self._settings)
        self._tokenizer = load_checked_tokenizer(location, self._settings)
        model = self._load_target(location, device)
        self._target = Target(model)
        self._stop_token_ids = stop_token_ids(model, self._tokenizer)
        if draft_folder is not None:
            self._draft = self._load_draft(draft_folder, self._target)
        changed = self._prepare(model)
        return self._describe(arms, location, draft_folder, is_quickstart, changed)

    def _load_target(self, location: str, device: torch.device) -> Any:
        dtype = self._settings.dtype
        if dtype is not None and dtype not in DTYPES:
            raise UsageError(f"dtype {dtype!r} is not known", f"choose one of {', '.join(DTYPES)}")
        wanted: Any = DTYPES[dtype] if dtype else torch.float32 if device.type == "cpu" else "auto"
        options: dict[str, Any] = {"dtype": wanted, "trust_remote_code": self._settings.trust_remote_code}
        options |= local_files_only_if_unreachable(location)
        if self._settings.attn_implementation:
            options["attn_implementation"] = self._settings.attn_implementation
        try:
            with quiet_transformers():
                model: Any = AutoModelForCausalLM.from_pretrained(location, use_safetensors=True, **options)
            return model.to(device).eval()
        except (OSError, ValueError, ImportError, KeyError) as error:
            raise ModelError(
                f"target {location!r} cannot be loaded ({first_line(error)})",
                "name a folder with config.json and safetensors, or an id that the hub knows",
            ) from error
        except (RuntimeError, MemoryError) as error:
            if _is_out_of_memory(error):
                raise RequestError(
                    "out_of_memory",
                    f"target {location!r} does not fit into the memory of {device}",
                    "use a smaller one",
                ) from error
            raise

    def _load_draft(self, folder: Path, target: Target) -> DFlashDraftModel:
        config = read_draft_config(folder)
        check_draft(
            config,
            self._settings,
            hidden_size=target.hidden_size,
            vocab_size=target.vocab_size,
            num_layers=len(target.layers),
            stop_token_ids=self._stop_token_ids,
        )
        return DFlashDraftModel.from_pretrained(folder, dtype=target.dtype, device=target.device)

    def _prepare(self, model: Any) -> dict[str, Any]:
        """Choose kernels for forwards of a few rows; both arms run on the result."""
        num_linear = use_few_row_products(model)
        if self._draft is not None:
            num_linear += use_few_row_products(self._draft)
        return {"few_row_linear_layers": num_linear, "grouped_attention": use_grouped_attention(model)}

    def _describe(
        self,
        arms: Sequence[Arm],
        location: str,
        draft_folder: Path | None,
        is_quickstart: bool,
        changed: dict[str, Any],
    ) -> BackendDescription:
        target = self._opened()
        target_bytes = _num_bytes(target.model)
        draft_bytes = _num_bytes(self._draft) if self._draft is not None else 0
        device = target.device
        revision = (
            quickstart.TARGET_GGUF_SHA256[:16] if is_quickstart else model_revision(location, target.model)
        )
        environment = {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
            "num_threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "attn_implementation": target.model.config._attn_implementation,
            **changed,
        }
        return BackendDescription(
            target=quickstart.TARGET_NAME if is_quickstart else location,
            target_revision=revision,
            dtype=str(target.dtype).removeprefix("torch."),
            arms=complete_arms(arms, self._settings, draft_folder, self._draft),
            weights_bytes={arm.name: target_bytes + (0 if arm.is_baseline else draft_bytes) for arm in arms},
            environment=environment,
        )

    async def generate(self, request: GenerationRequest) -> Generation:
        return self.run(request)

    def run(self, request: GenerationRequest, on_tokens: OnTokens | None = None) -> Generation:
        """Run one request; `on_tokens` is called with the ids of each step as they come.

        Raises:
            RequestError: empty prompt, prompt longer than the context, or out of memory.
        """
        target = self._opened()
        prompt_ids = self._prompt_ids(request)
        memory = PeakMemory(target.device)
        try:
            decoded = self._decode(request, prompt_ids, on_tokens)
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            if target.device.type == "cuda":
                torch.cuda.empty_cache()
            raise RequestError(
                "out_of_memory",
                f"out of memory with a prompt of {len(prompt_ids)} tokens",
                "use a shorter prompt, fewer --max-new-tokens, or a smaller model",
            ) from error
        peak_memory_bytes = memory.peak_bytes()
        return make_generation(decoded, self.detokenise(decoded.output_ids), peak_memory_bytes)

    def detokenise(self, token_ids: Sequence[int]) -> str:
        """The text of output ids, special tokens left out."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def _decode(
        self, request: GenerationRequest, prompt_ids: tuple[int, ...], on_tokens: OnTokens | None
    ) -> Decoded:
        sampling = request.sampling
        options: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": request.seed,
            "return_stats": True,
            "on_tokens": on_tokens,
        }
        limit, stops = request.max_new_tokens, self._stop_token_ids
        if request.arm.is_baseline:
            decoded = plain_generate(self._opened(), prompt_ids, limit, stops, **options)
        elif self._draft is None:
            raise UsageError(
                f"arm {request.arm.label} needs a draft, and none was opened", "name --draft-model"
            )
        else:
            decoded = dflash_generate(
                self._draft,
                self._opened(),
                prompt_ids,
                limit,
                stops,
                block_size=request.arm.block_size,
                force_block_size=self._settings.force_block_size,
                **options,
            )
        assert isinstance(decoded, Decoded)
        return decoded

    def _prompt_ids(self, request: GenerationRequest) -> tuple[int, ...]:
        limit = getattr(self._opened().config, "max_position_embeddings", None)
        return prompt_ids_of(self._tokenizer, request, limit)

    async def logit_gap(self, request: GenerationRequest, prefix_ids: Sequence[int]) -> float | None:
        target = self._opened()
        ids = (*render_prompt(self._tokenizer, request.messages, request.reasoning), *prefix_ids)
        with torch.inference_mode():
            prompt = torch.tensor([ids], device=target.device)  # [1, n]
            logits = target.forward(prompt, target.new_cache(len(ids)), num_logits=1)[0]
            best = logits.float().topk(2).values
        return float(best[0] - best[1])

    async def aclose(self) -> None:
        self._target = self._draft = self._tokenizer = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _opened(self) -> Target:
        if self._target is None:
            raise RuntimeError("the backend is not open")
        return self._target


def model_revision(location: str, model: Any) -> str:
    """The hub's commit of a target, or the revision of a local folder."""
    commit = getattr(model.config, "_commit_hash", None)
    return str(commit) if commit else folder_revision(Path(location))


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device {name!r} is not known", "use cpu, cuda, or cuda:N") from error
    if device.type == "cuda" and not (
        torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    ):
        raise UsageError(f"device {name!r} is not there: torch sees no such GPU", "use --device cpu")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device {name!r} is not supported", "use cpu or cuda")
    return device


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _num_bytes(module: torch.nn.Module) -> int:
    """Bytes of all parameters; shared ones count once."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
