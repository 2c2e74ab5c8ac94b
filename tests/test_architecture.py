"""The import directions between the rooms, read from the source of every module; nothing is imported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflash.__main__ import VERBS

PACKAGE = Path(__file__).parents[1] / "dflash"
VERB_MODULES = {f"dflash.{verb}" for verb in VERBS}
MODEL_FILES = {
    f"dflash.{name}"
    for name in (
        "acceptance",
        "decoded",
        "decoding",
        "draft_checkpoint",
        "draft_config",
        "draft_layers",
        "few_rows",
        "model",
        "model_mlx",
        "mlx_cache",
        "mlx_checkpoint",
        "mlx_decoding",
        "mlx_draft",
        "mlx_sampling",
        "mlx_target",
        "rollback_cache",
        "rope_frequencies",
        "sampling",
        "step_timer",
        "target",
        "text_stream",
    )
}
BELOW_BACKENDS = {
    "dflash.command_secrets",
    "dflash.errors",
    "dflash.reachability",
    "dflash.results.records",
}
# What costs more to import than everything that `--help` needs.
HEAVY = {
    "accelerate",
    "aiohttp",
    "datasets",
    "gguf",
    "huggingface_hub",
    "matplotlib",
    "mlx",
    "mlx_lm",
    "msgspec",
    "numpy",
    "orjson",
    "pandas",
    "prometheus_client",
    "rich",
    "safetensors",
    "torch",
    "transformers",
}


@dataclass(frozen=True)
class Import:
    module: str  # the full name of what is imported, as deep as it is a module
    line: int
    at_start: bool  # runs when the importing module is imported


def read_package() -> dict[str, str]:
    """Module name -> source, for every file of the package."""
    sources = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("dflash", *path.relative_to(PACKAGE).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources[name] = path.read_text(encoding="utf-8")
    return sources


def imports_of(source: str, modules: Mapping[str, str]) -> Iterator[Import]:
    """Every import statement, wherever it stands.

    Raises:
        ValueError: a relative import: the package writes full names, and so the rules can be read off them.
    """
    late = set()  # nodes in functions and below TYPE_CHECKING
    tree = ast.parse(source)
    for node in ast.walk(tree):
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_types:
            late |= {id(child) for statement in node.body for child in ast.walk(statement)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) not in late)
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise ValueError(f"line {node.lineno}: relative import")
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                name = deeper if deeper in modules else node.module
                yield Import(name, node.lineno, id(node) not in late)


def within(module: str, *rooms: str) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def is_allowed(importer: str, imported: str) -> bool:
    """Whether `importer` may import `imported`, both modules of the package."""
    if imported in VERB_MODULES:
        return False  # verbs are wiring: `__main__` finds them by name
    if importer in ("dflash.command_secrets", "dflash.reachability"):
        return False  # below every room, as `errors` is
    if within(importer, "dflash.results"):
        return within(imported, "dflash.results", "dflash.errors")
    if within(importer, "dflash.gate"):
        return within(imported, "dflash.gate", "dflash.results", "dflash.errors")
    if within(imported, "dflash.gate") and importer not in VERB_MODULES:
        return False  # nothing that is measured depends on how it is judged
    if importer in MODEL_FILES:
        return imported in MODEL_FILES | {"dflash.errors", "dflash.reachability"}
    if within(importer, "dflash.backends"):
        known = within(imported, "dflash.backends", "dflash.quickstart")
        return known or imported in MODEL_FILES | BELOW_BACKENDS
    if within(imported, "dflash.backends") and importer not in VERB_MODULES:
        return imported in ("dflash.backends", "dflash.backends.base")
    return True


def wrong_directions(sources: Mapping[str, str]) -> list[str]:
    return [
        f"{importer}:{item.line} imports {item.module}"
        for importer, source in sources.items()
        for item in imports_of(source, sources)
        if within(item.module, "dflash") and not is_allowed(importer, item.module)
    ]


def heavy_at_start(sources: Mapping[str, str], start: str) -> list[str]:
    """Heavy packages that importing `start` would load, with the module that is to blame."""
    found, waiting, seen = [], [start], {start}
    while waiting:
        name = waiting.pop()
        for item in imports_of(sources[name], sources):
            if not item.at_start:
                continue
            if item.module.split(".")[0] in HEAVY:
                found.append(f"{name}:{item.line} imports {item.module}")
            parents = item.module.split(".")
            for depth in range(1, len(parents) + 1):  # importing a.b.c runs a and a.b as well
                module = ".".join(parents[:depth])
                if module in sources and module not in seen:
                    seen.add(module)
                    waiting.append(module)
    return found


def standard_library_names(sources: Mapping[str, str]) -> list[str]:
    """Modules directly in the package that would hide one of Python's when run from its folder."""
    direct = [name for name in sources if name.count(".") == 1]
    return [name for name in direct if name.split(".")[1] in sys.stdlib_module_names]


