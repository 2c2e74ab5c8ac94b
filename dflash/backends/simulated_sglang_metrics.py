"""SGLang's counters of a simulated engine. The labelled ones are absent until their first request has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dflash.backends.scenario import ServerSettings
from dflash.backends.simulated_engine import SimulatedEngine
from dflash.backends.simulated_metrics import render_metrics

SGLANG_FAMILIES = """
g process routing_keys_active
c rank prefill_effective_tokens_total mode input device_hit host_hit storage_hit
c rank scheduler_idle_seconds_total
c rank scheduler_process_cpu_seconds_total
c rank scheduler_stage_seconds_total category,forward_overlap run_batch|none idle|none
c rank dp_attention_tokens_total kind scheduled imbalance
c rank dp_attention_steps_total rank_state active idle
c rank dp_attention_pairs_total kind scheduled imbalance
c rank cuda_graph_passes_total mode prefill_none decode_none
c rank realtime_tokens_total mode prefill_compute decode prefill_cache
h rank dp_attention_token_imbalance_ratio
h rank dp_attention_sync_wait_seconds
h rank per_stage_req_latency_seconds stage request_process prefill_forward
h rank queue_time_seconds
h seen time_to_first_token_seconds is_streaming false true
h seen e2e_request_latency_seconds is_streaming false true
h seen request_time_per_output_token_seconds is_streaming false true
h seen prompt_tokens_histogram
h seen uncached_prompt_tokens_histogram
h seen generation_tokens_histogram
h seen inter_token_latency_seconds
g server startup_time_seconds phase load_weight kv_cache_allocation scheduler_e2e tokenizer_e2e
g server startup_cuda_graph_time_seconds phase prefill decode target_verify draft_prefill draft_decode draft_extend
c process process_cpu_seconds_total component tokenizer detokenizer
c seen prompt_tokens_total is_streaming false true
c seen generation_tokens_total is_streaming false true
c seen spec_verify_calls_total
c seen num_requests_total is_streaming false true
c seen cached_tokens_total cache_source device
g rank max_total_num_tokens
g rank weight_memory_usage_gb
g rank kv_cache_memory_usage_gb
g rank graph_memory_usage_gb phase prefill decode target_verify draft_prefill draft_decode draft_extend
g rank page_size
g rank num_pages
g rank context_len
g rank startup_available_gpu_memory_gb
g rank num_running_reqs
g rank num_queue_reqs
g rank num_grammar_queue_reqs
g rank gen_throughput
g rank cache_hit_rate
g rank decode_sum_seq_lens
g rank token_usage
g rank full_token_usage
g rank swa_token_usage
g rank mamba_usage
g rank num_used_tokens
g rank kv_available_tokens
g rank kv_evictable_tokens
g rank kv_used_tokens
g rank swa_available_tokens
g rank swa_evictable_tokens
g rank swa_used_tokens
g rank mamba_available_tokens
g rank mamba_evictable_tokens
g rank mamba_used_tokens
g rank spec_accept_length
g rank spec_accept_rate
g rank spec_cap_length
g rank spec_block_accept_length
g rank spec_num_steps
g rank spec_num_draft_tokens
g rank num_prefill_bootstrap_queue_reqs
g rank num_prefill_inflight_queue_reqs
g rank num_decode_prealloc_queue_reqs
g rank num_decode_transfer_queue_reqs
g rank num_decode_host_receive_queue_reqs
g rank num_decode_deferred_kv_release_reqs
g rank pending_prealloc_token_usage
g rank prealloc_full_token_usage
g rank prealloc_swa_token_usage
g rank utilization
g rank fwd_occupancy
g rank new_token_ratio
g rank is_cuda_graph
g rank num_unique_running_routing_keys
g rank routing_key_running_req_count gt,le 0|1 1|2 2|3 3|5 5|7 7|10 10|20 20|50 50|100 100|200 200|+Inf
g rank routing_key_all_req_count gt,le 0|1 1|2 2|3 3|5 5|7 7|10 10|20 20|50 50|100 100|200 200|+Inf
g rank num_retracted_reqs pid 1
g rank num_paused_reqs pid 1
"""


def sglang_metrics_text(engine: SimulatedEngine, settings: ServerSettings) -> str:
    """All counters now; with several DP ranks, a series per rank."""
    ranks = engine.ranks
    common = {"engine_type": "unified", "model_name": settings.model}
    place = {"moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
    by_rank: list[dict[str, str]] = [{"dp_rank": str(n)} for n in range(len(ranks))]
    if len(ranks) == 1:
        by_rank = [{}]
    scopes: dict[str, Sequence[Mapping[str, str]]] = {
        "process": [{}],
        "server": [common],
        "seen": [{**common, **own} for own in by_rank],
        "rank": [{**common, **place, **own} for own in by_rank],
    }
    return render_metrics(SGLANG_FAMILIES, "sglang:", scopes, _values(engine, settings))


def _values(engine: SimulatedEngine, settings: ServerSettings) -> dict[tuple[str, str], list[float | None]]:
    ranks = engine.ranks
    counters = [rank.counters for rank in ranks]
    block_size = engine.block_size or 0
    drafted = [item.num_draft_tokens for item in counters]
    accepted = [item.num_accepted_tokens for item in counters]
    verified = [item.num_verify_steps for item in counters]
    values: dict[tuple[str, str], list[float | None]] = {
        ("prefill_effective_tokens_total", "input"): [
            item.num_prompt_tokens - item.num_cached_tokens for item in counters
        ],
        ("prefill_effective_tokens_total", "device_hit"): [item.num_cached_tokens for item in counters],
        ("realtime_tokens_total", "prefill_compute"): [
            item.num_prompt_tokens - item.num_cached_tokens for item in counters
        ],
        ("realtime_tokens_total", "prefill_cache"): [item.num_cached_tokens for item in counters],
        ("realtime_tokens_total", "decode"): [item.num_output_tokens for item in counters],
        ("num_running_reqs", ""): [len(rank.running) for rank in ranks],
        ("num_queue_reqs", ""): [len(rank.waiting) for rank in ranks],
        ("cache_hit_rate", ""): [
            item.num_cached_tokens / max(item.num_prompt_tokens, 1) for item in counters
        ],
        ("gen_throughput", ""): [item.output_tok_s for item in counters],
        ("context_len", ""): [settings.max_model_len] * len(ranks),
        ("page_size", ""): [1] * len(ranks),
        ("queue_time_seconds_count", ""): [item.num_timed for item in counters],
        ("queue_time_seconds_sum", ""): [item.queue_s for item in counters],
        ("spec_num_draft_tokens", ""): [block_size] * len(ranks),
        ("spec_num_steps", ""): [min(block_size, 1)] * len(ranks),
        ("spec_accept_length", ""): [
            1 + more / steps if steps else 0 for more, steps in zip(accepted, verified, strict=True)
        ],
        ("spec_accept_rate", ""): [
            more / most if most else 0 for more, most in zip(accepted, drafted, strict=True)
        ],
    }
    totals = {kind: [item.totals_by_stream[kind] for item in counters] for kind in (False, True)}
    for kind, by_rank in totals.items():
        word = str(kind).lower()
        for name, column in (("num_requests", 0), ("prompt_tokens", 1), ("generation_tokens", 2)):
            values[f"{name}_total", word] = [_seen(total[column], total[0]) for total in by_rank]
        for name in ("time_to_first_token", "e2e_request_latency", "request_time_per_output_token"):
            for part in ("count", "sum"):
                number = [_seen(total[0] if part == "count" else 0, total[0]) for total in by_rank]
                values[f"{name}_seconds_{part}", word] = number
    both = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(*totals.values(), strict=True)]
    values["spec_verify_calls_total", ""] = [_seen(total[3], total[3]) for total in both]
    values["cached_tokens_total", "device"] = [_seen(total[4], total[4]) for total in both]
    for name, column in (("prompt_tokens", 1), ("generation_tokens", 2)):
        values[f"{name}_histogram_count", ""] = [_seen(total[0], total[0]) for total in both]
        values[f"{name}_histogram_sum", ""] = [_seen(total[column], total[0]) for total in both]
    values["uncached_prompt_tokens_histogram_count", ""] = [_seen(total[0], total[0]) for total in both]
    values["uncached_prompt_tokens_histogram_sum", ""] = [
        _seen(total[1] - total[4], total[0]) for total in both
    ]
    for part in ("count", "sum"):
        values[f"inter_token_latency_seconds_{part}", ""] = [_seen(0, total[0]) for total in both]
    return values


def _seen(value: float, times: float) -> float | None:
    """Nothing is said of what never happened."""
    return value if times else None
