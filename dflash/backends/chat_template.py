"""Messages to token ids, in the model's own chat template, and the ids that end an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash.backends.base import Message
from dflash.errors import UsageError


def stop_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends an answer: all of `generation_config` and the tokenizer's own."""
    found: set[int] = set()
    for ids in (getattr(model.generation_config, "eos_token_id", None), tokenizer.eos_token_id):
        found.update(ids if isinstance(ids, (list, tuple)) else () if ids is None else (ids,))
    return frozenset(found)


def render_prompt(tokenizer: Any, messages: Sequence[Message], reasoning: str) -> tuple[int, ...]:
    """Token ids of a conversation in the model's own chat template; the template sets the begin token, once.

    A tokenizer without a template is given the turns as plain text, with its own special tokens.

    Raises:
        UsageError: the reasoning setting is not known to the template.
    """
    template = tokenizer.chat_template
    if not template:
        if reasoning not in ("off", ""):
            raise UsageError(f"--reasoning {reasoning} needs a chat template", "the tokenizer has none")
        return tuple(tokenizer("\n".join(message.content for message in messages))["input_ids"])
    text = tokenizer.apply_chat_template(
        [{"role": message.role, "content": message.content} for message in messages],
        add_generation_prompt=True,
        tokenize=False,
        **reasoning_arguments(str(template), reasoning),
    )
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def reasoning_arguments(template: str, reasoning: str) -> dict[str, Any]:
    """What a chat template is told about reasoning: `enable_thinking`, or a level, by what it knows.

    Raises:
        UsageError: the template knows no such setting.
    """
    if reasoning in ("off", "on"):
        if "enable_thinking" in template:
            return {"enable_thinking": reasoning == "on"}
        if reasoning == "off":
            return {}
    else:
        for name in ("reasoning_effort", "reasoning_strength"):
            if name in template:
                return {name: reasoning}
    raise UsageError(
        f"the model's chat template knows no --reasoning {reasoning}", "leave it out, or use off"
    )
