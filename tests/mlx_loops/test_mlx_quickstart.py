"""The quickstart pair under MLX: what plain decoding says, with the acceptance of the Transformers backend."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import mlx.core as mx
import pytest

from dflash import quickstart
from dflash.backends.base import BackendSettings, GenerationRequest, Message
from dflash.backends.mlx import MLXBackend
from dflash.backends.transformers import TransformersBackend
from dflash.datasets.catalogue import find_dataset, make_prompts
from dflash.datasets.files import read_rows
from dflash.results.records import BASELINE, Arm

pytestmark = [pytest.mark.real_model, pytest.mark.slow, pytest.mark.usefixtures("quickstart_target")]

# The CPU wheel's products are slow: a few tokens a second, those of the prompt too. Without a message of the system the
# template writes a longer one.
NUM_NEW_TOKENS = 9
SYSTEM = Message("system", "Help.")
ARMS = (Arm(BASELINE), Arm("dflash", 4))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    mx.disable_compile()  # a backend that is closed enables it


def test_the_pair_agrees_and_accepts_as_under_transformers() -> None:
    shortest = min(read_rows(quickstart.PROMPTS_FILE), key=lambda row: len(str(row)))
    (prompt,) = make_prompts(find_dataset("quickstart"), [shortest], quickstart.PROMPTS_FILE.name)
    messages = (SYSTEM, Message("user", prompt.turns[0]))
    found = []
    for kind in (MLXBackend, TransformersBackend):
        backend = kind(BackendSettings(device="cpu", dtype="float32"))
        description = asyncio.run(backend.open(ARMS))
        assert (description.target, description.dtype) == (quickstart.TARGET_NAME, "float32")
        plain, drafted = (
            backend.run(GenerationRequest("r", arm, messages, max_new_tokens=NUM_NEW_TOKENS))
            for arm in description.arms
        )
        assert plain.text
        assert drafted.output_ids == plain.output_ids, kind.name
        given = (plain.prompt_ids, plain.output_ids, drafted.step_num_accepted)
        found.append((description.arms, description.target_revision, given))
        asyncio.run(backend.aclose())
    assert found[0] == found[1]
    assert sum(found[0][2][2] or ()) > 0, "a trained draft that is never right is wired wrongly"
