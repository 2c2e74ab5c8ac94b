"""Chunks of an OpenAI-style stream -> one record; the recorded streams of real servers have known answers."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from dflash.backends.chat_stream import (
    ChatStreamReader,
    ChatStreamRecord,
    SpeculationCounts,
    sglang_speculation,
    vllm_speculation,
)
from dflash.backends.sse import DONE, SseParser, read_document
from dflash.errors import RequestError
from dflash.results.metrics import acceptance_length, acceptance_length_untrimmed
from dflash.results.records import RequestRecord

Document = dict[str, Any]


def chat(delta: Document | None = None, *, finish: str | None = None, **more: Any) -> Document:
    """A chat chunk; `token_ids`, `meta_info` … go into the choice, `usage`, `metrics`, `sglext` beside it."""
    beside = {
        name: more.pop(name) for name in ("usage", "metrics", "sglext", "prompt_token_ids") if name in more
    }
    choice = {"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish, **more}
    return {"object": "chat.completion.chunk", "choices": [choice], **beside}


def content(text: str, **more: Any) -> Document:
    return chat({"content": text}, **more)


def usage(num_output: int, num_prompt: int = 5, **more: Any) -> Document:
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        **more,
    }


def last(num_output: int, **more: Any) -> Document:
    """The chunk with the usage, after the last choice."""
    beside = {name: more.pop(name) for name in ("metrics", "sglext") if name in more}
    return {"choices": [], "usage": usage(num_output, **more), **beside}


ROLE = chat({"role": "assistant", "content": ""})


def read(*documents: Document) -> ChatStreamRecord:
    """The record of chunks that arrive at 0, 10, 20 …"""
    reader = ChatStreamReader()
    for index, document in enumerate(documents):
        reader.feed(10 * index, document)
    return reader.record()


def failure(*documents: Document) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(*documents)
    return caught.value


def read_recorded(shared_folder, name: str) -> ChatStreamRecord:
    """The record of a recorded stream whose events arrive 10 ns apart."""
    stream = (shared_folder / "samples" / name).read_bytes()
    parser, reader = SseParser(), ChatStreamReader()
    blocks = stream[: stream.rindex(DONE)].removesuffix(b"data: ").split(b"\n\n")
    for index, block in enumerate(block for block in blocks if block):
        for event in parser.feed(block + b"\n\n", 10 * index):
            document = read_document(event)
            assert document is not None
            reader.feed(event.arrival_ns, document)
    return reader.record()


def as_request(record: ChatStreamRecord, num_decode_steps: int | None) -> RequestRecord:
    spec = record.speculation
    assert spec is not None
    return RequestRecord(
        cell_id="c",
        prompt_id="p",
        finish_reason=record.finish_reason,
        num_output_tokens=record.num_output_tokens,
        num_decode_steps=num_decode_steps,
        num_verify_steps=spec.num_verify_steps,
        num_draft_tokens=spec.num_draft_tokens,
        num_accepted_tokens=spec.num_accepted_tokens,
    )


# --- recorded streams


def test_recorded_vllm_baseline(shared_folder):
    record = read_recorded(shared_folder, "vllm-0.32.0/base.stream.txt")
    assert (record.num_prompt_tokens, record.num_output_tokens, record.finish_reason) == (39, 64, "length")
    assert len(record.chunk_arrivals_ns) == 64
    assert (record.first_ns, record.last_ns) == (10, 640)  # the role came at 0, the usage at 650
    assert record.text.startswith("```python\ndef add_two_numbers(num1, num2):")
    assert record.text.endswith("A more efficient")
    # nothing tells how many tokens a chunk holds, whether speculation ran, or what the cache gave
    assert record.chunk_num_tokens is None
    assert record.num_first_chunk_tokens is None
    assert record.output_ids is None
    assert record.speculation is None
    assert record.num_cached_tokens is None


def test_recorded_vllm_dflash(shared_folder):
    record = read_recorded(shared_folder, "vllm-0.32.0/dflash.stream.txt")
    assert record.speculation == SpeculationCounts(
        num_verify_steps=63,
        num_draft_tokens=441,
        num_accepted_tokens=0,
        acceptance_histogram_untrimmed=(63, 0, 0, 0, 0, 0, 0, 0),
        step_num_accepted=(0,) * 63,
        step_num_drafted=(7,) * 63,
        num_speculative_tokens=7,
    )
    request = as_request(record, record.speculation.num_verify_steps)
    assert acceptance_length([request]) == 1.0
    assert acceptance_length_untrimmed([request]) == 1.0
    assert record.text == read_recorded(shared_folder, "vllm-0.32.0/base.stream.txt").text
    assert record.engine_metrics["queue_time_ms"] > 0


def test_fault_4_a_chunk_is_not_a_token_in_the_recorded_vllm_ngram(shared_folder):
    record = read_recorded(shared_folder, "vllm-0.32.0/ngram.stream.txt")
    assert record.num_output_tokens == 64
    assert len(record.chunk_arrivals_ns) == 61
    assert record.chunk_num_tokens is not None
    assert sum(record.chunk_num_tokens) == 64
    assert sorted(record.chunk_num_tokens)[-3:] == [1, 2, 3]
    assert record.num_first_chunk_tokens == 1
    assert record.num_cached_tokens == 0  # said, not assumed
    assert record.speculation is None  # this server gave timings only
    # 1.05 tokens a step: definitions.md
    assert (record.num_output_tokens - 1) / (len(record.chunk_arrivals_ns) - 1) == pytest.approx(1.05)


@pytest.mark.parametrize("arm", ["base", "dflash"])
def test_recorded_sglang_chat(shared_folder, arm):
    record = read_recorded(shared_folder, f"sglang-0.5.23/{arm}-chat_stream.txt")
    assert (record.num_prompt_tokens, record.num_output_tokens, record.finish_reason) == (15, 8, "length")
    assert len(record.text_pieces) == 7  # for 8 tokens
    assert (record.first_ns, record.last_ns) == (10, 80)  # the finish reason has a chunk of its own
    assert record.text == record.whole_text == "LdingLurn requ\ufffd(\ufffd"
    assert record.chunk_num_tokens is None
    assert record.num_cached_tokens is None
    assert record.num_reasoning_tokens == 0
    assert record.speculation is None  # nothing by default


def test_recorded_vllm_self_draft_has_the_known_acceptance_length(shared_folder):
    """Definitions: 8 tokens, B = 4, 2 steps give 3.5; the engine's own number counts a cut token: 4.0."""
    answers = orjson.loads((shared_folder / "samples/vllm-0.32.0/draftmodel.probe.json").read_bytes())
    answer = answers[0]
    record = read(content("…", token_ids=answer["ids"], finish="stop"), last(8, metrics=answer["metrics"]))
    assert record.num_output_tokens == answer["usage"]["completion_tokens"] == 8
    assert record.speculation is not None
    request = as_request(record, record.speculation.num_verify_steps)
    assert acceptance_length([request]) == 3.5
    assert (
        acceptance_length_untrimmed([request])
        == 4.0
        == answer["metrics"]["speculative_decoding"]["mean_acceptance_length"]
    )
    assert record.speculation.step_num_accepted is None  # not the detailed level


