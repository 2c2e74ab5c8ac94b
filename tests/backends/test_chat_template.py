"""Prompts in a model's own chat template: the exact text, its ids, and what the template is told of reasoning.

The tokenizers have one token a byte; the templates have the shape of well-known models' ones.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from backends.byte_tokenizer import BEGIN, END, make_tokenizer

from dflash import reachability
from dflash.backends.base import Message
from dflash.backends.chat_template import (
    find_chat_template,
    load_tokenizer,
    reasoning_arguments,
    render,
    render_prompt,
    render_text,
    template_variables,
)
from dflash.errors import ModelError, RequestError, UsageError

ASK = (Message("user", "two + two? é\u2028東"),)

# What each family of models does, in a few words of our own.
CHATML = (
    "{% for message in messages %}{{ '<|start|>' + message.role + '\\n' + message.content + '<|end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"
)
WRITES_BEGIN = "{{ bos_token }}" + CHATML  # Llama 3
SWITCH = CHATML + (  # Qwen3
    "{%- if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
)
DEFAULTED_SWITCH = (  # Gemma 4
    "{%- set enable_thinking = enable_thinking | default(false) -%}"
    + CHATML
    + "{% if enable_thinking %}<think>{% endif %}"
)
OTHER_SWITCH = (  # DeepSeek V3.1
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
    + WRITES_BEGIN
    + "{% if thinking %}{{ '<think>' }}{% else %}{{ '</think>' }}{% endif %}"
)
LEVEL = (  # gpt-oss: the level is read inside a macro
    "{%- macro system() -%}{%- if reasoning_effort is not defined %}{%- set reasoning_effort = 'medium' %}"
    "{%- endif %}{{- 'Date: ' + strftime_now('%Y-%m-%d') + ' Reasoning: ' + reasoning_effort }}"
    "{%- endmacro -%}{{ system() }}{% for message in messages %}"
    "{% if message.thinking %}{{ message.thinking }}{% endif %}{{ message.content }}{% endfor %}"
)
STRENGTH = CHATML + "{{ 'Reasoning strength: ' ~ reasoning_strength }}"
SWITCH_AND_LEVEL = SWITCH + "{% if reasoning_effort %}{{ 'effort ' + reasoning_effort }}{% endif %}"
BOTH_SWITCHES = (
    "{%- if not thinking is defined %}{%- if enable_thinking is defined %}"
    "{%- set thinking = enable_thinking %}{%- else %}{%- set thinking = false %}{%- endif %}{%- endif %}"
    + CHATML
)
# The word stands in it, but nothing from outside of that name is read.
ONLY_WORDS = (
    "{# enable_thinking #}{% set thinking = 'enable_thinking' %}{{ thinking }}"
    "{% for message in messages %}{% generation %}{{ message.reasoning_effort }}{{ message.content }}"
    "{% endgeneration %}{% if loop.last %}{% break %}{% endif %}{% endfor %}"
)


ADDS_BEGIN = f"{BEGIN} $A"
TURN = "<|start|>user\n" + ASK[0].content + "<|end|>\n<|start|>assistant\n"


@pytest.mark.parametrize(
    ("template", "adds", "expected"),
    [
        (WRITES_BEGIN, ADDS_BEGIN, BEGIN + TURN),  # both do
        (WRITES_BEGIN, "$A", BEGIN + TURN),  # the template does
        (CHATML, ADDS_BEGIN, BEGIN + TURN),  # the tokenizer does
        (CHATML, "$A", TURN),  # neither does
        (CHATML, f"{BEGIN} $A {END}", BEGIN + TURN),  # an end token would end the answer before it began
        (CHATML, f"$A {END}", TURN),
        (None, ADDS_BEGIN, BEGIN + ASK[0].content),
        (None, "$A", ASK[0].content),
        ("", ADDS_BEGIN, BEGIN + ASK[0].content),
    ],
)
def test_the_begin_token_stands_once_or_not_at_all(template: str | None, adds: str, expected: str) -> None:
    tokenizer = make_tokenizer(template, adds=adds)
    text, ids = render(tokenizer, ASK, "off")
    assert text == expected
    assert tokenizer.decode(list(ids)) == expected
    assert ids.count(tokenizer.bos_token_id) == expected.count(BEGIN) <= 1
    assert (render_text(tokenizer, ASK, "off"), render_prompt(tokenizer, ASK, "off")) == (text, ids)


def test_an_end_token_of_the_same_id_is_no_begin_token() -> None:
    tokenizer = make_tokenizer(CHATML, begin=END, adds=f"$A {END}")
    assert tokenizer.bos_token_id == tokenizer.eos_token_id
    assert render_text(tokenizer, ASK, "off") == TURN


def test_a_tokenizer_without_a_begin_token_gets_none() -> None:
    tokenizer = make_tokenizer(CHATML, begin=None)
    assert tokenizer.bos_token_id is None
    assert render_text(tokenizer, ASK, "off") == TURN


def test_without_a_template_the_own_special_tokens_stand_around_plain_lines() -> None:
    tokenizer = make_tokenizer(begin=None, adds="[g] <o> $A", special=("[g]", "<o>"))
    messages = (Message("system", "be brief"), *ASK)
    text, ids = render(tokenizer, messages, "off")
    assert text == "[g]<o>be brief\n" + ASK[0].content
    assert ids == tuple(tokenizer("be brief\n" + ASK[0].content)["input_ids"])


def test_a_text_that_begins_with_the_begin_token_is_given_no_second_one() -> None:
    tokenizer = make_tokenizer(adds=ADDS_BEGIN)
    text, ids = render(tokenizer, (Message("user", f"{BEGIN}two"),), "off")
    assert text == f"{BEGIN}two"
    assert ids.count(tokenizer.bos_token_id) == 1


def test_every_message_is_in_the_text_as_it_is() -> None:
    messages = (Message("system", " a\r\nb "), Message("user", "one"), Message("assistant", ""), *ASK)
    text = render_text(make_tokenizer(CHATML), messages, "off")
    assert text.startswith("<|start|>system\n a\r\nb <|end|>\n<|start|>user\none<|end|>\n")
    assert text.endswith("<|start|>assistant\n<|end|>\n" + TURN)


def test_of_several_templates_the_default_is_used() -> None:
    tokenizer = make_tokenizer({"default": CHATML, "tool_use": "tools"})
    assert find_chat_template(tokenizer) == CHATML
    assert render_text(tokenizer, ASK, "off") == TURN
    with pytest.raises(UsageError, match="no default"):
        find_chat_template(make_tokenizer({"rag": CHATML, "tool_use": "tools"}))


@pytest.mark.parametrize(
    ("template", "reasoning", "told", "end"),
    [
        (CHATML, "off", {}, "assistant\n"),
        (SWITCH, "off", {"enable_thinking": False}, "<think>\n\n</think>\n\n"),
        (SWITCH, "on", {"enable_thinking": True}, "assistant\n"),
        (DEFAULTED_SWITCH, "on", {"enable_thinking": True}, "<think>"),
        (DEFAULTED_SWITCH, "off", {"enable_thinking": False}, "assistant\n"),
        (OTHER_SWITCH, "off", {"thinking": False}, "</think>"),
        (OTHER_SWITCH, "on", {"thinking": True}, "<think>"),
        (BOTH_SWITCHES, "on", {"enable_thinking": True, "thinking": True}, "assistant\n"),
        (LEVEL, "high", {"reasoning_effort": "high"}, "Reasoning: high" + ASK[0].content),
        (STRENGTH, "low", {"reasoning_strength": "low"}, "Reasoning strength: low"),
        (SWITCH_AND_LEVEL, "low", {"enable_thinking": True, "reasoning_effort": "low"}, "effort low"),
        (SWITCH_AND_LEVEL, "off", {"enable_thinking": False}, "</think>\n\n"),
        (SWITCH_AND_LEVEL, "on", {"enable_thinking": True}, "assistant\n"),
        (ONLY_WORDS, "off", {}, ASK[0].content),
    ],
)
def test_a_template_is_told_what_it_knows(template: str, reasoning: str, told: object, end: str) -> None:
    assert reasoning_arguments(template, reasoning) == told
    assert render_text(make_tokenizer(template), ASK, reasoning).endswith(end)


@pytest.mark.parametrize(
    ("template", "reasoning", "mend"),
    [
        (LEVEL, "off", "give --reasoning low, medium or high: this template cannot switch reasoning off"),
        (LEVEL, "on", "give --reasoning low, medium or high"),
        (STRENGTH, "off", "give --reasoning low, medium or high: this template cannot switch reasoning off"),
        (SWITCH, "low", "give --reasoning off or on"),
        (OTHER_SWITCH, "high", "give --reasoning off or on"),
        (CHATML, "on", "leave it out, or give --reasoning off: this template has no reasoning switch"),
        (CHATML, "low", "leave it out, or give --reasoning off: this template has no reasoning switch"),
        (ONLY_WORDS, "on", "leave it out"),
        (ONLY_WORDS, "high", "leave it out"),
        (None, "on", "the tokenizer has none"),
        (None, "high", "the tokenizer has none"),
    ],
)
def test_a_setting_that_a_template_lacks_is_refused(template: str | None, reasoning: str, mend: str) -> None:
    with pytest.raises(UsageError) as caught:
        render_prompt(make_tokenizer(template), ASK, reasoning)
    assert f"--reasoning {reasoning}" in caught.value.fault
    assert ("--reasoning off, which is the default" in caught.value.fault) == (reasoning == "off")
    assert mend in caught.value.mend


def test_names_of_a_template_are_those_from_outside() -> None:
    assert template_variables(LEVEL) == {"messages", "reasoning_effort", "strftime_now"}
    assert template_variables(ONLY_WORDS) == {"messages"}


def test_a_damaged_template_is_named_as_such() -> None:
    with pytest.raises(UsageError, match="line 2"):
        render_prompt(make_tokenizer("{{ messages }}\n{% if x %}"), ASK, "off")


@pytest.mark.parametrize(
    "template",
    [
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}x",
        "{{ 'system: ' + messages[0].name }}",
    ],
)
def test_messages_that_a_template_refuses_fail_one_request(template: str) -> None:
    tokenizer = make_tokenizer(template)
    with pytest.raises(RequestError) as caught:
        render_prompt(tokenizer, (Message("system", "be brief"), *ASK), "off")
    assert caught.value.kind == "refused_by_template"
    assert "\n" not in str(caught.value)


def test_a_tokenizer_is_loaded_without_weights(tmp_path: Path) -> None:
    make_tokenizer(SWITCH, adds=ADDS_BEGIN).save_pretrained(tmp_path)
    assert render_text(load_tokenizer(str(tmp_path)), ASK, "off").endswith("</think>\n\n")
    with pytest.raises(ModelError, match="is no folder"):
        load_tokenizer(str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_tokenizer(str(tmp_path / "empty"))
    damaged = tmp_path / "tokenizer.json"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_tokenizer(str(tmp_path))


@pytest.fixture
def unreachable_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The address of a hub that refuses connections; nothing is in the cache of its client."""
    endpoint = "http://127.0.0.1:9"
    monkeypatch.setattr(reachability, "_unreachable", {})
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return endpoint