def test_imports_go_in_the_allowed_directions():
    assert wrong_directions(read_package()) == []


@pytest.mark.parametrize("verb", [verb for verb in VERBS if (PACKAGE / f"{verb}.py").exists()])
def test_a_verb_loads_nothing_heavy_before_it_works(verb):
    assert heavy_at_start(read_package(), f"dflash.{verb}") == []


@pytest.mark.parametrize("module", ["dflash.backends.mlx", "dflash.model_mlx"])
def test_mlx_needs_no_torch(module):
    loaded = {line.rsplit(" ", 1)[1].split(".")[0] for line in heavy_at_start(read_package(), module)}
    assert loaded == {"mlx", "mlx_lm"}


def test_no_module_hides_one_of_the_standard_library():
    assert standard_library_names(read_package()) == []


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("dflash.results.metrics", "from dflash.config import BenchmarkConfig"),
        ("dflash.results.metrics", "import dflash"),
        ("dflash.results.metrics", "def f():\n    from dflash.backends import base"),
        ("dflash.backends.base", "from dflash.results import metrics"),
        ("dflash.backends.simulated", "from dflash.prompts import Prompt"),
        ("dflash.backends.simulated", "import dflash.runner"),
        ("dflash.runner", "from dflash.backends.simulated import SimulatedBackend"),
        ("dflash.runner", "if TYPE_CHECKING:\n    from dflash.backends import simulated"),
        ("dflash.interleaved", "from dflash.backends.scenario import Scenario"),
        ("dflash.recorder", "from dflash.benchmark import main"),
        ("dflash.report", "from dflash.benchmark import STANDARD_OUTPUT"),
        ("dflash.reachability", "from dflash.datasets.files import Row"),
        ("dflash.model", "from dflash.results.records import Arm"),
        ("dflash.gate.pairing", "from dflash.plan import Group"),
        ("dflash.gate.pairing", "from dflash.environment import fingerprint"),
        ("dflash.runner", "from dflash.gate.records import Gate"),
        ("dflash.results.summary", "from dflash.gate.records import Gate"),
        ("dflash.model", "from dflash.config import DTYPES"),
    ],
)
def test_a_wrong_direction_is_found(importer, statement):
    sources = read_package()
    sources[importer] = f"{statement}\n"
    found = wrong_directions(sources)
    assert [line for line in found if line.startswith(f"{importer}:")], found


def test_a_relative_import_is_refused():
    with pytest.raises(ValueError, match="relative"):
        list(imports_of("from . import errors", {}))


def test_a_heavy_package_is_found_through_other_modules():
    sources = read_package()
    sources["dflash.errors"] = "def late():\n    import torch\nif TYPE_CHECKING:\n    import pandas\n"
    assert heavy_at_start(sources, "dflash.benchmark") == []
    sources["dflash.errors"] += "try:\n    import numpy.linalg\nexcept ImportError:\n    pass\n"
    assert heavy_at_start(sources, "dflash.benchmark") == ["dflash.errors:6 imports numpy.linalg"]


def test_a_name_of_the_standard_library_is_found():
    found = standard_library_names({"dflash": "", "dflash.queue": "", "dflash.results.statistics": ""})
    assert found == ["dflash.queue"]