def test_recorded_sglang_answers_have_the_known_acceptance_lengths(shared_folder):
    """Definitions: `repeat-40` gives 7.8, base-like drafts 1.0. SGLang's own 8.0 counts the prefill's token."""
    folder = shared_folder / "samples" / "sglang-0.5.23"
    lengths = {}
    for name in ("dflash-repeat-40", "dflash-repeat-33", "dflash-repeat-2", "dflash-generate"):
        answer = orjson.loads((folder / f"{name}.json").read_bytes())
        answer = answer.get("body", answer)
        num_tokens = answer["meta_info"]["completion_tokens"]
        record = read(content("x", finish="length", meta_info=answer["meta_info"]), last(num_tokens))
        assert record.speculation is not None
        lengths[name] = acceptance_length([as_request(record, record.speculation.num_verify_steps)])
    assert lengths == {
        "dflash-repeat-40": 7.8,
        "dflash-repeat-33": 8.0,
        "dflash-repeat-2": 1.0,
        "dflash-generate": 1.0,
    }
    one_token = orjson.loads((folder / "dflash-repeat-1.json").read_bytes())["meta_info"]
    assert sglang_speculation(one_token) is None  # no verify step: no counts, and not 0


def test_recorded_sglang_chat_details(shared_folder):
    folder = shared_folder / "samples" / "sglang-0.5.23"
    answer = orjson.loads((folder / "dflash-repeat-chat-specdetails.json").read_bytes())
    record = read(content("x", finish="length"), {"choices": [], "sglext": answer["sglext"]}, last(20))
    assert record.speculation == SpeculationCounts(3, 21, 21, (0, 0, 0, 0, 0, 0, 0, 3))
    chosen = orjson.loads((folder / "dflash-chat_meta.json").read_bytes())["body"]["choices"][0]
    record = read(content("x", finish="length", meta_info=chosen["meta_info"]), last(8))
    assert record.speculation == SpeculationCounts(7, 49, 0, (7,))
    assert record.num_cached_tokens == 27


