"""What users of serving benchmarks were hit by, as tests of the whole path on simulated servers: the faults and
rules that lie between the rooms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_prompts import EXACT, made_up_prompts

import dflash.execution
import dflash.runner
from dflash.backends.base import BackendSettings
from dflash.backends.http import HttpClient
from dflash.backends.scenario import Fault, ServerSettings
from dflash.backends.sglang import SglangBackend
from dflash.backends.simulated import SimulatedBackend
from dflash.backends.simulated_http import simulated_server_thread
from dflash.backends.vllm import VllmBackend
from dflash.config import BenchmarkConfig
from dflash.errors import UsageError
from dflash.execution import Outcome, backend_settings
from dflash.results.document import json_document
from dflash.results.summary import summarise_run
from dflash.runner import execute

PROTOCOLS = ("vllm", "sglang")
SCENARIO = replace(EXACT, server=ServerSettings(per_request_spec_decode_metrics="detailed"))


@contextmanager
def a_server(protocol: str, *faults: Fault, arm: str = "baseline") -> Iterator[Any]:
    scenario = replace(SCENARIO, faults=faults)
    block_size = None if arm == "baseline" else 4
    with simulated_server_thread(protocol, scenario, arm=arm, block_size=block_size, time_scale=0) as server:
        yield server


def run_on(server: Any, folder: Path, protocol: str, **settings: Any) -> Outcome:
    values: dict[str, Any] = {"base_url": server.url, "run_name": "run", "num_warmup": 0, **settings}
    config = BenchmarkConfig(backend=protocol, output_dir=folder, **values)
    kind = VllmBackend if protocol == "vllm" else SglangBackend
    return execute(config, backend=kind(backend_settings(config), quiet_s=0.02))


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = made_up_prompts(6)
    monkeypatch.setattr(dflash.runner, "load_prompt_sets", lambda config: (prompts,))
    monkeypatch.setattr(dflash.execution, "load_warmup_texts", lambda: ("warm", "up"))


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is sent to be answered, in order."""
    sent: list[dict[str, Any]] = []
    stream = HttpClient.stream

    async def keep(client: HttpClient, path: str, body: dict[str, Any], consume: Any) -> Any:
        sent.append(json.loads(json.dumps(body)))
        return await stream(client, path, body, consume)

    monkeypatch.setattr(HttpClient, "stream", keep)
    return sent


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fault_25_warm_up_runs_at_the_measured_concurrency(tmp_path: Path, protocol: str) -> None:
    with a_server(protocol) as server:
        run_on(server, tmp_path, protocol, concurrencies=(3,), num_warmup=None)
        log = server.log()
    texts = log[-9:-6] if len(log) >= 9 else []
    assert len(texts) == 3, "as many as are kept in flight"
    starts, ends = [entry.arrival_ns for entry in texts], [entry.ended_ns for entry in texts]
    assert max(starts) < max(ends)
    assert max(ends) <= min(entry.arrival_ns for entry in log[-6:]), "before anything is measured"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fault_26_sampling_is_always_sent(
    tmp_path: Path, protocol: str, bodies: list[dict[str, Any]]
) -> None:
    with a_server(protocol) as server:
        run_on(server, tmp_path, protocol)
    assert bodies
    assert all(body["temperature"] == 0 for body in bodies)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fault_42_no_prompt_is_sent_twice_unless_asked(tmp_path: Path, protocol: str) -> None:
    with a_server(protocol) as server:
        run = run_on(server, tmp_path, protocol, num_prompts=50).run
    assert len(run.records) == len({record.prompt_id for record in run.records}) == 6


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fault_43_top_k_is_sent_only_when_asked(
    tmp_path: Path, protocol: str, bodies: list[dict[str, Any]]
) -> None:
    with a_server(protocol) as server:
        run_on(server, tmp_path, protocol, temperature=0.7)
        without, sampled = len(bodies), [body for body in bodies if body["temperature"] > 0]
        run_on(server, tmp_path, protocol, temperature=0.7, top_k=20, run_name="top-k")
    assert len(sampled) >= 6
    assert not any("top_k" in body for body in sampled)
    asked = [body for body in bodies[without:] if body["temperature"] > 0]
    assert len(asked) >= 6
    assert all(body["top_k"] == 20 for body in asked)


