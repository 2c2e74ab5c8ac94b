"""A draft's folder: where it is, its config, and whether its tensors are those of the config. No tensor is computed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash.draft_config import DraftConfig, parse_draft_config
from dflash.errors import DraftError, ModelError
from dflash.reachability import find_unreachable_hub, quiet_hub

DRAFT_PATTERNS = ("config.json", "*.safetensors*")
Shapes = Mapping[str, Sequence[int]]  # by tensor name


def find_checkpoint(
    path: str | Path,
    revision: str | None = None,
    *,
    what: str = "draft",
    patterns: Sequence[str] = DRAFT_PATTERNS,
) -> Path:
    """The local folder of a draft or target: the folder itself, or a snapshot from the hub of the files by pattern.

    Raises:
        ModelError: neither a folder nor an id that can be fetched.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    try:
        from huggingface_hub import snapshot_download

        with quiet_hub():
            return Path(
                snapshot_download(
                    str(path),
                    revision=revision,
                    allow_patterns=list(patterns),
                    local_files_only=find_unreachable_hub(str(path)) is not None,
                )
            )
    except (OSError, ValueError) as error:  # hub errors derive from these
        reason = find_unreachable_hub(str(path)) or type(error).__name__
        raise ModelError(
            f"{what} {str(path)!r} is no folder, and the hub does not give it ({reason})",
            "name a folder with config.json and safetensors, or an id that the hub knows",
        ) from error


def read_draft_config(folder: Path) -> DraftConfig:
    """Parse the `config.json` of a checkpoint folder.

    Raises:
        DraftError: it is missing, no JSON, or not that of an implemented draft.
    """
    return parse_draft_config(read_config_json(folder))


def read_config_json(folder: Path) -> dict[str, Any]:
    """The content of a draft's `config.json`.

    Raises:
        DraftError: it is missing, or no JSON object.
    """
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DraftError(
            f"{path} cannot be read ({type(error).__name__})", "name the folder of a DFlash draft"
        ) from error
    if not isinstance(content, dict):
        raise DraftError(f"{path} holds no object", "name the folder of a DFlash draft")
    return content


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint, in order.

    Raises:
        DraftError: there is none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise DraftError(f"{folder} holds no safetensors file", "other formats are not read")
    return files


def check_weights(expected: Shapes, given: Shapes, folder: Path) -> None:
    """Every tensor must be there, with its shape, and no other: what is left over would change the draft.

    Raises:
        DraftError: a tensor is missing, unknown, or of another shape.
    """
    missing, unknown = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    if missing or unknown:
        which = f"lacks the tensor {missing[0]}" if missing else f"has an unknown tensor {unknown[0]}"
        raise DraftError(f"the draft in {folder} {which}", "use a checkpoint that matches its config.json")
    for name, shape in expected.items():
        if list(given[name]) != list(shape):
            raise DraftError(
                f"tensor {name} of the draft has shape {list(given[name])}, its config.json says {list(shape)}",
                "use a checkpoint that matches its config.json",
            )
