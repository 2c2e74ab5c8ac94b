"""Each real engine serves the quickstart pair, answers as recorded, and gives the tokens of plain decoding."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engines.install import ENGINES
from engines.servers import MODEL_NAME, RunningServer, ServerStartError, left_running

from dflash.backends.base import BackendSettings, GenerationRequest, Message
from dflash.quickstart import DRAFT_FOLDER
from dflash.results.records import Arm
from dflash.results.verify_pair import near_tie_logit_gap

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("engine", list(ENGINES), scope="module")]

PROMPTS = ("What is the capital of France?", "Write a Python function that adds two numbers.")
MAX_NEW_TOKENS = 24
BLOCK_SIZE = 4
CHAT = "/v1/chat/completions"
ARMS = ("baseline", "dflash")
SAMPLES = {"vllm": "vllm-0.32.0", "sglang": "sglang-0.5.23"}
# What a request adds to get token ids and the request's own counts.
ASKED_FOR = {
    "vllm": {"return_token_ids": True},
    "sglang": {"return_token_ids": True, "return_meta_info": True},
}


@dataclass(frozen=True)
class Answer:
    """What one prompt gave, in this project's terms."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    num_decode_steps: int | None
    num_draft_tokens: int | None
    num_accepted_tokens: int | None


def use(running_server: Any, engine: str, target: Path, arm: str) -> Any:
    drafted = {"draft": DRAFT_FOLDER, "block_size": BLOCK_SIZE} if arm == "dflash" else {}
    return running_server(engine, target, **drafted)


def chat_body(server: RunningServer, prompt: str) -> dict[str, Any]:
    return {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": MAX_NEW_TOKENS,
        **ASKED_FOR[server.arm.engine],
    }


def read_answer(engine: str, document: Mapping[str, Any]) -> Answer:
    choice = document["choices"][0]
    if engine == "vllm":
        ids = (document["prompt_token_ids"], choice["token_ids"])
        counts = (document["metrics"] or {}).get("speculative_decoding") or {}
        names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    else:
        ids = (choice["prompt_token_ids"], choice["response_token_ids"])
        counts = choice["meta_info"]
        names = ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts")
    return Answer(tuple(ids[0]), tuple(ids[1]), *(counts.get(name) for name in names))


@pytest.fixture(scope="module")
def documents(engine: str, running_server: Any, quickstart_target: Path) -> dict[str, list[dict[str, Any]]]:
    """By arm, the chat answers to the prompts, one request at a time."""
    found = {}
    for arm in ARMS:
        with use(running_server, engine, quickstart_target, arm) as server:
            found[arm] = [server.post(CHAT, chat_body(server, prompt)) for prompt in PROMPTS]
    return found


@pytest.fixture(scope="module")
def answers(engine: str, documents: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Answer]]:
    return {arm: [read_answer(engine, document) for document in documents[arm]] for arm in ARMS}


class PlainDecoding:
    """The quickstart target by Transformers in float32, one token at a time."""

    def __init__(self) -> None:
        from dflash.backends.transformers import TransformersBackend  # only where a server is really asked

        self.arm = Arm("baseline")
        self.backend = TransformersBackend(BackendSettings(dtype="float32", device="cpu"))
        asyncio.run(self.backend.open([self.arm]))

    def request(self, prompt: str) -> GenerationRequest:
        return GenerationRequest(
            request_id="0",
            arm=self.arm,
            messages=(Message("user", prompt),),
            max_new_tokens=MAX_NEW_TOKENS,
        )

    def output_ids(self, prompt: str) -> tuple[int, ...]:
        generation = asyncio.run(self.backend.generate(self.request(prompt)))
        assert generation.output_ids is not None
        return generation.output_ids

    def logit_gap(self, prompt: str, prefix_ids: Sequence[int]) -> float:
        gap = asyncio.run(self.backend.logit_gap(self.request(prompt), prefix_ids))
        assert gap is not None
        return gap


@pytest.fixture(scope="module")
def plain_decoding(quickstart_target: Path) -> Iterator[PlainDecoding]:
    plain = PlainDecoding()
    yield plain
    asyncio.run(plain.backend.aclose())