# --- the first and the last token


def test_the_role_and_empty_texts_are_no_token():
    record = read(
        ROLE, content(""), chat({"content": None}), content("a"), content("b", finish="stop"), last(2)
    )
    assert (record.first_ns, record.last_ns) == (30, 40)
    assert record.chunk_arrivals_ns == (30, 40)


@pytest.mark.parametrize(
    ("chunk", "piece"),
    [
        (chat({"reasoning_content": "hm"}), "hm"),
        (chat({"reasoning": "hm"}), "hm"),
        (chat({"reasoning": "hm", "reasoning_content": "hm"}), "hm"),
        (
            chat({"tool_calls": [{"index": 0, "id": "1", "function": {"name": "add", "arguments": ""}}]}),
            "add",
        ),
        (chat({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}), "{}"),
        (chat({"function_call": {"name": "add", "arguments": "{}"}}), "add{}"),
        (chat({"content": ""}, token_ids=[7]), ""),
        ({"choices": [{"index": 0, "text": "a", "finish_reason": None}]}, "a"),
    ],
)
def test_every_kind_of_token_is_the_first(chunk, piece):
    ids = {"token_ids": [8]} if chunk["choices"][0].get("token_ids") else {}
    record = read(ROLE, chunk, content("z", finish="stop", **ids), last(2))
    assert record.first_ns == 10
    assert record.text_pieces == (piece, "z")
    assert record.whole_text == f"{piece}z"


@pytest.mark.parametrize(
    "delta", [{"tool_calls": []}, {"tool_calls": [{"index": 0, "function": {}}]}, {"reasoning": ""}]
)
def test_an_empty_tool_call_or_reasoning_is_no_token(delta):
    assert read(chat(delta), content("a", finish="stop"), last(1)).first_ns == 10


def test_the_last_is_the_finish_reason_not_the_usage():
    record = read(
        content("a"), chat(finish="stop"), {"choices": [], "sglext": {"routed_experts": None}}, last(1)
    )
    assert record.last_ns == 10


def test_reasoning_is_kept_apart_from_the_text():
    record = read(
        chat({"reasoning": "think "}), content("answer"), chat(finish="stop"), last(2, reasoning_tokens=1)
    )
    assert (record.reasoning, record.text, record.whole_text) == ("think ", "answer", "think answer")
    assert record.num_reasoning_tokens == 1


def test_an_answer_without_a_visible_token_has_its_first_at_its_last_chunk():
    record = read(ROLE, content("", finish="stop"), last(1))
    assert (record.first_ns, record.last_ns, record.num_first_chunk_tokens) == (10, 10, 1)
    nothing = read(ROLE, content("", finish="stop"), last(0))
    assert (nothing.first_ns, nothing.num_output_tokens, nothing.chunk_arrivals_ns) == (None, 0, ())


