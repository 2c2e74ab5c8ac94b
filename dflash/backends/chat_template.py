"""Messages to a prompt's text and token ids, in the model's own chat template, and the ids that end an answer.

A chat template is a Jinja program that a model's tokenizer carries. What it can be told about reasoning is read
from the variables that it takes from outside, never from words that stand in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from dflash.backends.base import Message
from dflash.errors import MissingExtraError, ModelError, RequestError, UsageError
from dflash.quickstart import QUICKSTART, TARGET_NAME
from dflash.reachability import find_unreachable_hub, local_files_only_if_unreachable, quiet_hub

REASONING_SWITCHES = ("enable_thinking", "thinking")  # Qwen3, GLM, Gemma …; DeepSeek V3.1, Granite, Kimi
REASONING_LEVELS = ("reasoning_effort", "reasoning_strength")
DATE_FUNCTION = "strftime_now"  # what a template calls to write today's date


def load_tokenizer(location: str, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model id or folder; no weights are read.

    Where the model hub cannot be reached, only what is at hand is looked at, and the error says so.

    Raises:
        MissingExtraError: transformers is not installed.
        ModelError: there is no tokenizer to be had.
    """
    try:
        import jinja2  # noqa: F401 - transformers would miss it only when a template is rendered
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"a model's chat template needs the package {error.name!r}, which is not installed",
            "pip install 'dflash[transformers]'",
        ) from error
    mend = "name a folder or id that has one"
    if location.startswith(("/", ".", "~")):
        folder = Path(location).expanduser()
        if not folder.is_dir():
            raise ModelError(f"the model {location!r} is no folder", mend)
        location = str(folder)
    unreachable = find_unreachable_hub(location)
    try:
        with quiet_hub():
            tokenizer = AutoTokenizer.from_pretrained(
                location, trust_remote_code=trust_remote_code, **local_files_only_if_unreachable(location)
            )
    except Exception as error:  # not found, refused, damaged …: it raises from several trees, and plain ones
        if location in (TARGET_NAME, QUICKSTART):
            mend = f"the target of the first run is named by --model {QUICKSTART}"
        elif unreachable is not None:
            mend = f"{mend}, or name a mirror of the hub in HF_ENDPOINT"
        # What is at hand and damaged is no fault of the hub: those errors are of other kinds.
        reason = unreachable if unreachable and isinstance(error, OSError) else _first_line(error)
        raise ModelError(f"the tokenizer of {location!r} cannot be loaded ({reason})", mend) from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # made from the config alone
        raise ModelError(f"the tokenizer of {location!r} knows no word: its files are not there", mend)
    return tokenizer


def stop_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends an answer: all of `generation_config` and the tokenizer's own."""
    found: set[int] = set()
    for ids in (getattr(model.generation_config, "eos_token_id", None), tokenizer.eos_token_id):
        found.update(ids if isinstance(ids, (list, tuple)) else () if ids is None else (ids,))
    return frozenset(found)


def render_prompt(tokenizer: Any, messages: Sequence[Message], reasoning: str) -> tuple[int, ...]:
    """Token ids of a conversation in the model's own chat template, with the begin token at most once.

    It stands once where either the template writes it or the tokenizer would add it. A tokenizer without a
    template is given the messages as plain lines, with its own special tokens.

    Raises:
        UsageError: the reasoning setting is not known to the template, or the template is damaged.
        RequestError: the template refuses these messages (a role that it does not know …).
    """
    return render(tokenizer, messages, reasoning)[1]


def render_text(tokenizer: Any, messages: Sequence[Message], reasoning: str) -> str:
    """The text that `render_prompt` gives the ids of, special tokens included. Raises the same."""
    return render(tokenizer, messages, reasoning)[0]


def render(tokenizer: Any, messages: Sequence[Message], reasoning: str) -> tuple[str, tuple[int, ...]]:
    """Text and token ids at once: see `render_text` and `render_prompt`, whose errors it raises."""
    template = find_chat_template(tokenizer)
    if template is None:
        return _render_plain(tokenizer, messages, reasoning)
    text = _apply_template(tokenizer, messages, reasoning_arguments(template, reasoning))
    ids = _ids(tokenizer, text)
    begin = tokenizer.bos_token_id
    if begin is not None and ids[:1] != (begin,) and _adds_begin_token(tokenizer):
        return tokenizer.bos_token + text, (begin, *ids)
    return text, ids


def find_chat_template(tokenizer: Any) -> str | None:
    """The template that a conversation without tools is rendered with; None: the tokenizer has none.

    Raises:
        UsageError: there are several, and none is the default.
    """
    template = tokenizer.chat_template
    if isinstance(template, dict):
        if template and "default" not in template:
            raise UsageError(
                f"the tokenizer has the chat templates {', '.join(sorted(template))} and no default",
                "save the one to use as its only chat template",
            )
        template = template.get("default")
    return str(template) if template else None


