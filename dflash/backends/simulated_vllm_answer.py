"""How vLLM gives an answer: streamed objects without what was not set, documents with nulls."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from dflash.backends.simulated_engine import Job
from dflash.backends.simulated_requests import DONE, ApiError, Format
from dflash.backends.simulated_vllm_metrics import CACHE_BLOCK_TOKENS

if TYPE_CHECKING:
    from dflash.backends.simulated_vllm import VllmDialect

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """What a request asks of its answer's form."""

    is_chat: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool


class VllmFormat(Format):
    """One answer. Every streamed object leaves out what was not set, as the engine does."""

    def __init__(self, dialect: VllmDialect, job: Job, options: VllmOptions) -> None:
        self._dialect, self._job, self._options = dialect, job, options
        self._created = int(time.time())
        kind = "chatcmpl" if options.is_chat else "cmpl"
        self._id = (
            f"{kind}-{hashlib.sha256(f'{job.log.number} {job.log.arrival_ns}'.encode()).hexdigest()[:16]}"
        )
        model = orjson.dumps(dialect.settings.model)
        of_stream = b"chat.completion.chunk" if options.is_chat else b"text_completion"
        self._head = b'{"id":"%b","object":"%b","created":%d,"model":%b,"choices":[' % (
            self._id.encode(),
            of_stream,
            self._created,
            model,
        )
        self._last_chunk = len(job.answer.script.steps)
        self._num_sent = 0

    def events(self, index: int) -> list[bytes]:
        job, is_last = self._job, index == self._last_chunk
        text, ids = orjson.dumps(job.answer.chunk_texts[index]), b"null"
        if self._options.return_token_ids:
            ids = orjson.dumps(job.answer.chunk_ids[index])
        finish, stop = b"null", b""
        if is_last and not job.fails_with("missing_finish"):
            finish, stop = b'"%b"' % job.answer.script.finish_reason.encode(), b',"stop_reason":null'
        events = []
        if self._options.is_chat:
            if index == 0:
                events.append(self._role_event())
            choice = (
                b'{"index":0,"delta":{"content":%b},"logprobs":null,"finish_reason":%b%b,"token_ids":%b}'
                % (text, finish, stop, ids)
            )
        else:
            prompt = b"null"
            if index == 0 and self._options.return_token_ids:
                prompt = orjson.dumps(job.prompt)
            choice = (
                b'{"index":0,"text":%b,"logprobs":null,"finish_reason":%b,"stop_reason":null,'
                b'"prompt_token_ids":%b,"token_ids":%b}' % (text, finish, prompt, ids)
            )
        self._num_sent += len(job.answer.chunk_ids[index])
        tail = b""
        if is_last and not self._options.include_usage:
            tail = b',"system_fingerprint":%b' % orjson.dumps(self._dialect.fingerprint)
        events.append(b"data: %b%b]%b%b}\n\n" % (self._head, choice, self._usage_so_far(), tail))
        return events

    def ending(self) -> list[bytes]:
        if not self._options.include_usage or self._job.fails_with("missing_usage"):
            return [DONE]
        document: dict[str, Any] = {
            "usage": self._usage(is_stream=True),
            "system_fingerprint": self._dialect.fingerprint,
        }
        metrics = self._metrics(is_stream=True)
        if metrics is not None:
            document["metrics"] = metrics
        return [b"data: %b],%b\n\n" % (self._head, orjson.dumps(document)[1:]), DONE]

    def error_event(self, message: str) -> bytes:
        error = ApiError(message, status=500)
        return b"data: %b\n\n" % orjson.dumps(self._dialect.error_document(error, ""))

    def document(self) -> dict[str, Any]:
        job, is_chat, dialect = self._job, self._options.is_chat, self._dialect
        with_ids = self._options.return_token_ids
        prompt = list(job.prompt) if with_ids else None
        choice: dict[str, Any] = {
            "index": 0,
            "logprobs": None,
            "finish_reason": None if job.fails_with("missing_finish") else job.answer.script.finish_reason,
            "stop_reason": None,
            "token_ids": list(job.answer.script.output_ids) if with_ids else None,
            "routed_experts": None,
        }
        document: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion" if is_chat else "text_completion",
            "created": self._created,
            "model": dialect.settings.model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": dialect.fingerprint,
            "usage": None if job.fails_with("missing_usage") else self._usage(is_stream=False),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": self._metrics(is_stream=False),
        }
        if is_chat:
            names = ("refusal", "annotations", "audio", "function_call", "reasoning")
            message = {"role": "assistant", "content": job.answer.text, **dict.fromkeys(names)}
            choice["message"] = message
            return {**document, "prompt_logprobs": None, "prompt_token_ids": prompt, "prompt_text": None}
        return {
            **document,
            "choices": [
                {**choice, "text": job.answer.text, "prompt_logprobs": None, "prompt_token_ids": prompt}
            ],
        }

    def _role_event(self) -> bytes:
        prompt = orjson.dumps(self._job.prompt) if self._options.return_token_ids else b"null"
        choice = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        usage = self._usage_so_far()
        tail = b',"prompt_token_ids":%b,"prompt_text":null' % prompt
        return b"data: %b%b]%b%b}\n\n" % (self._head, choice, usage, tail)

    def _usage_so_far(self) -> bytes:
        if not self._options.continuous_usage or self._job.fails_with("missing_usage"):
            return b""
        prompt, sent = len(self._job.prompt), self._num_sent
        details = b',"completion_tokens_details":null' if self._options.is_chat else b""
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}' % (
            prompt,
            prompt + sent,
            sent,
            details,
        )

    def _usage(self, *, is_stream: bool) -> dict[str, Any]:
        job = self._job
        prompt, sent = len(job.prompt), job.log.num_output_tokens
        if job.fault is not None and job.fault.action == "wrong_usage":
            sent += job.fault.delta
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + sent,
            "completion_tokens": sent,
        }
        details = self._prompt_details(is_stream) if self._dialect.settings.cached_tokens_in_usage else None
        if is_stream:
            return usage if details is None else {**usage, "prompt_tokens_details": details}
        return {**usage, "prompt_tokens_details": details, "completion_tokens_details": None}

    def _prompt_details(self, is_stream: bool) -> dict[str, Any]:
        log, size = self._job.log, CACHE_BLOCK_TOKENS
        stored = log.num_prompt_tokens // size * size if self._dialect.settings.prefix_cache else 0
        details: dict[str, Any] = {"cached_tokens": log.num_cached_tokens}
        if self._options.is_chat:
            details["created_cache_tokens"] = max(stored - log.num_cached_tokens, 0)
        if is_stream:
            return details
        return {"created_cache_tokens": None, **details, "multimodal_tokens": None}

    def _metrics(self, *, is_stream: bool) -> dict[str, Any] | None:
        """Times and speculation; a stream leaves out what is not there, a document has it as null."""
        settings, log = self._dialect.settings, self._job.log
        names = ("time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms")
        metrics: dict[str, Any] = dict.fromkeys((*names, "tokens_per_second"))
        started_ns = log.started_ns or log.arrival_ns
        if settings.per_request_metrics:
            first_ns, last_ns = log.chunk_sent_ns[0], log.chunk_sent_ns[-1]
            decode_ms, decode_tokens = (last_ns - first_ns) / _NS_PER_MS, log.num_output_tokens - 1
            times_ms = (
                (first_ns - started_ns) / _NS_PER_MS,
                decode_ms,
                (started_ns - log.arrival_ns) / _NS_PER_MS,
                decode_ms / decode_tokens if decode_tokens else None,
            )
            metrics.update(zip(names, times_ms, strict=True))
            metrics["tokens_per_second"] = log.num_output_tokens / max(last_ns - started_ns, 1) * 1e9
        speculation = self._speculation()
        if speculation is None and not settings.per_request_metrics:
            return None
        metrics["speculative_decoding"] = speculation
        if not is_stream:
            return metrics
        if speculation is not None:
            metrics["speculative_decoding"] = {
                name: value for name, value in speculation.items() if value is not None
            }
        return {name: value for name, value in metrics.items() if value is not None}

    def _speculation(self) -> dict[str, Any] | None:
        level, log = self._dialect.settings.per_request_spec_decode_metrics, self._job.log
        width = self._job.answer.script.num_step_draft_tokens
        if level == "none" or not width:
            return None
        steps, accepted = log.num_verify_steps, log.num_accepted_tokens
        is_detailed = level == "detailed" and steps > 0
        return {
            "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
            "draft_acceptance_rate": accepted / log.num_draft_tokens if log.num_draft_tokens else 0.0,
            "acceptance_histogram": [log.step_num_accepted.count(number) for number in range(width + 1)],
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": log.num_draft_tokens,
            "num_spec_tokens": width,
            "per_step_accepted": list(log.step_num_accepted) if is_detailed else None,
            "per_step_drafted": [width] * steps if is_detailed else None,
        }
