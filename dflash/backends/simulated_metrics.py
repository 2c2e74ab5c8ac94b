"""The Prometheus text of the simulated servers: every family that the recorded servers gave, most of them at 0.

A row of a table is: kind (c counter, g gauge, h histogram), scope (which common labels its series have), name,
then, for families with labels of their own, the labels' names and the values of each series. Histograms have no
bucket but the last: their counts and sums are right, their shape is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Labels = Mapping[str, str]
# (family, values of its own labels) -> the value of the series, by place in the scope's list of common labels
Values = Mapping[tuple[str, str], Sequence[float | None]]

_KINDS = {"c": "counter", "g": "gauge", "h": "histogram"}

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


def render_metrics(
    families: str,
    prefix: str,
    scopes: Mapping[str, Sequence[Labels]],
    values: Values,
    created: float | None = None,
) -> str:
    """The text of a table.

    Args:
        scopes: the common labels of each series, by scope; a family whose scope is not in it is left out.
        values: what is not 0. A histogram's are `NAME_count` and `NAME_sum`. A series whose value is None is
            left out, and so is a family with no series.
        created: seconds since the epoch of the `_created` gauges; None: there are none.
    """
    lines: list[str] = []
    for row in families.split("\n"):
        if not row:
            continue
        kind, scope, name, *own = row.split(" ")
        if scope not in scopes:
            continue
        family = f"{prefix}{name}"
        own_names = own[0].split(",") if own else []
        body, stamps = [], []
        for own_values in own[1:] or [""]:
            for place, common in enumerate(scopes[scope]):
                labels = {**common, **dict(zip(own_names, own_values.split("|"), strict=False))}
                series = _series(kind, family, labels, name, own_values, place, values)
                body += series
                if series and created is not None and kind != "g":
                    stamps.append(f"{_created_name(family, kind)}{_braces(labels)} {created!r}")
        if body:
            lines += [
                f"# HELP {family} As the engine of that name counts it.",
                f"# TYPE {family} {_KINDS[kind]}",
            ]
            lines += body
        if stamps:
            name_created = _created_name(family, kind)
            lines += [
                f"# HELP {name_created} When its counting began.",
                f"# TYPE {name_created} gauge",
                *stamps,
            ]
    return "\n".join(lines) + "\n"


def _series(
    kind: str, family: str, labels: Labels, name: str, own_values: str, place: int, values: Values
) -> list[str]:
    def value(of: str) -> float | None:
        known = values.get((of, own_values))
        return 0 if known is None else known[place]

    if kind != "h":
        number = value(name)
        return [] if number is None else [f"{family}{_braces(labels)} {float(number)!r}"]
    count, total = value(f"{name}_count"), value(f"{name}_sum")
    if count is None or total is None:
        return []
    return [
        f"{family}_bucket{_braces({**labels, 'le': '+Inf'})} {float(count)!r}",
        f"{family}_count{_braces(labels)} {float(count)!r}",
        f"{family}_sum{_braces(labels)} {float(total)!r}",
    ]


def _created_name(family: str, kind: str) -> str:
    return f"{family.removesuffix('_total') if kind == 'c' else family}_created"


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{labels[name]}"' for name in sorted(labels)) + "}"