@lru_cache(maxsize=16)
def template_variables(template: str) -> frozenset[str]:
    """Names that a template takes from outside: used before any `set`, `for` or macro of its own gives them.

    Raises:
        UsageError: it is no Jinja template.
    """
    import jinja2.meta

    try:
        # The tags are those that transformers renders with.
        environment = jinja2.Environment(extensions=[_generation_tag(), "jinja2.ext.loopcontrols"])
        return frozenset(jinja2.meta.find_undeclared_variables(environment.parse(template)))
    except jinja2.TemplateSyntaxError as error:
        raise UsageError(
            f"the model's chat template is damaged (line {error.lineno}: {_first_line(error)})",
            "fetch the tokenizer again",
        ) from error


def reasoning_arguments(template: str, reasoning: str) -> dict[str, Any]:
    """What a chat template is told about reasoning: a switch, or a level, by the variables that it knows.

    A level goes with the switch on, where a template knows both: many think at no level unless switched on.

    Raises:
        UsageError: the template knows no such setting, or it is damaged.
    """
    known = template_variables(template)
    switches = [name for name in REASONING_SWITCHES if name in known]
    levels = [name for name in REASONING_LEVELS if name in known]
    if reasoning in ("off", "on"):
        if switches:
            return dict.fromkeys(switches, reasoning == "on")
        if reasoning == "off" and not levels:
            return {}
    elif levels:
        return {**dict.fromkeys(switches, True), **dict.fromkeys(levels, reasoning)}
    default = ", which is the default" if reasoning == "off" else ""
    raise UsageError(
        f"the model's chat template knows no --reasoning {reasoning}{default}",
        _mend(reasoning, switches, levels),
    )


def _mend(reasoning: str, switches: Sequence[str], levels: Sequence[str]) -> str:
    if levels:
        why = "cannot switch reasoning off" if reasoning == "off" else "is told a level and nothing else"
        return f"give --reasoning low, medium or high: this template {why}"
    if switches:
        return "give --reasoning off or on: this template knows no levels"
    return "leave it out, or give --reasoning off: this template has no reasoning switch"


def _apply_template(tokenizer: Any, messages: Sequence[Message], arguments: dict[str, Any]) -> str:
    import jinja2

    try:
        text: str = tokenizer.apply_chat_template(
            [{"role": message.role, "content": message.content} for message in messages],
            add_generation_prompt=True,
            tokenize=False,
            **arguments,
        )
    except (jinja2.TemplateError, TypeError) as error:
        raise RequestError(
            "refused_by_template",
            f"the model's chat template refuses the messages ({_first_line(error)})",
            "use another data set, or another model",
        ) from error
    return text


def _render_plain(tokenizer: Any, messages: Sequence[Message], reasoning: str) -> tuple[str, tuple[int, ...]]:
    if reasoning not in ("off", ""):
        raise UsageError(f"--reasoning {reasoning} needs a chat template", "the tokenizer has none")
    text = "\n".join(message.content for message in messages)
    ids = _ids(tokenizer, text)
    if ids and ids[0] == tokenizer.bos_token_id:  # the text begins with the begin token, in letters
        return text, ids
    whole = tuple(tokenizer(text)["input_ids"])
    start = _place_of(ids, whole)
    before, after = whole[:start], whole[start + len(ids) :]
    return "".join((*_tokens(tokenizer, before), text, *_tokens(tokenizer, after))), whole


def _ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def _adds_begin_token(tokenizer: Any) -> bool:
    """Whether the tokenizer sets its begin token before a text by itself."""
    ids: Sequence[int] = tokenizer("a")[
        "input_ids"
    ]  # not "": an end token of the same id would look the same
    return bool(ids) and ids[0] == tokenizer.bos_token_id


def _place_of(part: Sequence[int], whole: Sequence[int]) -> int:
    """Where `part` begins in `whole`: special tokens are added before and after a text, never inside."""
    places = range(len(whole) - len(part) + 1)
    return next((place for place in places if whole[place : place + len(part)] == part), 0)


def _tokens(tokenizer: Any, ids: Sequence[int]) -> Sequence[str]:
    tokens: Sequence[str] = tokenizer.convert_ids_to_tokens(list(ids))
    return tokens


@lru_cache(maxsize=1)
def _generation_tag() -> Any:
    """`{% generation %} … {% endgeneration %}` marks what the model wrote, for training: its body is rendered."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class GenerationTag(Extension):
        tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    return GenerationTag


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
