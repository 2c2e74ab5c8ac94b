"""Fixtures of the loops' tests: one thread, for the models are tiny and the machine may be shared."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from loops.tiny_models import KINDS, case_with_distinct_tokens, save_tiny_pair


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", params=KINDS)
def case(request: pytest.FixtureRequest) -> SimpleNamespace:
    """kind, model, prompt and its greedy reference; for both kinds of target."""
    return case_with_distinct_tokens(request.param)


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Folders of a tiny target and of a tiny draft; see `save_tiny_pair`."""
    return save_tiny_pair(tmp_path_factory.mktemp("tiny_pair"))
