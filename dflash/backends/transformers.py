"""Transformers in process: both arms on one target, one request at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from dflash import quickstart
from dflash.acceptance import EQUALITY_RULE
from dflash.backends.base import (
    BackendDescription,
    BackendSettings,
    Capabilities,
    Generation,
    GenerationRequest,
)
from dflash.backends.chat_template import (
    find_chat_template,
    load_tokenizer,
    reasoning_arguments,
    render_prompt,
    stop_token_ids,
)
from dflash.backends.memory import PeakMemory
from dflash.decoded import Decoded, OnTokens
from dflash.decoding import dflash_generate, plain_generate
from dflash.draft_checkpoint import find_checkpoint, read_draft_config
from dflash.draft_config import check_block_size, check_target
from dflash.errors import DraftError, ModelError, RequestError, UsageError
from dflash.few_rows import use_few_row_products, use_grouped_attention
from dflash.model import DFlashDraftModel
from dflash.reachability import local_files_only_if_unreachable
from dflash.results.records import Arm
from dflash.target import Target, quiet_transformers

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SAMPLE_BYTES = 1 << 20


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
        is_quickstart = self._settings.model in (None, quickstart.QUICKSTART)
        drafts = any(not arm.is_baseline for arm in arms)
        draft_folder = self._draft_folder(is_quickstart) if drafts else None
        if draft_folder is not None:  # what is wrong with the draft is said before a large target is loaded
            draft_config = read_draft_config(draft_folder)
            for arm in arms:
                if arm.block_size is not None:
                    check_block_size(draft_config, arm.block_size, force=self._settings.force_block_size)
        location = str(quickstart_target()) if is_quickstart else str(self._settings.model)
        if location.startswith(("/", ".", "~")) and not Path(location).expanduser().is_dir():
            raise ModelError(
                f"target {location!r} is no folder", "name a folder with config.json and safetensors"
            )
        self._tokenizer = self._load_tokenizer(location)
        model = self._load_target(location, device)
        self._target = Target(model)
        self._stop_token_ids = stop_token_ids(model, self._tokenizer)
        if draft_folder is not None:
            self._draft = self._load_draft(draft_folder, self._target)
        changed = self._prepare(model)
        return self._describe(arms, location, draft_folder, is_quickstart, changed)

    def _draft_folder(self, is_quickstart: bool) -> Path:
        named = self._settings.draft_model
        if named is None and not is_quickstart:
            raise UsageError(
                f"no draft was named for {self._settings.model}", "add --draft-model, or run --arms baseline"
            )
        return quickstart.DRAFT_FOLDER if named is None else find_checkpoint(named)

    def _load_tokenizer(self, location: str) -> Any:
        """The tokenizer; what its chat template does not know is said before a large target is loaded."""
        tokenizer = load_tokenizer(location, trust_remote_code=self._settings.trust_remote_code)
        template = find_chat_template(tokenizer)
        if template is not None:
            reasoning_arguments(template, self._settings.reasoning)
        return tokenizer

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
                f"target {location!r} cannot be loaded ({_first_line(error)})",
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
        check_target(
            config,
            hidden_size=target.hidden_size,
            vocab_size=target.vocab_size,
            num_layers=len(target.layers),
            target=self._settings.model or quickstart.TARGET_NAME,
        )
        if config.mask_token_id in self._stop_token_ids:
            raise DraftError(
                f"mask token id {config.mask_token_id} is a stop token of the target",
                "use the draft of this target",
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
            arms=tuple(self._complete(arm, draft_folder) for arm in arms),
            weights_bytes={arm.name: target_bytes + (0 if arm.is_baseline else draft_bytes) for arm in arms},
            environment=environment,
        )

    def _complete(self, arm: Arm, draft_folder: Path | None) -> Arm:
        if arm.is_baseline or draft_folder is None or self._draft is None:
            return arm
        named = self._settings.draft_model
        default = quickstart.DEFAULT_BLOCK_SIZE if named is None else self._draft.block_size
        return replace(
            arm,
            block_size=arm.block_size or default,
            acceptance_rule=EQUALITY_RULE,
            draft=named or "quickstart-dflash",
            draft_revision=folder_revision(draft_folder),
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
        return _generation(decoded, self.detokenise(decoded.output_ids), peak_memory_bytes)

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
        if not any(message.content.strip() for message in request.messages if message.role == "user"):
            raise RequestError("empty_prompt", "the prompt is empty", "give a prompt with text")
        ids = render_prompt(self._tokenizer, request.messages, request.reasoning)
        if not ids:
            raise RequestError("empty_prompt", "the prompt has no token", "give a prompt with text")
        limit = getattr(self._opened().config, "max_position_embeddings", None)
        if limit is not None and len(ids) + request.max_new_tokens > limit:
            raise RequestError(
                "prompt_too_long",
                f"a prompt of {len(ids)} tokens and {request.max_new_tokens} new ones exceed the context of {limit}",
                "use a shorter prompt or fewer --max-new-tokens",
            )
        return ids

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


def quickstart_target() -> Path:
    """The quickstart target's folder, built at the first use."""
    from dflash.quickstart.target import ensure_target

    return ensure_target()


def model_revision(location: str, model: Any) -> str:
    """The hub's commit of a target, or the revision of a local folder."""
    commit = getattr(model.config, "_commit_hash", None)
    return str(commit) if commit else folder_revision(Path(location))


def folder_revision(folder: Path) -> str:
    """A digest that tells checkpoints apart without reading all of them: names, sizes, and both ends of each file."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*config.json")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}:".encode())
        with path.open("rb") as stream:
            digest.update(stream.read(SAMPLE_BYTES))
            stream.seek(max(0, size - SAMPLE_BYTES))
            digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


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


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _num_bytes(module: torch.nn.Module) -> int:
    """Bytes of all parameters; shared ones count once."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _generation(decoded: Decoded, text: str, peak_memory_bytes: int | None) -> Generation:
    drafted = decoded.block_size is not None
    return Generation(
        sent_ns=decoded.sent_ns,
        first_ns=decoded.first_ns,
        last_ns=decoded.last_ns,
        finish_reason=decoded.finish_reason,
        num_prompt_tokens=len(decoded.prompt_ids),
        num_output_tokens=len(decoded.output_ids),
        num_first_chunk_tokens=1,
        num_decode_steps=decoded.num_decode_steps,
        num_verify_steps=decoded.num_decode_steps if drafted else 0,
        num_draft_tokens=decoded.num_draft_tokens,
        num_accepted_tokens=decoded.num_accepted_tokens,
        acceptance_histogram=decoded.acceptance_histogram if drafted else None,
        acceptance_histogram_untrimmed=decoded.acceptance_histogram_untrimmed if drafted else None,
        draft_ns=decoded.draft_ns,
        verify_ns=decoded.verify_ns,
        peak_memory_bytes=peak_memory_bytes,
        prompt_ids=decoded.prompt_ids,
        output_ids=decoded.output_ids,
        text=text,
        chunk_gaps_ns=decoded.step_gaps_ns,
        chunk_num_tokens=(1, *decoded.step_num_tokens),
        step_num_accepted=decoded.step_num_accepted if drafted else None,
    )
