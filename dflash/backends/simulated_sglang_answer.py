"""How SGLang gives an answer: cumulative native events with `meta_info`, and the two OpenAI forms.

`spec_accept_length` is the engine's own: completion tokens / verify calls, so it counts the prefill's token and
drops when the last step is cut. The speculative fields are absent while there was no verify call.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from dflash.backends.simulated_engine import Job
from dflash.backends.simulated_model import STOP_ID
from dflash.backends.simulated_requests import DONE, Format

if TYPE_CHECKING:
    from dflash.backends.simulated_sglang import SglangDialect

_NS_PER_S = 1e9
# (correct, proposed, histogram) by the first version that has the names
_OLDEST_NAMES = ("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram")
_NAMES_0_5_11 = ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram")
_NAMES_0_5_12 = ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram")


def speculative_names(version: str) -> tuple[tuple[str, str, str], ...]:
    """The names of the counts that a version uses; until 0.5.20 the newest ones came with the older as aliases."""
    number = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    if number < (0, 5, 11):
        return (_OLDEST_NAMES,)
    if number < (0, 5, 12):
        return (_NAMES_0_5_11,)
    return (_NAMES_0_5_12,) if number > (0, 5, 20) else (_NAMES_0_5_12, _NAMES_0_5_11, _OLDEST_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiOptions:
    """What an OpenAI request asks of its answer's form; `beside` is in `sglext`."""

    model: str
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    return_prompt_ids: bool
    return_meta_info: bool
    return_speculation: bool
    return_cached: bool
    return_prompt_ids_beside: bool
    return_token_ids_beside: bool


class _SglangFormat(Format):
    """What the three forms share."""

    def __init__(self, dialect: SglangDialect, job: Job, request_id: str) -> None:
        self._dialect, self._job = dialect, job
        digest = hashlib.sha256(f"{job.log.number} {job.log.arrival_ns}".encode()).hexdigest()
        self._id = request_id or digest[:32]
        self._created = int(time.time())
        self._last_chunk = len(job.answer.script.steps)
        self._num_sent = 0

    def error_event(self, message: str) -> bytes:
        error = {
            "object": "error",
            "message": message,
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        }
        return b"data: %b\n\n" % orjson.dumps({"error": error})

    def _finish_reason(self) -> dict[str, Any] | None:
        script = self._job.answer.script
        if self._job.fails_with("missing_finish"):
            return None
        if script.finish_reason == "length":
            return {"type": "length", "length": len(script.output_ids)}
        return {"type": "stop", "matched": STOP_ID}

    def _completion_tokens(self, num_tokens: int) -> int:
        fault = self._job.fault
        return num_tokens + (fault.delta if fault is not None and fault.action == "wrong_usage" else 0)

    def _early_meta(self) -> dict[str, Any]:
        """The fields before the finish reason's successors: what is known from the first token on."""
        log, epoch_s = self._job.log, self._dialect.server.epoch_s
        started_ns = log.started_ns or log.arrival_ns
        return {
            "prompt_tokens": log.num_prompt_tokens,
            "weight_version": "default",
            "num_retractions": 0,
            "storage_prefetch_wait": 0.0,
            "storage_staging_wait": 0.0,
            "forward_entry_time": epoch_s + started_ns / _NS_PER_S,
            "prefill_finished_time": epoch_s + log.chunk_sent_ns[0] / _NS_PER_S,
            "queue_time": (started_ns - log.arrival_ns) / _NS_PER_S,
            "reasoning_tokens": 0,
        }

    def _cached_meta(self) -> dict[str, Any]:
        cached = self._job.log.num_cached_tokens
        return {
            "cached_tokens_details": {"device": cached, "host": 0} if cached else None,
            "dp_rank": self._job.log.dp_rank,
        }

    def _meta_info(self) -> dict[str, Any]:
        """Of a finished request."""
        log, epoch_s = self._job.log, self._dialect.server.epoch_s
        arrival_s, first_s, last_s = (
            epoch_s + stamp / _NS_PER_S
            for stamp in (log.arrival_ns, log.chunk_sent_ns[0], log.chunk_sent_ns[-1])
        )
        tokens = log.num_output_tokens
        meta = {
            "id": self._id,
            "finish_reason": self._finish_reason(),
            **self._early_meta(),
            "completion_tokens": self._completion_tokens(tokens),
            "cached_tokens": log.num_cached_tokens,
            "weight_versions": [{"version": "default", "start": 0, "end": tokens}],
            **self._cached_meta(),
            "e2e_latency": last_s - arrival_s,
            **self._speculation(),
            "request_received_ts": arrival_s,
            "first_token_latency": first_s - arrival_s,
            "api_server_dispatch_finish_ts": arrival_s,
            "request_finished_ts": last_s,
        }
        if tokens > 1:
            meta["decode_throughput"] = (tokens - 1) / max(last_s - first_s, 1e-9)
        meta["response_sent_to_client_ts"] = last_s
        if self._job.fails_with("missing_usage"):
            del meta["completion_tokens"], meta["prompt_tokens"]
        return meta

    def _speculation(self) -> dict[str, Any]:
        log = self._job.log
        steps, accepted, drafted = log.num_verify_steps, log.num_accepted_tokens, log.num_draft_tokens
        if not steps:
            return {}
        found: dict[str, Any] = {
            "spec_accept_rate": accepted / drafted,
            "spec_accept_length": log.num_output_tokens / steps,
        }
        longest = max(log.step_num_accepted)
        histogram = [log.step_num_accepted.count(number) for number in range(longest + 1)]
        all_names = speculative_names(self._dialect.version)
        for names in all_names:
            found |= {names[0]: accepted, names[1]: drafted}
        found["spec_verify_ct"] = steps
        for names in all_names:
            found[names[2]] = histogram
        return found

    def _usage(self, num_tokens: int, *, with_cached: bool) -> dict[str, Any]:
        prompt, tokens = self._job.log.num_prompt_tokens, self._completion_tokens(num_tokens)
        cached = self._job.log.num_cached_tokens
        is_reported = with_cached and self._dialect.settings.cached_tokens_in_usage
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + tokens,
            "completion_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": cached} if is_reported else None,
            "reasoning_tokens": 0,
            "completion_tokens_details": None,
        }


