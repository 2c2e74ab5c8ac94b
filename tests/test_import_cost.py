"""Importing dflash and asking for help load nothing heavy: modules are counted, not time."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "transformers",
    "pandas",
    "matplotlib",
    "datasets",
    "numpy",
    "rich",
    "huggingface_hub",
    "aiohttp",
    "orjson",
    "pyarrow",
    "asyncio",
)


@pytest.mark.parametrize(
    "code",
    [
        "import dflash",
        "import dflash.benchmark",
        "from dflash.benchmark import main; main(['--list'])",
        "from dflash.__main__ import main; main(['--help'])",
        """
try:
    import dflash.benchmark as verb
    verb.main(['--help'])
except SystemExit:
    pass
""",
        """
try:
    import dflash.generate as verb
    verb.main(['--help'])
except SystemExit:
    pass
""",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stderr.split())
    assert loaded & {"dflash"}
    assert loaded.isdisjoint(HEAVY), sorted(loaded & set(HEAVY))
    assert len(loaded) < 200, "an interpreter has about 60 modules, argparse and dataclasses bring the rest"