def test_a_hub_that_is_not_there_is_asked_once_and_named(
    unreachable_hub: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError) as caught:
        load_tokenizer("someone/mistyped")
    assert caught.value.fault == (
        "the tokenizer of 'someone/mistyped' cannot be loaded "
        f"(the model hub {unreachable_hub} cannot be reached: Connection refused)"
    )
    assert "HF_ENDPOINT" in caught.value.mend
    assert capfd.readouterr() == ("", ""), "no line of the hub's client, which would be one a retry"


def test_where_the_hub_is_not_there_what_is_at_hand_is_used(
    unreachable_hub: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple[str, object]] = []

    class Tokenizer:
        all_special_ids = (0, 1)

        def __init__(self, length: int) -> None:
            self._length = length

        def __len__(self) -> int:
            return self._length

    known = Tokenizer(9)

    def from_pretrained(location: str, **options: object) -> Tokenizer:
        seen.append((location, options.get("local_files_only", False)))
        if location == "someone/damaged":
            raise ValueError("not a tokenizer")
        return Tokenizer(2) if location == "someone/without" else known

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", from_pretrained)
    assert load_tokenizer("someone/model") is known
    assert load_tokenizer(str(tmp_path)) is known
    with pytest.raises(ModelError, match=r"cannot be loaded \(not a tokenizer\)"):
        load_tokenizer("someone/damaged")
    with pytest.raises(ModelError, match="knows no word: its files are not there"):
        load_tokenizer("someone/without")
    monkeypatch.setattr(reachability, "_unreachable", {unreachable_hub: None})
    load_tokenizer("someone/model")
    monkeypatch.setattr(reachability, "find_unreachable", lambda url: pytest.fail("asked"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    load_tokenizer("someone/model")
    assert seen == [
        ("someone/model", True),
        (str(tmp_path), False),
        ("someone/damaged", True),
        ("someone/without", True),
        ("someone/model", False),
        ("someone/model", False),
    ]


def test_the_name_of_the_first_runs_target_is_explained(unreachable_hub: str) -> None:
    with pytest.raises(ModelError, match="the target of the first run is named by --model quickstart"):
        load_tokenizer("quickstart-smollm2-135m-q4_1")


def test_importing_it_loads_no_engine() -> None:
    code = "import dflash.backends.chat_template, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "transformers", "jinja2", "tokenizers"}.isdisjoint(done.stdout.split())
