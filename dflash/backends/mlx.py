"""MLX in process: both arms on one target, one request at a time; on a Mac, and on Linux CPUs for correctness."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash import quickstart
from dflash.backends.base import (
    BackendDescription,
    BackendSettings,
    Capabilities,
    Generation,
    GenerationRequest,
)
from dflash.backends.chat_template import render_prompt
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
from dflash.backends.thermal import thermal_note, thermal_state
from dflash.decoded import OnTokens
from dflash.draft_checkpoint import find_checkpoint
from dflash.errors import RequestError, UsageError, first_line
from dflash.mlx_checkpoint import (
    TARGET_PATTERNS,
    load_draft_model,
    load_target,
    num_bytes,
    read_quantised_config,
    stop_ids_of,
)
from dflash.mlx_decoding import decode, prefill
from dflash.mlx_draft import DFlashDraftModel
from dflash.mlx_target import MLXTarget
from dflash.results.records import Arm

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
DEVICES = {"cpu": mx.cpu, "gpu": mx.gpu}
COMPILER = "g++"  # what MLX compiles its small kernels with on a CPU


class MLXBackend:
    """See the module. With no model it is the quickstart pair; an arm with no block size uses the draft's own."""

    name = "mlx"
    capabilities = Capabilities(in_process=True, max_concurrency=1, has_logit_gap=True, interleaves_arms=True)

    def __init__(self, settings: BackendSettings) -> None:
        if settings.attn_implementation is not None:
            raise UsageError("--attn-implementation has no meaning for MLX", "drop it")
        if settings.device not in (None, *DEVICES):
            raise UsageError(f"device {settings.device!r} is not one of MLX", f"use {' or '.join(DEVICES)}")
        self._settings = settings
        self._target: MLXTarget | None = None
        self._draft: DFlashDraftModel | None = None
        self._tokenizer: Any = None
        self._context: int | None = None
        self._stop_token_ids: frozenset[int] = frozenset()
        self._device_before = mx.default_device()
        self._is_device_set = False
        self._thermal_states: list[str | None] = []

    async def open(self, arms: Sequence[Arm]) -> BackendDescription:
        is_compiled = self._use_device()
        drafts = any(not arm.is_baseline for arm in arms)
        draft_folder = find_draft(self._settings) if drafts else None
        if draft_folder is not None:  # what is wrong with the draft is said before a large target is loaded
            draft_config, _ = read_quantised_config(draft_folder, self._settings.draft_bits)
            check_block_sizes(draft_config, arms, self._settings)
        location = find_target(self._settings)
        self._tokenizer = load_checked_tokenizer(location, self._settings)
        folder = find_checkpoint(location, what="target", patterns=TARGET_PATTERNS)
        config = self._load_target(folder)
        if draft_folder is not None:
            self._draft = self._load_draft(draft_folder)
        self._thermal_states = [thermal_state()]
        description = self._describe(arms, location, folder, draft_folder)
        quantisation = config.get("quantization")
        environment = {
            **description.environment,
            "mlx_compile": is_compiled,
            "target_bits": quantisation.get("bits") if isinstance(quantisation, dict) else None,
        }
        return replace(description, environment=environment)

    def _use_device(self) -> bool:
        """Compute on the device that is asked for; whether MLX can compile its small kernels there."""
        name, self._is_device_set = self._settings.device, True
        if name is not None:
            if not mx.is_available(DEVICES[name]):
                raise UsageError(f"device {name!r} is not there: MLX sees no such device", "use --device cpu")
            mx.set_default_device(DEVICES[name])
        if mx.default_device().type == mx.gpu:
            return True
        if shutil.which(COMPILER) is None:
            mx.disable_compile()
            return False
        return True

    def _load_target(self, folder: Path) -> dict[str, Any]:
        """Open the target; its config."""
        dtype = self._settings.dtype
        if dtype is not None and dtype not in DTYPES:
            raise UsageError(f"dtype {dtype!r} is not known", f"choose one of {', '.join(DTYPES)}")
        on_cpu = mx.default_device().type == mx.cpu
        wanted = DTYPES[dtype] if dtype else mx.float32 if on_cpu else None
        model, config = load_target(folder, dtype=wanted, trust_remote_code=self._settings.trust_remote_code)
        self._target = MLXTarget(model)
        self._stop_token_ids = stop_ids_of(config)
        if self._tokenizer.eos_token_id is not None:
            self._stop_token_ids |= {self._tokenizer.eos_token_id}
        text = config.get("text_config")
        self._context = (text if isinstance(text, dict) else config).get("max_position_embeddings")
        return config

    def _load_draft(self, folder: Path) -> DFlashDraftModel:
        target = self._opened()
        check_draft(
            read_quantised_config(folder)[0],
            self._settings,
            hidden_size=target.hidden_size,
            vocab_size=target.vocab_size,
            num_layers=len(target.layers),
            stop_token_ids=self._stop_token_ids,
        )
        return load_draft_model(folder, dtype=target.dtype, bits=self._settings.draft_bits)

    def _describe(
        self, arms: Sequence[Arm], location: str, folder: Path, draft_folder: Path | None
    ) -> BackendDescription:
        target = self._opened()
        target_bytes = num_bytes(target.model)
        draft_bytes = num_bytes(self._draft) if self._draft is not None else 0
        is_quickstart = is_quickstart_target(self._settings)
        bits = self._settings.draft_bits
        completed = complete_arms(arms, self._settings, draft_folder, self._draft)
        if bits is not None:  # another draft: its numbers are not those of the unquantised one
            completed = tuple(
                arm if arm.is_baseline else replace(arm, draft_revision=f"{arm.draft_revision}-{bits}bit")
                for arm in completed
            )
        return BackendDescription(
            target=quickstart.TARGET_NAME if is_quickstart else location,
            target_revision=quickstart.TARGET_GGUF_SHA256[:16] if is_quickstart else folder_revision(folder),
            dtype=str(target.dtype).removeprefix("mlx.core."),
            arms=completed,
            weights_bytes={arm.name: target_bytes + (0 if arm.is_baseline else draft_bytes) for arm in arms},
            environment={
                "device": str(mx.device_info().get("device_name", mx.default_device())),
                "device_kind": "gpu" if mx.default_device().type == mx.gpu else "cpu",
                "mlx": version("mlx"),
                "mlx_lm": version("mlx-lm"),
                "draft_bits": bits,
            },
        )

    async def generate(self, request: GenerationRequest) -> Generation:
        return self.run(request)

    def run(self, request: GenerationRequest, on_tokens: OnTokens | None = None) -> Generation:
        """Run one request; `on_tokens` is called with the ids of each step as they come.

        Raises:
            RequestError: empty prompt, prompt longer than the context, or out of memory.
        """
        target, sampling = self._opened(), request.sampling
        if not request.arm.is_baseline and self._draft is None:
            raise UsageError(
                f"arm {request.arm.label} needs a draft, and none was opened", "name --draft-model"
            )
        prompt_ids = prompt_ids_of(self._tokenizer, request, self._context)
        mx.synchronize()
        mx.reset_peak_memory()
        resting_bytes = mx.get_active_memory()
        try:
            decoded = decode(
                target,
                None if request.arm.is_baseline else self._draft,
                prompt_ids,
                request.max_new_tokens,
                self._stop_token_ids,
                sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                seed=request.seed,
                block_size=request.arm.block_size,
                force_block_size=self._settings.force_block_size,
                on_tokens=on_tokens,
            )
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            mx.clear_cache()
            raise RequestError(
                "out_of_memory",
                f"out of memory with a prompt of {len(prompt_ids)} tokens",
                "use a shorter prompt, fewer --max-new-tokens, or a smaller model",
            ) from error
        peak_memory_bytes = max(0, mx.get_peak_memory() - resting_bytes)
        self._thermal_states.append(thermal_state())
        return make_generation(decoded, self.detokenise(decoded.output_ids), peak_memory_bytes)

    def detokenise(self, token_ids: Sequence[int]) -> str:
        """The text of output ids, special tokens left out."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    async def logit_gap(self, request: GenerationRequest, prefix_ids: Sequence[int]) -> float | None:
        target = self._opened()
        ids = (*render_prompt(self._tokenizer, request.messages, request.reasoning), *prefix_ids)
        logits, _ = prefill(target, ids, target.new_cache())
        best = mx.sort(logits[0].astype(mx.float32))[-2:].tolist()
        return float(best[1] - best[0])

    def closing_notes(self) -> tuple[str, ...]:
        """On a Mac, how hot it was while this engine ran."""
        note = thermal_note(self._thermal_states)
        return () if note is None else (note,)

    async def aclose(self) -> None:
        if self._is_device_set:  # also where opening failed halfway
            mx.set_default_device(self._device_before)
            mx.enable_compile()
            self._is_device_set = False
        self._target = self._draft = self._tokenizer = None
        mx.clear_cache()

    def _opened(self) -> MLXTarget:
        if self._target is None:
            raise RuntimeError("the backend is not open")
        return self._target


def _is_out_of_memory(error: BaseException) -> bool:
    """Also where Metal says it of a command that it was given; some releases of MLX end the process then."""
    return isinstance(error, MemoryError) or any(
        words in first_line(error) for words in ("malloc", "Insufficient Memory")
    )
