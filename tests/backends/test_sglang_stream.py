"""SGLang's own stream: differences between events that repeat all that came before, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dflash.backends.sglang_stream import NativeStreamReader
from dflash.errors import RequestError


def part(ids: list[int] | None, text: str, finish: object = None, count: int | None = None) -> dict[str, Any]:
    meta = {"finish_reason": finish, "completion_tokens": len(ids or ()) if count is None else count}
    return {"text": text, "output_ids": ids, "meta_info": {**meta, "prompt_tokens": 3, "cached_tokens": 0}}


def read(*parts: Mapping[str, Any], **options: Any) -> Any:
    reader = NativeStreamReader(**options)
    carried = [reader.feed(place * 10, document) for place, document in enumerate(parts)]
    return reader.record(), carried


def test_native_chunks_of_several_tokens() -> None:
    stop = {"type": "stop", "matched": 2}
    record, carried = read(
        part([7], "a"), part([7, 8, 9], "abc"), part([7, 8, 9], "abc"), part([7, 8, 9, 2], "abc!", stop)
    )
    assert carried == [True, True, False, True]
    assert record.chunk_num_tokens == (1, 2, 1)
    assert record.chunk_arrivals_ns == (0, 10, 30)
    assert (record.first_ns, record.last_ns, record.finish_reason) == (0, 30, "stop")
    assert record.text_pieces == ("a", "bc", "!")
    assert record.output_ids == (7, 8, 9, 2)
    assert record.stop_reason == 2
    assert record.num_cached_tokens == 0


def test_native_finish_without_a_token_ends_the_answer() -> None:
    record, carried = read(part([7], "a"), part([7], "a", {"type": "length", "length": 1}))
    assert carried == [True, True], "the end brings it on too"
    assert (record.last_ns, record.num_output_tokens, record.chunk_num_tokens) == (10, 1, (1,))


def test_native_events_of_a_server_that_sends_only_what_is_new() -> None:
    record, _ = read(
        part([7], "a", count=1), part([8, 9], "bc", {"type": "length"}, count=3), is_incremental=True
    )
    assert (record.text, record.output_ids, record.chunk_num_tokens) == ("abc", (7, 8, 9), (1, 2))


def test_native_stream_without_token_ids_is_counted_by_its_usage() -> None:
    record, _ = read(part(None, "a", count=1), part(None, "abc", {"type": "stop"}, count=4))
    assert (record.output_ids, record.chunk_num_tokens, record.num_output_tokens) == (None, (1, 3), 4)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([part([7], "a")], "no_finish_reason"),
        ([part([7], "a", {"type": "abort", "message": "out of memory"})], "bad_finish_reason"),
        ([part([7, 8], "ab"), part([7], "a", {"type": "stop"})], "bad_event"),
        ([part([7, 8], "ab"), part([7, 9, 10], "abc", {"type": "stop"})], "bad_event"),
        ([part([7], "a", {"type": "stop"}), part([7, 8], "ab")], "bad_event"),
        ([part([7, 8], "ab", {"type": "stop"}, count=3)], "wrong_usage"),
        ([part(None, "ab", count=3), part(None, "ab", {"type": "stop"}, count=2)], "wrong_usage"),
        ([{"text": "a", "output_ids": [7], "meta_info": {"finish_reason": {"type": "stop"}}}], "no_usage"),
        ([{"text": "a", "output_ids": [7]}], "bad_event"),
        ([{**part([7], "a"), "index": 1}], "bad_event"),
        ([part(["7"], "a")], "bad_event"),  # type: ignore[list-item]
    ],
)
def test_native_stream_that_cannot_be_believed_is_refused(parts: list[dict[str, Any]], kind: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(*parts)
    assert caught.value.kind == kind


def test_more_than_was_asked_for_and_a_second_end_are_refused() -> None:
    def event(num_tokens: int, reason: object = None) -> dict[str, object]:
        meta = {"completion_tokens": num_tokens, "prompt_tokens": 1, "finish_reason": reason}
        return {"text": "a" * num_tokens, "output_ids": list(range(num_tokens)), "meta_info": meta}

    reader = NativeStreamReader(max_new_tokens=4)
    reader.feed(0, event(4, {"type": "length"}))
    with pytest.raises(RequestError, match="'length' and then with 'abort'"):
        reader.feed(1, event(4, {"type": "abort"}))
    with pytest.raises(RequestError, match="5 output tokens came, at most 4"):
        NativeStreamReader(max_new_tokens=4).feed(0, event(5))