def test_rule_4_every_level_and_backend_sees_the_same_prompts(tmp_path: Path) -> None:
    seen = []
    for protocol in PROTOCOLS:
        with a_server(protocol) as server:
            run = run_on(server, tmp_path / protocol, protocol, concurrencies=(1, 3)).run
        for cell in run.info.cells:
            mine = [record for record in run.records if record.cell_id == cell.cell_id]
            seen.append({record.prompt_id: record.prompt_digest for record in mine})
    assert len(seen) == 4
    assert all(digests.keys() == seen[0].keys() for digests in seen)
    assert seen[0] == seen[1], "two levels, one server"
    assert seen[2] == seen[3]
    config = BenchmarkConfig(backend="simulated", output_dir=tmp_path, run_name="in-process", num_warmup=0)
    in_process = execute(config, backend=SimulatedBackend(BackendSettings(), EXACT)).run
    assert {record.prompt_id for record in in_process.records} == set(seen[0])
    assert {cell.workload.prompts_digest for cell in in_process.info.cells} == {
        cell.workload.prompts_digest for cell in run.info.cells
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rule_8_counters_that_begin_anew_are_not_a_number(tmp_path: Path, protocol: str) -> None:
    """The counters fall to 0 in the middle: what they say is n/a with the reason, never 0 or 1."""
    fault = Fault("counter_reset", prompt="question 3")
    with a_server(protocol, fault, arm="dflash") as server:
        outcome = run_on(server, tmp_path, protocol)
    run = outcome.run
    (cell,) = json_document(run, summarise_run(run), 0)["cells"]
    assert cell["acceptance_length_untrimmed_counters"] is None
    assert cell["acceptance_length_counters"] is None
    assert cell["counters"]["state"] in ("reset", "too_low", "unlike")
    assert cell["acceptance_length"]["value"] == pytest.approx(4.0), "each answer has its own counts"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rule_8_foreign_traffic_is_seen(tmp_path: Path, protocol: str) -> None:
    fault = Fault("foreign_traffic", prompt="question 3")
    with a_server(protocol, fault, arm="dflash") as server:
        run = run_on(server, tmp_path, protocol).run
    (cell,) = json_document(run, summarise_run(run), 0)["cells"]
    assert cell["counters"]["state"] == "contaminated"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault("cut", prompt="question 3", after_tokens=3), "stream_cut"),
        (Fault("status", prompt="question 3", status=500), "http_500"),
        (Fault("error_event", prompt="question 3", after_tokens=3), "server_error"),
        (Fault("missing_usage", prompt="question 3"), "no_usage"),
        (Fault("wrong_usage", prompt="question 3", delta=-3), "wrong_usage"),
        (Fault("missing_finish", prompt="question 3"), "no_finish_reason"),
        (Fault("garbage", prompt="question 3", after_tokens=3), "bad_event"),
        (Fault("oversized", prompt="question 3", after_tokens=3, size_bytes=17 << 20), "bad_event"),
        (Fault("hang", prompt="question 3", seconds=5), "first_token_timeout"),
        (Fault("hang", prompt="question 3", seconds=5, after_tokens=3), "chunk_timeout"),
        (Fault("slow_headers", prompt="question 3", seconds=5), "first_token_timeout"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rule_9_a_failed_request_costs_nothing_else(
    tmp_path: Path, protocol: str, fault: Fault, kind: str
) -> None:
    with a_server(protocol, fault, arm="dflash") as server:
        outcome = run_on(server, tmp_path, protocol, first_token_timeout_s=1.0, chunk_timeout_s=1.0)
    assert outcome.error is not None
    assert getattr(outcome.error, "exit_code", None) == 3
    records = outcome.run.records
    assert [record.error_kind for record in records if not record.completed] == [kind]
    assert sum(record.completed for record in records) == 5
    for record in records:
        if record.completed:
            assert (record.num_output_tokens, record.num_decode_steps, record.num_accepted_tokens) == (
                9,
                2,
                6,
            )
    info = outcome.run.info
    assert info.dflash_version
    assert info.environment["machine"]
    assert info.environment["engine"]
    assert info.cells[0].workload.seed == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", prompt="question 3", status=429, retry_after_s=0, times=2),
        Fault("status", prompt="question 3", status=503, retry_after_s=0, times=1),
        Fault("slow_headers", prompt="question 3", seconds=0.1, times=1),
        Fault("refuse", request=5, seconds=0.2),
    ],
    ids=lambda fault: f"{fault.action} {fault.status or ''}",
)
def test_rule_9_what_passes_is_waited_for_and_counted(tmp_path: Path, protocol: str, fault: Fault) -> None:
    """A refusal before the first token is no failure: it is tried again, a few times, and stamped."""
    with a_server(protocol, fault, arm="dflash") as server:
        outcome = run_on(server, tmp_path, protocol)
    done = [record for record in outcome.run.records if record.completed]
    if fault.action == "refuse":  # open connections live on; what comes while it refuses is tried again
        assert len(done) >= 5
        return
    assert len(done) == 6
    retries = sum(record.num_retries for record in done)
    assert retries == (fault.times if fault.action == "status" else 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rule_9_a_restart_in_the_middle_is_survived(tmp_path: Path, protocol: str) -> None:
    fault = Fault("restart", prompt="question 3", seconds=0.2, times=1)
    with a_server(protocol, fault, arm="dflash") as server:
        outcome = run_on(server, tmp_path, protocol, max_error_rate=0.5)
        assert sum(record.completed for record in outcome.run.records) >= 4
        again = run_on(server, tmp_path, protocol)
    assert sum(record.completed for record in again.run.records) == 6
    assert len(again.run.records) == 6


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_block_size_that_no_server_drafts_with_is_refused(tmp_path: Path, protocol: str) -> None:
    with (
        a_server(protocol) as server,
        pytest.raises(UsageError, match="--block-size 8 is for servers that draft"),
    ):
        run_on(server, tmp_path, protocol, block_sizes=(8,))