# --- tokens per chunk


def test_tokens_per_chunk_from_ids():
    record = read(
        ROLE | {"prompt_token_ids": [1, 2, 3, 4, 5]},
        content("a", token_ids=[10, 11]),
        content("", token_ids=[12]),
        content("bcd", token_ids=[13, 14, 15]),
        content("", token_ids=[2], finish="stop", stop_reason=2),
        last(7),
    )
    assert record.chunk_num_tokens == (2, 1, 3, 1)
    assert record.num_first_chunk_tokens == 2
    assert record.output_ids == (10, 11, 12, 13, 14, 15, 2)
    assert record.prompt_ids == (1, 2, 3, 4, 5)
    assert record.stop_reason == 2
    assert record.chunk_arrivals_ns == (10, 20, 30, 40)


def test_fault_7_tokens_per_chunk_and_of_the_first_from_cumulative_usage():
    record = read(
        ROLE | {"usage": usage(0)},
        content(
            "", usage=usage(1)
        ),  # a held-back half of a character: its token comes to light with the next
        content("ä", usage=usage(2)),
        content("bcd", usage=usage(5)),
        chat(finish="stop", usage=usage(6)),  # the stop token has no text
        last(6),
    )
    assert record.chunk_num_tokens == (2, 3, 1)
    assert record.num_first_chunk_tokens == 2
    assert record.chunk_arrivals_ns == (20, 30, 40)
    assert record.first_ns == 20


def test_a_stop_token_that_comes_in_the_packet_of_the_last_text_is_counted():
    reader = ChatStreamReader()
    for document in (content("ab", usage=usage(2)), chat(finish="stop"), last(3)):
        reader.feed(5, document)
    record = reader.record()
    assert record.chunk_num_tokens == (2, 1)
    assert record.chunk_arrivals_ns == (5, 5)


def test_a_chunk_whose_token_was_counted_with_the_one_before_holds_none():
    """One token can end the reasoning and begin the answer."""
    record = read(
        chat({"reasoning_content": "hm"}, usage=usage(1)),
        content("a", usage=usage(1)),
        chat(finish="stop"),
        last(1),
    )
    assert record.chunk_num_tokens == (1, 0)


def test_a_chunk_without_usage_among_others_leaves_the_sizes_unknown():
    record = read(
        content("a", usage=usage(2)), content("b"), content("c", usage=usage(5), finish="length"), last(5)
    )
    assert record.chunk_num_tokens is None
    assert record.num_first_chunk_tokens == 2


# --- what stands beside the text


def test_cached_tokens_from_any_of_their_places():
    end = content("a", finish="stop")
    assert read(end, last(1, prompt_tokens_details={"cached_tokens": 4})).num_cached_tokens == 4
    assert read(end, last(1, prompt_tokens_details=None)).num_cached_tokens is None
    assert read(end, last(1, prompt_tokens_details={})).num_cached_tokens is None
    sglext = {"cached_tokens_details": {"device": 3, "host": 1, "storage": None, "storage_backend": "file"}}
    assert read(end, {"choices": [], "sglext": sglext}, last(1)).num_cached_tokens == 4
    assert read(content("a", finish="stop", meta_info={"cached_tokens": 2}), last(1)).num_cached_tokens == 2


def test_token_ids_that_come_as_a_whole():
    sglext = {"output_ids": [[5, 6]], "input_ids": [1, 2]}
    record = read(
        content("ab"), chat(finish="stop", matched_stop=6), {"choices": [], "sglext": sglext}, last(2)
    )
    assert (record.output_ids, record.prompt_ids, record.stop_reason) == ((5, 6), (1, 2), 6)
    assert record.chunk_num_tokens is None