class NativeFormat(_SglangFormat):
    """`/generate`: each event repeats all that came before it."""

    def __init__(self, dialect: SglangDialect, job: Job, request_id: str) -> None:
        super().__init__(dialect, job, request_id)
        self._text, self._ids = "", []  # type: tuple[str, list[int]]
        self._before = self._after = b""

    def events(self, index: int) -> list[bytes]:
        answer = self._job.answer
        self._text += answer.chunk_texts[index]
        self._ids += answer.chunk_ids[index]
        body = b'data: {"text":%b,"output_ids":%b,"meta_info":' % (
            orjson.dumps(self._text),
            orjson.dumps(self._ids),
        )
        if index == self._last_chunk:
            return [b"%b%b}\n\n" % (body, orjson.dumps(self._meta_info()))]
        if index == 0:
            self._prepare_meta()
        tail = self._after
        if index == 0:
            sent_s = self._dialect.server.epoch_s + self._job.log.chunk_sent_ns[0] / _NS_PER_S
            tail += b',"response_sent_to_client_ts":%r' % sent_s
        return [b"%b%b%b}}\n\n" % (body, self._counted(), tail)]

    def ending(self) -> list[bytes]:
        return [DONE]

    def document(self) -> dict[str, Any]:
        return {
            "text": self._job.answer.text,
            "output_ids": list(self._job.answer.script.output_ids),
            "meta_info": self._meta_info(),
        }

    def _prepare_meta(self) -> None:
        """The parts of `meta_info` that every event but the last repeats, written once."""
        meta = {"id": self._id, "finish_reason": None, **self._early_meta()}
        if self._job.fails_with("missing_usage"):
            del meta["prompt_tokens"]
        self._before = orjson.dumps(meta)[:-1]
        after = {"cached_tokens": self._job.log.num_cached_tokens, **self._cached_meta()}
        self._after = b"," + orjson.dumps(after)[1:-1]

    def _counted(self) -> bytes:
        if self._job.fails_with("missing_usage"):
            return self._before
        return b'%b,"completion_tokens":%d' % (self._before, self._completion_tokens(len(self._ids)))


