"""Starting the engine's own server for an arm, as the settings say."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timezone

from dflash.backends import launch_server
from dflash.backends.base import RunningServer
from dflash.config import BenchmarkConfig
from dflash.errors import UsageError
from dflash.results.records import Arm
from dflash.server_options import NO_CAP

OPEN_LOOP_CONCURRENCY = 256  # that a server is started for
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
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    name = f"{config.run_name or stamp}-{arm.label.replace(' ', '-').replace('=', '')}.log"
    folder = config.output_dir / LOGS_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the folder {folder} ({error.strerror})", "choose another --output-dir"
        ) from error
    highest = max(config.loads)
    return launch_server(
        config.backend,
        arm,
        log_file=folder / name,
        announce=announce,
        model=config.model,
        draft_model=config.draft_model,
        dtype=config.dtype,
        device=config.device,
        max_concurrency=OPEN_LOOP_CONCURRENCY if highest == NO_CAP else highest,
        engine_python=config.engine_python,
        server_args=config.server_args,
        trust_remote_code=config.trust_remote_code,
    )