def paths_of(document: Any, at: str = "") -> Iterator[str]:
    """Every key of a JSON document with the keys above it; of a list, its first item's."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield f"{at}.{key}"
            yield from paths_of(value, f"{at}.{key}")
    elif isinstance(document, list) and document:
        yield from paths_of(document[0], f"{at}[]")


def recorded(shared_folder: Path, engine: str, arm: str) -> dict[str, Any]:
    """The recorded chat answer that has an answer's own counts."""
    folder = shared_folder / "samples" / SAMPLES[engine]
    name = {"baseline": "base", "dflash": "dflash"}[arm]
    if engine == "vllm":  # a line of times follows the document
        text = (folder / f"{name}.chat.json").read_text(encoding="utf-8")
        document: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
    else:
        document = json.loads((folder / f"{name}-chat_meta.json").read_text(encoding="utf-8"))["body"]
    return document


def metric_names(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


@pytest.mark.parametrize("arm", ARMS)
def test_an_answer_has_all_that_the_recorded_one_has(engine, arm, documents, shared_folder):
    expected = set(paths_of(recorded(shared_folder, engine, arm)))
    found = {path for document in documents[arm] for path in paths_of(document)}
    assert expected - found == set()


@pytest.mark.parametrize("arm", ARMS)
def test_the_counters_have_the_recorded_names(
    engine, arm, documents, running_server, quickstart_target, shared_folder
):
    folder = shared_folder / "samples" / SAMPLES[engine]
    name = {"baseline": "base", "dflash": "dflash"}[arm]
    sample = min(folder.glob(f"{name}?metrics*.txt"))  # vLLM: after the requests, not before
    with use(running_server, engine, quickstart_target, arm) as server:
        # SGLang counts the gaps between tokens from the first stream on, and gives no ids in one.
        body = {**chat_body(server, PROMPTS[0]), **dict.fromkeys(ASKED_FOR[engine], False), "stream": True}
        assert server.post_text(CHAT, body).rstrip().endswith("data: [DONE]")
        found = metric_names(server.get("/metrics"))
    assert metric_names(sample.read_text(encoding="utf-8")) - found == set()


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_drafting_does_not_change_the_output(engine, index, answers):
    base, drafted = (answers[arm][index] for arm in ARMS)
    assert drafted.prompt_ids == base.prompt_ids
    assert drafted.output_ids == base.output_ids


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_the_output_is_that_of_plain_decoding(engine, index, answers, plain_decoding):
    expected = plain_decoding.output_ids(PROMPTS[index])
    found = answers["baseline"][index].output_ids
    same = [one == other for one, other in zip(expected, found, strict=False)]
    if expected != found:
        first = same.index(False) if False in same else len(same)
        gap = plain_decoding.logit_gap(PROMPTS[index], expected[:first])
        assert gap <= near_tie_logit_gap("float32"), f"token {first}: {expected} and {found}, gap {gap}"


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_the_counts_of_a_request_add_up(engine, index, answers):
    drafted = answers["dflash"][index]
    steps, accepted = drafted.num_decode_steps, drafted.num_accepted_tokens
    assert steps
    assert accepted  # the quickstart draft is worth something on every prompt
    assert drafted.num_draft_tokens == (BLOCK_SIZE - 1) * steps
    # The prefill's token, one more for each step, the accepted ones; the last step may have been cut.
    assert 0 <= 1 + steps + accepted - len(drafted.output_ids) <= BLOCK_SIZE - 1


def test_plain_decoding_has_no_counts_of_drafts(engine, answers):
    assert {answer.num_decode_steps for answer in answers["baseline"]} == {None}


def parents() -> dict[int, int]:
    """The parent of every process."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found[int(stat.parent.name)] = int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    return found


def test_all_processes_of_a_server_are_in_its_group(engine, documents, running_server, quickstart_target):
    """So that stopping the group stops all."""
    with use(running_server, engine, quickstart_target, "dflash") as server:
        parent_of = parents()
        family = {server.group}
        while grown := {child for child, parent in parent_of.items() if parent in family} - family:
            family |= grown
        assert len(family) > 2  # the server, the engine, its workers
        assert family <= set(left_running(server.group))


def test_a_server_that_cannot_start_says_why(engine, running_server, tmp_path):
    with (
        pytest.raises(ServerStartError, match="ended with code") as caught,
        running_server(engine, tmp_path / "no-such-model"),
    ):
        pytest.fail("it started")
    assert "no-such-model" in str(caught.value)
