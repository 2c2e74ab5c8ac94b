"""The simulated servers answer in the shape of what the real ones were recorded to say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from simulated_client import (
    CHAT,
    NINE,
    PLAIN,
    chat,
    events_of,
    get,
    native,
    post,
    serve,
    stream,
    with_server,
)

from dflash.backends.simulated_http import SimulatedServer

LONG = replace(NINE, output_tokens=(90, 90), block_size=8)
VLLM_STARTED = {  # as the three recorded servers were
    "base": ("baseline", None, {}),
    "dflash": ("dflash", 8, {"per_request_metrics": True, "per_request_spec_decode_metrics": "detailed"}),
    "ngram": ("ngram", 6, {"per_request_metrics": True, "cached_tokens_in_usage": True}),
}
SGLANG_ANSWERS: dict[str, tuple[str, dict[str, Any]]] = {  # file -> route, body
    "generate": ("/generate", native()),
    "generate_ids": ("/generate", native()),  # the same prompt again: cached
    "chat": (CHAT["sglang"], chat()),
    "chat_meta": (CHAT["sglang"], chat(return_meta_info=True, return_token_ids=True)),
}


def differences(recorded: Any, ours: Any, path: str = "") -> list[str]:
    """Where `ours` has another key or another type than what was recorded. The first item of a list is compared."""
    if isinstance(recorded, dict) and isinstance(ours, dict):
        found = [f"{path}.{key} only recorded" for key in recorded.keys() - ours.keys()]
        found += [f"{path}.{key} only ours" for key in ours.keys() - recorded.keys()]
        for key in recorded.keys() & ours.keys():
            found += differences(recorded[key], ours[key], f"{path}.{key}")
        return found
    if isinstance(recorded, list) and isinstance(ours, list):
        return differences(recorded[0], ours[0], f"{path}[0]") if recorded and ours else []
    if type(recorded) is not type(ours):
        return [f"{path}: {type(recorded).__name__} recorded, {type(ours).__name__} ours"]
    return []


@pytest.fixture(scope="session")
def vllm_samples(shared_folder: Path) -> Path:
    return sample_folder(shared_folder, "vllm-0.32.0")


@pytest.fixture(scope="session")
def sglang_samples(shared_folder: Path) -> Path:
    return sample_folder(shared_folder, "sglang-0.5.23")


def sample_folder(shared: Path, name: str) -> Path:
    folder = shared / "samples" / name
    if not folder.is_dir():
        pytest.skip(f"the recorded answers of {name} are not here")
    return folder


def first_json(path: Path) -> Any:
    """The document that a file begins with (some have a line of curl's after it)."""
    document, _ = json.JSONDecoder().raw_decode(path.read_text())
    return document


def body_of(path: Path) -> Any:
    document = first_json(path)
    return document.get("body", document)


@pytest.mark.parametrize("name", list(VLLM_STARTED))
def test_vllm_answers_have_the_shape_of_recorded_ones(name: str, vllm_samples: Path) -> None:
    arm, block_size, settings = VLLM_STARTED[name]
    options = {"include_usage": True, "continuous_usage_stats": name == "ngram"}

    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        recorded = first_json(vllm_samples / f"{name}.chat.json")
        assert differences(recorded, await post(client, CHAT["vllm"], chat())) == []
        ours = await stream(client, CHAT["vllm"], chat(limit=20, stream_options=options))
        text = (vllm_samples / f"{name}.stream.txt").read_text()
        theirs = events_of(text)
        for place in (0, 1, -2, -1):  # role, text, finish reason, usage
            assert differences(theirs[place], ours[place]) == [], place
        for path in ("/v1/models", "/version"):
            file = vllm_samples / f"{name}.{path.rsplit('/', 1)[1]}.json"
            assert differences(first_json(file), await get(client, path)) == []
        async with client.get("/health") as response:
            assert (response.status, await response.read()) == (200, b"")

    serve("vllm", with_server(PLAIN, **settings), work, arm=arm, block_size=block_size)


def metric_shapes(text: str) -> set[tuple[str, str, frozenset[str]]]:
    """Family, its type and the names of its labels; buckets have the same ones with `le`."""
    return {
        (family.name, family.type, frozenset(sample.labels))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.startswith(("python_", "process_", "http_", "vllm:cache_config", "sglang:http_"))
    }


@pytest.mark.parametrize("name", ["base", "dflash", "ngram"])
def test_vllm_metrics_have_the_families_and_labels_of_recorded_ones(name: str, vllm_samples: Path) -> None:
    arm, block_size, settings = VLLM_STARTED[name]

    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> str:
        await post(client, CHAT["vllm"], chat())
        async with client.get("/metrics") as response:
            return await response.text()

    ours = serve("vllm", with_server(PLAIN, **settings), work, arm=arm, block_size=block_size)
    theirs = (vllm_samples / f"{name}.metrics.after.txt").read_text()
    assert metric_shapes(ours) == metric_shapes(theirs)
    assert ("spec_decode" in ours) == (arm != "baseline")


@pytest.mark.parametrize("name", ["base", "dflash"])
def test_sglang_answers_have_the_shape_of_recorded_ones(name: str, sglang_samples: Path) -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        for file, (route, body) in SGLANG_ANSWERS.items():
            ours = await post(client, route, body)
            assert differences(body_of(sglang_samples / f"{name}-{file}.json"), ours) == [], file
        for kind, route, body in (
            ("generate", "/generate", native(limit=12)),
            ("chat", CHAT["sglang"], chat(limit=8, stream_options={"include_usage": True})),
        ):
            events = await stream(client, route, body)
            theirs = events_of((sglang_samples / f"{name}-{kind}_stream.txt").read_text())
            for place in (0, 1, -2, -1):
                if kind == "chat" or place != -2:
                    assert differences(theirs[place], events[place]) == [], (kind, place)
        for path in ("model_info", "get_model_info", "server_info", "get_server_info"):
            file = sglang_samples / f"{name}-{path}.json"
            assert differences(body_of(file), await get(client, f"/{path}")) == [], path
        for path in ("v1/models", "v1/loads"):
            file = f"{name}-{path.replace('/', '_').removeprefix('v1_loads') or 'loads'}.json"
            assert differences(body_of(sglang_samples / file), await get(client, f"/{path}")) == [], path
        async with client.get("/health") as response:
            assert (response.status, await response.read()) == (200, b"")

    serve("sglang", LONG, work, arm="baseline" if name == "base" else name)


@pytest.mark.parametrize("limit", [1, 2, 33, 40])
def test_sglang_counts_have_the_shape_of_recorded_ones(limit: int, sglang_samples: Path) -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        if limit != 33:  # that one was recorded with an empty cache
            await post(client, "/generate", native())
        ours = await post(client, "/generate", native(limit=limit))
        recorded = first_json(sglang_samples / f"dflash-repeat-{limit}.json")
        assert differences(recorded, ours) == []
        names = [key for key in recorded["meta_info"] if key.startswith("spec_")]
        assert {key: ours["meta_info"][key] for key in names} == {
            key: recorded["meta_info"][key] for key in names
        }
        details = await post(client, CHAT["sglang"], chat(limit=20, return_spec_tokens_details=True))
        recorded = first_json(sglang_samples / "dflash-repeat-chat-specdetails.json")
        assert differences(recorded, details) == []
        assert details["sglext"] == recorded["sglext"]

    serve("sglang", LONG, work, arm="dflash")


@pytest.mark.parametrize("name", ["base", "dflash"])
def test_sglang_metrics_have_the_families_and_labels_of_recorded_ones(
    name: str, sglang_samples: Path
) -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> str:
        for _ in range(2):
            await post(client, "/generate", native())
            await stream(client, "/generate", native())
        async with client.get("/metrics") as response:
            return await response.text()

    ours = serve("sglang", NINE, work, arm="baseline" if name == "base" else name)
    theirs = (sglang_samples / f"{name}-metrics.txt").read_text().removeprefix("HTTP 200\n")
    assert metric_shapes(ours) == metric_shapes(theirs)


def test_sglang_refuses_as_recorded(sglang_samples: Path) -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        asked = {
            "bad_temp": native(sampling_params={"temperature": -1}),
            "too_long": {"input_ids": [1] * 5001, "sampling_params": {"temperature": 0}},
        }
        for name, body in asked.items():
            recorded = first_json(sglang_samples / f"base-{name}.json")
            async with client.post("/generate", json=body) as response:
                assert response.status == recorded["status"]
                assert await response.json() == recorded["body"]
        async with client.get("/get_load") as response:
            recorded = first_json(sglang_samples / "base-get_load.json")
            assert (response.status, await response.json()) == (recorded["status"], recorded["body"])
        for method in ("get", "post"):
            async with client.request(method, "/flush_cache") as response:
                text = (sglang_samples / f"base-flush_{method}.txt").read_text()
                assert f"HTTP {response.status}\n{await response.text()}".strip() == text.strip()

    serve("sglang", with_server(NINE, max_model_len=2048), work)
