"""Gates in words -> gates: `--fail-if` and TOML. Pure but for reading the file.

`QUANTITY:+5%` fails on a rise by more than 5 %, `QUANTITY:-5%` on a fall; `QUANTITY:<0.99` and `QUANTITY:>0` fail on
the new value alone. In TOML:

    [gate]
    fail-if = ["speedup:-5%", "error_rate:>0"]
    allow = ["machine.gpu_driver"]
    strict = true

    [[gate.for]]                       # only for the cells that it names, beside those above
    dataset = "gsm8k"                  # also: arm, block-size, concurrency, backend
    fail-if = ["acceptance_length:-1%"]
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dflash.errors import UsageError
from dflash.gate.quantities import QUANTITIES, Quantity
from dflash.gate.records import Gate

DEFAULT_GATES = (
    "speedup:-5%",
    "acceptance_length:-2%",
    "tpot_s:+5%",
    "agreement:<0.99",
    "error_rate:>0",
)
_EXPRESSION = re.compile(r"\s*([a-z0-9_]+)\s*:\s*([-+<>])\s*([0-9.]+(?:e-?[0-9]+)?)\s*(%?)\s*")
_GATE_KEYS = ("fail-if", "allow", "strict", "for")
_ONLY = {"dataset": str, "arm": str, "block-size": int, "concurrency": int, "backend": str}


@dataclass(frozen=True, slots=True)
class GateFile:
    """What the `[gate]` table of a file says."""

    gates: tuple[Gate, ...]
    allow: tuple[str, ...] = ()
    strict: bool = False


def default_gates() -> tuple[Gate, ...]:
    """What is gated where nobody says."""
    return tuple(replace(parse_gate(text), is_default=True) for text in DEFAULT_GATES)


def load_gate_file(path: Path) -> GateFile:
    """The `[gate]` table of the file.

    Raises:
        UsageError: it cannot be read, or see `parse_gate_file`.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark of its encoding
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path} ({error})", "give a TOML file by --gates") from error
    return parse_gate_file(text, path.name)


def parse_gate(text: str) -> Gate:
    """One gate from its expression.

    Raises:
        UsageError: no such quantity, no number, or a change to the better.
    """
    match = _EXPRESSION.fullmatch(text)
    text = " ".join(text.split())
    if match is None:
        raise _wrong(
            text, "cannot be read", "write speedup:-5%, tpot_s:+5%, agreement:<0.99 or error_rate:>0"
        )
    name, sign, digits, percent = match.groups()
    text = f"{name}:{sign}{digits}{percent}"
    if name not in QUANTITIES:
        near = get_close_matches(name, QUANTITIES, n=1)
        meant = f"did you mean {near[0]}? There are" if near else "choose from"
        raise _wrong(text, f"there is no quantity {name!r}", f"{meant} {', '.join(QUANTITIES)}")
    try:
        number = float(digits)
    except ValueError:
        raise _wrong(text, f"{digits!r} is no number", "write a number such as 2.5") from None
    quantity = QUANTITIES[name]
    if sign in "<>":
        if percent:
            number /= 100
        return _limit(text, quantity, sign, number)
    if not percent:
        raise _wrong(text, "a change without %", f"write {name}:{sign}{digits}%, or a limit by < or >")
    return _change(text, quantity, sign, number)


def parse_gate_file(text: str, name: str) -> GateFile:
    """The `[gate]` table of a TOML file; its other tables are not read.

    Raises:
        UsageError: no TOML, no such table, an unknown key, a value of another type.
    """
    try:
        values = _parse_toml(text)
    except ValueError as error:
        raise UsageError(f"{name} is no TOML ({error})", "see the README on gates") from error
    table = values.get("gate")
    if not isinstance(table, Mapping):
        raise UsageError(f"{name} has no table [gate]", 'write [gate] and fail-if = ["speedup:-5%"]')
    _check_keys(table, _GATE_KEYS, name)
    gates = [parse_gate(text) for text in _texts(table, "fail-if", name)]
    parts = table.get("for", [])
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        raise UsageError(f"{name}: for is no list of tables", "write [[gate.for]]")
    for part in parts:
        _check_keys(part, (*_ONLY, "fail-if"), name)
        only = {
            key.replace("-", "_"): _of_type(part, key, kind, name)
            for key, kind in _ONLY.items()
            if key in part
        }
        gates += [replace(parse_gate(text), only=only) for text in _texts(part, "fail-if", name)]
    if not gates:
        raise UsageError(f"{name} names no gate", 'write fail-if = ["speedup:-5%"]')
    strict = _of_type(table, "strict", bool, name) if "strict" in table else False
    return GateFile(tuple(gates), tuple(_texts(table, "allow", name)), strict)


def _limit(text: str, quantity: Quantity, sign: str, number: float) -> Gate:
    is_sound = (sign == "<") == (quantity.worse == "lower")
    if not is_sound:
        better = "higher" if quantity.worse == "lower" else "lower"
        other = "<" if quantity.worse == "lower" else ">"
        raise _wrong(
            text, f"a {better} {quantity.name} is better", f"write {quantity.name}:{other}{number:g}"
        )
    if quantity.is_share and number > 1:
        near = 0.99 if sign == "<" else 0.01
        raise _wrong(text, f"{quantity.name} is a share, 0 to 1", f"write {quantity.name}:{sign}{near} or so")
    if (sign == "<" and number == 0) or (quantity.is_share and sign == ">" and number == 1):
        raise _wrong(text, "this can never fail", f"write {quantity.name}:{_example(quantity)}")
    if quantity.is_latency and number == 0:
        raise _wrong(text, "this fails always", "write a number of seconds above 0")
    return Gate(text, quantity.name, below=number) if sign == "<" else Gate(text, quantity.name, above=number)


def _change(text: str, quantity: Quantity, sign: str, percent: float) -> Gate:
    change = percent / 100 if sign == "+" else -percent / 100
    if quantity.limit_only:
        raise _wrong(
            text,
            f"{quantity.name} is gated by a limit, not by a change",
            f"write {quantity.name}:{_example(quantity)}",
        )
    if (change > 0) != (quantity.worse == "higher"):
        other = "-" if sign == "+" else "+"
        raise _wrong(text, f"that is a change to the better of {quantity.name}", f"write {other}{percent:g}%")
    if not math.isfinite(change) or change <= -1:
        raise _wrong(text, "nothing can fall by that much", "give less than 100%")
    return Gate(text, quantity.name, change=change)


def _example(quantity: Quantity) -> str:
    return "<1" if quantity.worse == "lower" else ">0"


def _wrong(text: str, fault: str, mend: str) -> UsageError:
    return UsageError(f"gate {text!r}: {fault}", mend)


def _check_keys(table: Mapping[str, Any], known: Sequence[str], name: str) -> None:
    unknown = [key for key in table if key not in known]
    if unknown:
        raise UsageError(f"{name}: unknown key {unknown[0]!r} of [gate]", f"choose from {', '.join(known)}")


def _texts(table: Mapping[str, Any], key: str, name: str) -> list[str]:
    value = table.get(key, [])
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
        raise UsageError(f"{name}: {key} is no list of texts", f'write {key} = ["…"]')
    return values


def _of_type(table: Mapping[str, Any], key: str, kind: type, name: str) -> Any:
    value = table[key]
    if type(value) is not kind:
        raise UsageError(f"{name}: {key} = {value!r} is of the wrong type", f"give a {kind.__name__}")
    return value


def _parse_toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]
    values: dict[str, Any] = tomllib.loads(text)
    return values