@pytest.mark.parametrize(
    "names",
    [
        ("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
        ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
        ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
    ],
)
def test_sglang_counts_under_the_names_of_every_version(names):
    meta_info = {
        **dict(zip(names, (3, 14, [1, 0, 0, 1]), strict=True)),
        "spec_verify_ct": 2,
        "spec_accept_length": 9.9,
    }
    assert sglang_speculation(meta_info) == SpeculationCounts(2, 14, 3, (1, 0, 0, 1))


def test_counts_that_are_missing_or_no_counts_are_unknown():
    assert vllm_speculation({}) is None
    assert vllm_speculation({"speculative_decoding": None}) is None
    odd = {
        "num_spec_steps": 2,
        "num_draft_tokens": -1,
        "num_accepted_draft_tokens": 1.5,
        "acceptance_histogram": "x",
    }
    assert vllm_speculation({"speculative_decoding": odd}) == SpeculationCounts(num_verify_steps=2)
    assert sglang_speculation({"spec_num_correct_drafts": 3}) is None
    assert sglang_speculation(None) is None


# --- finish reasons and failures


@pytest.mark.parametrize(
    ("said", "reason"),
    [("stop", "stop"), ("length", "length"), ("tool_calls", "stop"), ("function_call", "stop")],
)
def test_finish_reasons(said, reason):
    record = read(content("a", finish=said), last(1))
    assert (record.finish_reason, record.engine_finish_reason) == (reason, said)


@pytest.mark.parametrize("said", ["abort", "error", "content_filter", "repetition"])
def test_any_other_finish_reason_is_a_failure_that_names_it(said):
    error = failure(content("a", finish=said), last(1))
    assert error.kind == "bad_finish_reason"
    assert repr(said) in str(error)


def test_a_stream_without_finish_reason_is_a_failure():
    error = failure(content("a"), content("b"), last(2))
    assert error.kind == "no_finish_reason"
    assert "2 chunks" in str(error)
    assert failure().kind == "no_finish_reason"


@pytest.mark.parametrize(
    "documents",
    [
        (content("a", finish="stop"),),
        (content("a", usage=usage(1)), content("b", finish="stop")),  # counts up to the first chunk only
        (content("a", finish="stop"), {"choices": [], "usage": {"prompt_tokens": 3}}),
        (content("a", finish="stop"), {"choices": [], "usage": {"completion_tokens": "1"}}),
    ],
)
def test_fault_6_missing_usage_is_a_failure_never_the_length_asked_for(documents):
    assert failure(*documents).kind == "no_usage"


@pytest.mark.parametrize(
    "documents",
    [
        (content("a", token_ids=[1]), content("b", token_ids=[2], finish="stop"), last(3)),
        (content("a", usage=usage(4)), content("b", usage=usage(3), finish="stop"), last(4)),
        (content("a", usage=usage(4)), chat(finish="stop"), last(3)),
        (content("a", usage=usage(4), finish="stop"), last(5)),
        (content("a", finish="stop"), last(0)),
        (content("a", finish="stop"), {"choices": [], "sglext": {"output_ids": [[1, 2]]}}, last(3)),
    ],
)
def test_fault_5_usage_that_contradicts_the_stream_is_a_failure(documents):
    assert failure(*documents).kind == "wrong_usage"


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"hello": 1},
        {"choices": "a"},
        {"choices": [1]},
        {"choices": [{"delta": "a"}]},
        content("a", index=1),
        {"choices": [*content("a")["choices"], *content("b")["choices"]]},
        chat({"content": 5}),
        chat({"content": ["a"]}),
        chat({"tool_calls": {"index": 0}}),
        chat({"tool_calls": [{"function": "add"}]}),
        {"choices": [], "usage": 3},
        {"choices": [], "metrics": 3},
    ],
)
def test_what_is_no_chunk_is_a_failure(document):
    assert failure(document).kind == "bad_event"


def test_tokens_after_the_end_are_a_failure():
    assert failure(content("a", finish="stop"), content("b"), last(2)).kind == "bad_event"


