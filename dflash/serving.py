"""Starting the engine's own server for an arm, as the settings say."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from dflash import quickstart
from dflash.backends import check_launches, launch_server, server_words
from dflash.backends.base import RunningServer
from dflash.command_secrets import hide_server_args
from dflash.config import BenchmarkConfig
from dflash.draft_config import parse_draft_config
from dflash.errors import ModelError, UsageError
from dflash.results.records import Arm
from dflash.server_options import NO_CAP

OPEN_LOOP_CONCURRENCY = 256  # that a server is started for
DFLASH = "dflash"
LOGS_FOLDER = "server-logs"  # beside the runs: a server may fail before there is one


def launch_arm(
    config: BenchmarkConfig, arm: Arm, announce: Callable[[str], None]
) -> AbstractAsyncContextManager[RunningServer]:
    """The server of `arm`, to be entered by `async with`. Its log is kept in the parent folder of runs.

    Raises:
        UsageError: the settings cannot be honoured, or the log folder cannot be made.
        MissingExtraError: the engine is not installed.
    """
    assert config.model is not None
    model, draft_model = _models(config)
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    name = f"{config.run_name or stamp}-{arm.label.replace(' ', '-').replace('=', '')}.log"
    folder = config.output_dir / LOGS_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the folder {folder} ({error.strerror})", "choose another --output-dir"
        ) from error
    return launch_server(
        config.backend,
        arm,
        log_file=folder / name,
        announce=announce,
        ready_timeout_s=config.ready_timeout_s,
        **_settings(config, model, draft_model),
    )


def check_arms(config: BenchmarkConfig, arms: Sequence[Arm]) -> None:
    """Refuse an arm that could not be started, before another one is measured for hours.

    Raises:
        UsageError: the settings cannot be honoured, the release is too old, or a draft cannot be read.
        MissingExtraError: the engine is not installed.
    """
    draft_model = _draft_of(config)
    for arm in arms:
        if arm.name == DFLASH and draft_model is not None and Path(draft_model).expanduser().is_dir():
            _block_size_of(draft_model)  # whatever block size is asked for
    asked = [with_block_size(config, arm) for arm in arms]
    check_launches(config.backend, asked, **_settings(config, str(config.model), draft_model))


def _settings(config: BenchmarkConfig, model: str, draft_model: str | None) -> dict[str, Any]:
    highest = max(config.loads)
    return {
        "model": model,
        "draft_model": draft_model,
        "dtype": config.dtype,
        "device": config.device,
        "max_concurrency": OPEN_LOOP_CONCURRENCY if highest == NO_CAP else highest,
        "engine_python": config.engine_python,
        "server_args": config.server_args,
        "trust_remote_code": config.trust_remote_code,
    }


def with_block_size(config: BenchmarkConfig, arm: Arm) -> Arm:
    """The arm with the block size that its server is started with: the draft's own where none is asked for.

    Raises:
        ModelError: there is no such draft, or its config does not say.
    """
    if arm.name != DFLASH or arm.block_size is not None:
        return arm
    if quickstart.is_quickstart_draft(config.draft_model, config.model):
        return replace(arm, block_size=quickstart.DEFAULT_BLOCK_SIZE)
    return replace(arm, block_size=_block_size_of(str(config.draft_model)))


def as_started(config: BenchmarkConfig, arm: Arm) -> Arm:
    """The arm with what its server was started with and does not tell: a run goes on with the same alone."""
    draft = None if arm.is_baseline else arm.draft
    if arm.name == DFLASH and draft in (None, _draft_of(config)):  # by its name, not by where it lies
        is_shipped = quickstart.is_quickstart_draft(config.draft_model, config.model)
        draft = quickstart.DRAFT_NAME if is_shipped else config.draft_model
    return replace(
        arm,
        draft=draft,
        server=None,  # its port is another at every start
        server_args=server_words(hide_server_args(config.server_args), arm.name),
    )


def target_as_named(config: BenchmarkConfig, target: str) -> str:
    """The quickstart target by its name, where a server tells the folder that it was handed for it."""
    is_folder = config.model == quickstart.QUICKSTART and Path(target).name == quickstart.TARGET_NAME
    return quickstart.TARGET_NAME if is_folder else target


def planned_as_started(config: BenchmarkConfig, arm: Arm) -> Arm:
    """What the arm would have been, had its server started; as far as that can be told."""
    with suppress(ModelError):
        arm = with_block_size(config, arm)
    return as_started(config, arm)


def _block_size_of(draft: str) -> int:
    try:
        content = json.loads(_config_file(draft).read_text(encoding="utf-8"))
        return parse_draft_config(content).block_size
    except (
        OSError,
        ValueError,
    ) as error:  # not there, not to be had, no JSON; errors of drafts derive from these
        raise ModelError(
            f"the block size of the draft {draft!r} cannot be read ({type(error).__name__}: {error})",
            "name a draft that can be read; of one on the model hub --block-size may be given instead",
        ) from error


def _config_file(draft: str) -> Path:
    folder = Path(draft).expanduser()
    if folder.is_dir():
        return folder / "config.json"
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(draft, "config.json"))


def _models(config: BenchmarkConfig) -> tuple[str, str | None]:
    """Target and draft as an engine takes them: the quickstart pair by its folders."""
    if config.model != quickstart.QUICKSTART:
        return str(config.model), _draft_of(config)
    from dflash.quickstart.target import ensure_target

    return str(ensure_target()), _draft_of(config)


def _draft_of(config: BenchmarkConfig) -> str | None:
    """The draft that was named; the shipped one by its folder."""
    if quickstart.is_quickstart_draft(config.draft_model, config.model):
        return str(quickstart.DRAFT_FOLDER)
    return config.draft_model
