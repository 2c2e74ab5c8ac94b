"""Records <-> JSON. Pure.

A field that holds its default is left out of a line, so `None` ("not measured") takes no room. Unknown
fields are passed over: a later release may add some without a new format version. A field of the wrong type
is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, get_type_hints

import msgspec
import orjson

from dflash.errors import UsageError
from dflash.results.format_history import upgrade
from dflash.results.records import FORMAT_VERSION, RequestRecord, RunInfo

Record = TypeVar("Record")
_ALWAYS_WRITTEN = {RequestRecord: ("finish_reason",)}


def encode_line(record: Any) -> bytes:
    """One record as one JSON line, newline included."""
    names, defaults, values_of = _written_fields(type(record))  # type: ignore[arg-type]
    values = {
        name: value
        for name, default, value in zip(names, defaults, values_of(record), strict=True)
        if value is not default and value != default
    }
    return _dumps(values, orjson.OPT_APPEND_NEWLINE)


def decode_line(line: bytes, kind: type[Record]) -> Record:
    """The record that a line holds.

    Raises:
        ValueError: no JSON object, a field is missing, or one has the wrong type.
    """
    record: Record = _decoder(kind).decode(line)  # type: ignore[arg-type]
    return record


def decode_fields(line: bytes, kind: type[Record]) -> Any:
    """The fields of the record that a line holds, under their names, in an object that is not the record.

    Made in a fifth of the time: of many requests most are never looked at one by one.

    Raises:
        ValueError: as `decode_line`.
    """
    return _fields_decoder(kind).decode(line)  # type: ignore[arg-type]


def encode_info(info: RunInfo) -> bytes:
    """`run.json`, for people and programs."""
    option = orjson.OPT_APPEND_NEWLINE | orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    return _dumps(asdict(info), option)


def decode_info(content: bytes, name: str) -> RunInfo:
    """What `run.json` of run `name` says.

    Raises:
        UsageError: it cannot be read, or was written by a later release.
    """
    try:
        values = orjson.loads(content)
        version = values.get("format_version") if isinstance(values, dict) else None
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise UsageError(
                f"run {name!r} has format {version}, and this release reads up to {FORMAT_VERSION}",
                "use a newer dflash",
            )
        return msgspec.convert(upgrade(values, version), RunInfo)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(
            f"run.json of run {name!r} cannot be read ({error})", "restore it from a copy"
        ) from error


def _dumps(value: Any, option: int) -> bytes:
    try:
        return orjson.dumps(value, default=str, option=option)
    except orjson.JSONEncodeError:  # half a character, as a command line or a server may hold
        return orjson.dumps(_without_surrogates(value), default=str, option=option)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    return value


@cache
def _written_fields(
    kind: type[Any],
) -> tuple[tuple[str, ...], tuple[Any, ...], Callable[[Any], tuple[Any, ...]]]:
    """Names, for each the value that is left out (`MISSING`: none is), and what reads all values of a record."""
    always = _ALWAYS_WRITTEN.get(kind, ())
    names = tuple(item.name for item in fields(kind))
    defaults = tuple(MISSING if item.name in always else item.default for item in fields(kind))
    return names, defaults, attrgetter(*names)


@cache
def _fields_decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    hints = get_type_hints(kind)
    struct = msgspec.defstruct(
        f"{kind.__name__}Fields",
        [
            (item.name, hints[item.name])
            if item.default is MISSING
            else (item.name, hints[item.name], item.default)
            for item in fields(kind)
        ],
        gc=False,  # nothing in it refers to another
    )
    return msgspec.json.Decoder(struct)


@cache
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
