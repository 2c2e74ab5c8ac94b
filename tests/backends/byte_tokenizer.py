"""Tokenizers for tests: one token a byte, so that ids and text say the same, and a chat template of choice."""

from __future__ import annotations

from typing import Any

BEGIN = "<s>"
END = "</s>"


def make_tokenizer(
    template: Any = None, *, begin: str | None = BEGIN, adds: str = "$A", special: tuple[str, ...] = ()
) -> Any:
    """`adds` is what the tokenizer sets around a text by itself; `special` are further special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BEGIN, END, *special])
    if adds != "$A":
        names = [word for word in adds.split() if word != "$A"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=adds, special_tokens=[(name, tokenizer.token_to_id(name)) for name in names]
        )
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, bos_token=begin)
    made.chat_template = template
    return made