def test_the_record_is_frozen():
    record = read(content("a", finish="stop"), last(1))
    with pytest.raises(AttributeError):
        record.text = "b"  # type: ignore[misc]


# --- counts and ends that contradict each other


def test_an_empty_finish_reason_is_none():
    assert read(content("a", finish=""), content("b", finish="stop"), last(2)).finish_reason == "stop"
    assert failure(content("a", finish=""), last(1)).kind == "no_finish_reason"


def test_an_answer_that_ends_twice_and_not_alike_is_refused():
    error = failure(content("a", finish="length"), content("", finish="abort"), last(1))
    assert error.kind == "bad_finish_reason"
    assert "'length' and then with 'abort'" in error.fault
    again = read(content("a", finish="stop"), content("", finish="tool_calls"), last(1))
    assert again.finish_reason == "stop"


def test_a_last_usage_far_above_the_chunks_is_no_big_last_chunk():
    chunks = [{**content(f" w{i}"), "usage": {"completion_tokens": i}} for i in range(1, 25)]
    end = content("", finish="stop")
    error = failure(*chunks, end, last(124))
    assert error.kind == "wrong_usage"
    assert "124 output tokens, the chunks before it count 24" in error.fault
    assert read(*chunks, end, last(25)).chunk_num_tokens == (1,) * 25  # a stop token has no text
    counted = {**end, "usage": {"completion_tokens": 25}}
    assert read(*chunks, counted, last(25)).num_output_tokens == 25
    error = failure(*chunks, counted, last(26))
    assert "25 output tokens at the end, and then 26" in error.fault


def test_two_usages_at_the_end_that_differ_are_refused():
    error = failure(content("a", finish="stop"), last(2), last(3))
    assert error.kind == "wrong_usage"
    assert "2 output tokens at the end, and then 3" in error.fault


@pytest.mark.parametrize("count", [2**64 - 1, 2**49])
def test_a_number_that_counts_nothing_is_refused(count):
    assert failure(content("a", finish="stop"), last(count)).kind == "wrong_usage"


@pytest.mark.parametrize("is_counted", [True, False])
def test_more_than_was_asked_for_is_refused_before_its_end(is_counted):
    """The server goes on for ever: the answer must not wait for its end."""
    reader, num_allowed = ChatStreamReader(max_new_tokens=4), 4 if is_counted else 4 * 4 + 64
    for place in range(1, num_allowed + 1):
        reader.feed(place, {**content("a"), **({"usage": usage(place)} if is_counted else {})})
    with pytest.raises(RequestError, match="honour the limit of output tokens") as caught:
        reader.feed(999, {**content("a"), **({"usage": usage(num_allowed + 1)} if is_counted else {})})
    assert caught.value.kind == "wrong_usage"


def test_only_tokens_and_the_end_bring_an_answer_on():
    reader = ChatStreamReader()
    assert not reader.feed(0, content(""))
    assert reader.feed(1, content("a"))
    assert not reader.feed(2, content(""))
    assert reader.feed(3, {**content(""), "usage": {"completion_tokens": 2}})  # held back, and counted
    assert not reader.feed(4, {**content(""), "usage": {"completion_tokens": 2}})
    assert reader.feed(5, {"choices": [{"index": 0, "delta": {"reasoning_content": "b"}}]})
    assert reader.feed(6, {"choices": [{"index": 0, "delta": {"tool_calls": [{"function": {"name": "f"}}]}}]})
    assert reader.feed(7, content("", finish="stop"))
    assert not reader.feed(8, content("", finish="stop"))


def test_prompts_that_grow_at_the_end_are_refused():
    error = failure(content("a", finish="stop"), last(1), last(1, num_prompt=300))
    assert "5 prompt tokens at the end, and then 300" in error.fault


def test_chunks_that_hold_several_tokens_are_known_by_their_number_where_sizes_are_not_told():
    chunks = [content("a b c"), content("d e f"), content("g", finish="stop")]
    assert read(*chunks, last(7)).holds_several
    assert not read(*chunks, last(4)).holds_several
