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
    "msgspec",
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
        """
try:
    import dflash.data as verb
    verb.main(['fetch', '--help'])
except SystemExit:
    pass
""",
        "from dflash.data import main; assert main(['list', '--json', '-']) == 0",
        "import dflash.reasoning, dflash.backends.chat_template",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    loaded = modules_after(code)
    assert loaded & {"dflash"}
    assert loaded.isdisjoint(HEAVY), sorted(loaded & set(HEAVY))
    # an interpreter has about 60 modules, argparse and dataclasses bring most of the rest; --list reads data sets
    assert len(loaded) < (240 if "dflash.dataset_store" in loaded else 200)


def test_reading_rows_and_showing_a_prompt_loads_nothing_heavy() -> None:
    loaded = modules_after("from dflash.data import main; assert main(['show', 'quickstart']) == 0")
    assert "dflash.dataset_store" in loaded
    assert loaded.isdisjoint(HEAVY), sorted(loaded & set(HEAVY))


def modules_after(code: str) -> set[str]:
    """Names of the modules that a new interpreter has after running `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.split())