class _OpenAiFormat(_SglangFormat):
    """What chat and plain completions share."""

    headers_at_once = False  # the real server waits for the first token, to refuse what cannot be answered
    object_name = ""

    def __init__(self, dialect: SglangDialect, job: Job, request_id: str, options: OpenAiOptions) -> None:
        super().__init__(dialect, job, request_id)
        self._options = options
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
            orjson.dumps(self._id),
            self.object_name.encode(),
            self._created,
            orjson.dumps(options.model),
        )

    def _usage_so_far(self) -> bytes:
        if not self._options.continuous_usage or self._job.fails_with("missing_usage"):
            return b""
        return b',"usage":%b' % orjson.dumps(self._usage(self._num_sent, with_cached=False))

    def _beside(self) -> dict[str, Any]:
        """What is in `sglext`."""
        options, job = self._options, self._job
        beside: dict[str, Any] = {}
        if options.return_cached and job.log.num_cached_tokens:
            beside["cached_tokens_details"] = {"device": job.log.num_cached_tokens, "host": 0}
        speculation = self._speculation()
        if options.return_speculation and speculation:
            correct, proposed, histogram = speculative_names(self._dialect.version)[0]
            beside["spec_tokens_details"] = {
                "spec_accept_rate": speculation["spec_accept_rate"],
                "spec_accept_length": speculation["spec_accept_length"],
                "spec_cap_length": 0.0,
                "spec_block_accept_length": 0.0,
                correct: speculation[correct],
                proposed: speculation[proposed],
                "spec_verify_ct": speculation["spec_verify_ct"],
                histogram: speculation[histogram],
                "spec_cap_lens_histogram": [],
            }
        if options.return_prompt_ids_beside:
            beside["input_ids"] = list(job.prompt)
        if options.return_token_ids_beside:
            beside["output_ids"] = [list(job.answer.script.output_ids)]
        return beside

    def ending(self) -> list[bytes]:
        events = []
        beside = self._beside()
        if beside:
            events.append(b'%b],"usage":null,"sglext":%b}\n\n' % (self._head, orjson.dumps(beside)))
        if self._options.include_usage and not self._job.fails_with("missing_usage"):
            usage = self._usage(self._job.log.num_output_tokens, with_cached=True)
            events.append(b'%b],"usage":%b}\n\n' % (self._head, orjson.dumps(self._shown(usage))))
        return [*events, DONE]

    def _shown(self, usage: Mapping[str, Any]) -> Mapping[str, Any]:
        """The usage as the last event of a stream has it."""
        return usage

    def document(self) -> dict[str, Any]:
        log = self._job.log
        usage = self._usage(log.num_output_tokens, with_cached=True)
        versions = [{"version": "default", "start": 0, "end": log.num_output_tokens}]
        document = {
            "id": self._id,
            "object": self.object_name.removesuffix(".chunk"),
            "created": self._created,
            "model": self._options.model,
            "choices": [self._choice()],
            "usage": None if self._job.fails_with("missing_usage") else usage,
            "metadata": {"weight_version": "default", "weight_versions": versions},
        }
        beside = self._beside()
        return {**document, "sglext": beside} if beside else document

    def _choice(self) -> dict[str, Any]:
        raise NotImplementedError

    def _finish(self) -> dict[str, Any]:
        reason = self._finish_reason() or {"type": None}
        return {"finish_reason": reason["type"], "matched_stop": reason.get("matched")}


class ChatFormat(_OpenAiFormat):
    """`/v1/chat/completions`. A step that gives no text has no event; the finish reason has one of its own."""

    object_name = "chat.completion.chunk"

    def events(self, index: int) -> list[bytes]:
        answer = self._job.answer
        text = answer.chunk_texts[index]
        self._num_sent += len(answer.chunk_ids[index])
        events = [self._event(b'"role":"assistant","content":""')] if index == 0 else []
        if text:
            events.append(self._event(b'"content":%b' % orjson.dumps(text), self._usage_so_far()))
        if index == self._last_chunk and self._finish_reason() is not None:
            finish = orjson.dumps(self._finish())[1:-1]
            choice = b'{"index":0,"delta":{"reasoning_content":null},"logprobs":null,%b}' % finish
            events.append(b"%b%b]}\n\n" % (self._head, choice))
        return events

    def _event(self, delta: bytes, usage: bytes = b"") -> bytes:
        choice = (
            b'{"index":0,"delta":{"reasoning_content":null,%b},"logprobs":null,"finish_reason":null,'
            b'"matched_stop":null}' % delta
        )
        return b"%b%b]%b}\n\n" % (self._head, choice, usage)

    def _choice(self) -> dict[str, Any]:
        options, job = self._options, self._job
        message = {"role": "assistant", "content": job.answer.text, "reasoning_content": None}
        choice: dict[str, Any] = {"index": 0, "message": message, "logprobs": None, **self._finish()}
        if options.return_token_ids or options.return_prompt_ids:
            choice["prompt_token_ids"] = list(job.prompt)
        if options.return_token_ids:
            choice["response_token_ids"] = list(job.answer.script.output_ids)
        if options.return_meta_info:
            choice["meta_info"] = self._meta_info()
        return choice


class CompletionFormat(_OpenAiFormat):
    """`/v1/completions`; not recorded: after the engine's published models of it."""

    object_name = "text_completion"

    def events(self, index: int) -> list[bytes]:
        answer = self._job.answer
        self._num_sent += len(answer.chunk_ids[index])
        is_last = index == self._last_chunk
        finish = self._finish() if is_last else {"finish_reason": None, "matched_stop": None}
        choice = {"index": 0, "text": answer.chunk_texts[index], "logprobs": None, **finish}
        if self._options.return_token_ids:
            choice["token_ids"] = answer.chunk_ids[index]
            if index == 0:
                choice["prompt_token_ids"] = self._job.prompt
        return [
            b"%b%b]%b}\n\n" % (self._head, orjson.dumps(choice), self._usage_so_far() or b',"usage":null')
        ]

    def _shown(self, usage: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: value for name, value in usage.items() if value is not None}

    def _choice(self) -> dict[str, Any]:
        job = self._job
        choice: dict[str, Any] = {"index": 0, "text": job.answer.text, "logprobs": None, **self._finish()}
        if self._options.return_token_ids:
            choice["prompt_token_ids"] = list(job.prompt)
            choice["token_ids"] = list(job.answer.script.output_ids)
        return choice
