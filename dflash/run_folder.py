"""The folder of a new run."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path

from dflash.config import MAX_RUN_NAME, BenchmarkConfig
from dflash.errors import UsageError


def new_run_folder(config: BenchmarkConfig) -> Path:
    """The folder of a new run; a name that was not given is made from the time and the contents."""
    if config.run_name is not None:
        return config.output_dir / config.run_name
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    contents = re.sub(r"[^A-Za-z0-9._+-]", "_", f"{config.backend}-{'+'.join(config.datasets)}")
    name = f"{stamp}-{contents}"[: MAX_RUN_NAME - 4]
    for number in range(1, 1000):
        folder = config.output_dir / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(
                f"cannot make the run folder {folder} ({error.strerror})", "choose another --output-dir"
            ) from error
        return folder
    raise UsageError(f"{config.output_dir} holds too many runs of one second", "name the run by --run")
