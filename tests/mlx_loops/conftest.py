"""Fixtures of the MLX loops' tests, which are collected only where MLX is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

HAS_MLX = find_spec("mlx") is not None and find_spec("mlx_lm") is not None
if not HAS_MLX and os.environ.get("DFLASH_REQUIRE_MLX") != "1":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def interpreted() -> Iterator[None]:
    """MLX compiles small kernels with g++, each at its first use: here that would take longer than the tests."""
    import mlx.core as mx

    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture(scope="session", params=["qwen3", "llama", "gemma4", "qwen3_5"])
def case(request: pytest.FixtureRequest) -> SimpleNamespace:
    """kind, model, prompt and its greedy reference; for every kind of target."""
    from mlx_loops.tiny_mlx import case_with_distinct_tokens

    return case_with_distinct_tokens(request.param)


@pytest.fixture(scope="session", params=["qwen3", "llama"])
def any_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Saved by transformers 5: the config of the llama says its rope where mlx-lm does not look."""
    from loops.tiny_models import save_tiny_pair

    return save_tiny_pair(tmp_path_factory.mktemp(request.param), request.param)
