"""vLLM's counters of a simulated engine. The speculative ones are absent without speculation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dflash.backends.scenario import ServerSettings
from dflash.backends.simulated_engine import SimulatedEngine
from dflash.backends.simulated_metrics import render_metrics

CACHE_BLOCK_TOKENS = 16
VLLM_FAMILIES = """
c speculation spec_decode_num_drafts_total
c speculation spec_decode_num_draft_tokens_total
c speculation spec_decode_num_accepted_tokens_total
c speculation spec_decode_num_accepted_tokens_per_pos_total position POSITIONS
c engine estimated_flops_per_gpu_total
c engine estimated_read_bytes_per_gpu_total
c engine estimated_write_bytes_per_gpu_total
g engine num_requests_running
g engine num_requests_waiting
g engine num_requests_waiting_by_reason reason capacity deferred
g engine engine_sleep_state sleep_state awake weights_offloaded discard_all
g engine kv_cache_usage_perc
c engine prefix_cache_queries_total
c engine prefix_cache_hits_total
c engine external_prefix_cache_queries_total
c engine external_prefix_cache_hits_total
c engine mm_cache_queries_total
c engine mm_cache_hits_total
c engine num_preemptions_total
c engine prompt_tokens_total
c engine prompt_tokens_by_source_total source local_compute local_cache_hit external_kv_transfer
c engine prompt_tokens_cached_total
c engine prompt_tokens_cached_by_source_total source device host p2p disk external_unspecified
c engine generation_tokens_total
c engine request_success_total finished_reason stop length abort error repetition
c model admission_rejections_total reason max_num_queued_reqs max_num_queued_tokens
h engine request_prompt_tokens
h engine request_generation_tokens
h engine iteration_tokens_total
h engine request_max_num_generation_tokens
h engine request_params_n
h engine request_params_max_tokens
h engine time_to_first_token_seconds
h engine inter_token_latency_seconds
h engine request_time_per_output_token_seconds
h engine e2e_request_latency_seconds
h engine request_queue_time_seconds
h engine request_inference_time_seconds
h engine request_prefill_time_seconds
h engine request_decode_time_seconds
h engine request_num_preemptions
h engine request_prefill_kv_computed_tokens
"""


def vllm_metrics_text(engine: SimulatedEngine, settings: ServerSettings, started_at: float) -> str:
    """All counters now, a series per engine."""
    model = {"model_name": settings.model}
    engines = [{"engine": str(number), **model} for number in range(len(engine.ranks))]
    scopes: dict[str, Sequence[Mapping[str, str]]] = {"engine": engines, "model": [model]}
    families = VLLM_FAMILIES
    width = (engine.block_size or 1) - 1
    if width:
        scopes["speculation"] = engines
        families = families.replace("POSITIONS", " ".join(map(str, range(width))))
    info = ",".join(
        f'{name}="{value}"'
        for name, value in (
            ("block_size", CACHE_BLOCK_TOKENS),
            ("enable_prefix_caching", settings.prefix_cache),
            ("engine", 0),
        )
    )
    text = render_metrics(families, "vllm:", scopes, _values(engine, settings, width), started_at)
    return (
        f"{text}# HELP vllm:cache_config_info How the cache is set up.\n"
        f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{info}}} 1.0\n"
    )


def _values(
    engine: SimulatedEngine, settings: ServerSettings, width: int
) -> dict[tuple[str, str], list[float]]:
    ranks = engine.ranks
    counters = [rank.counters for rank in ranks]
    finished = [sum(total[0] for total in item.totals_by_stream.values()) for item in counters]
    ended = {
        "request_prompt_tokens": 1,
        "request_generation_tokens": 2,
        "request_max_num_generation_tokens": 2,
    }
    values: dict[tuple[str, str], list[float]] = {
        ("spec_decode_num_drafts_total", ""): [item.num_verify_steps for item in counters],
        ("spec_decode_num_draft_tokens_total", ""): [item.num_draft_tokens for item in counters],
        ("spec_decode_num_accepted_tokens_total", ""): [item.num_accepted_tokens for item in counters],
        ("num_requests_running", ""): [len(rank.running) for rank in ranks],
        ("num_requests_waiting", ""): [len(rank.waiting) for rank in ranks],
        ("num_requests_waiting_by_reason", "capacity"): [len(rank.waiting) for rank in ranks],
        ("engine_sleep_state", "awake"): [1] * len(ranks),
        ("prompt_tokens_total", ""): [item.num_prompt_tokens for item in counters],
        ("prompt_tokens_by_source_total", "local_compute"): [
            item.num_prompt_tokens - item.num_cached_tokens for item in counters
        ],
        ("prompt_tokens_by_source_total", "local_cache_hit"): [item.num_cached_tokens for item in counters],
        ("prompt_tokens_cached_total", ""): [item.num_cached_tokens for item in counters],
        ("prompt_tokens_cached_by_source_total", "device"): [item.num_cached_tokens for item in counters],
        ("generation_tokens_total", ""): [item.num_output_tokens for item in counters],
    }
    if settings.prefix_cache:
        values["prefix_cache_queries_total", ""] = [item.num_prompt_tokens for item in counters]
        values["prefix_cache_hits_total", ""] = [item.num_cached_tokens for item in counters]
    for position in range(width):
        accepted = [float(item.num_accepted_at(position)) for item in counters]
        values["spec_decode_num_accepted_tokens_per_pos_total", str(position)] = accepted
    for reason in ("stop", "length", "abort"):
        values["request_success_total", reason] = [item.finished.get(reason, 0) for item in counters]
    for name, place in ended.items():
        values[f"{name}_count", ""] = [float(number) for number in finished]
        sums = [sum(total[place] for total in item.totals_by_stream.values()) for item in counters]
        values[f"{name}_sum", ""] = [float(number) for number in sums]
    times = {
        "time_to_first_token_seconds": [item.queue_s + item.prefill_s for item in counters],
        "e2e_request_latency_seconds": [item.queue_s + item.prefill_s + item.decode_s for item in counters],
        "request_queue_time_seconds": [item.queue_s for item in counters],
        "request_inference_time_seconds": [item.prefill_s + item.decode_s for item in counters],
        "request_prefill_time_seconds": [item.prefill_s for item in counters],
        "request_decode_time_seconds": [item.decode_s for item in counters],
        "request_time_per_output_token_seconds": [item.tpot_s for item in counters],
    }
    for name, sums_s in times.items():
        values[f"{name}_count", ""] = [item.num_timed for item in counters]
        values[f"{name}_sum", ""] = sums_s
    return values
