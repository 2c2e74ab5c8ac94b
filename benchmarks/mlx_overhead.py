"""How much the MLX loops cost beyond the model's own forwards, and whether the baseline is a fair one.

Prints in one run, on a tiny random float32 target of mlx-lm and a random draft, on this machine:
  (a) speed of the baseline loop over `mlx_lm.stream_generate` for the same tokens (at least 1.0 is wanted: a slow
      baseline would inflate every speedup);
  (b) time of a DFlash step over its bare draft and target forwards of the same shapes (at most 1.10).

Every figure is a ratio of medians of alternating measurements in this process; times are noisy on shared machines.

    python benchmarks/mlx_overhead.py [--kind qwen3|llama|qwen3_5] [--repeats 7] [--block-size 8]
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm import stream_generate

from dflash.decoded import Decoded
from dflash.draft_config import parse_draft_config
from dflash.mlx_decoding import decode
from dflash.mlx_draft import DFlashDraftModel
from dflash.mlx_target import MLXTarget

HIDDEN, NUM_LAYERS, VOCABULARY, MASK_ID = 256, 6, 1024, 1023
HYBRID = {
    "linear_num_value_heads": 8,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "full_attention_interval": 2,
}


def main() -> None:
    options = parse_options()
    target, draft = MLXTarget(tiny_target(options.kind)), tiny_draft()
    prompt = [3 + 7 * place % (VOCABULARY - 8) for place in range(options.context)]
    print(
        f"tiny {options.kind}, float32, {mx.default_device()}, context {options.context}, {options.new_tokens} tokens"
    )
    print_baseline_ratio(target, prompt, options)
    print_loop_ratio(target, draft, prompt, options)


def parse_options() -> Any:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kind", choices=("qwen3", "llama", "qwen3_5"), default="qwen3")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--block-size", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--context", type=int, default=64)
    return parser.parse_args()


def tiny_target(kind: str) -> Any:
    module = importlib.import_module(f"mlx_lm.models.{kind}")
    content: dict[str, Any] = {
        "model_type": kind,
        "hidden_size": HIDDEN,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "intermediate_size": 768,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        **(HYBRID if kind == "qwen3_5" else {}),
    }
    mx.random.seed(0)
    model = module.Model(module.ModelArgs.from_dict(content))
    mx.eval(model.parameters())
    return model.eval()


def tiny_draft() -> DFlashDraftModel:
    content = {
        "architectures": ["DFlashDraftModel"],
        "block_size": 16,
        "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": [1, 2, 3]},
        "num_target_layers": NUM_LAYERS,
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "intermediate_size": 768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "vocab_size": VOCABULARY,
    }
    draft = DFlashDraftModel(parse_draft_config(content))
    mx.eval(draft.parameters())
    return draft


class NoText:
    """As much of a tokenizer as `mlx_lm.stream_generate` asks for: no token ends, and none has a text."""

    bos_token = eos_token_id = chat_template = None
    eos_token_ids: frozenset[int] = frozenset()
    clean_up_tokenization_spaces = False

    def decode(self, token_ids: Any, **options: Any) -> str:
        return ""

    def encode(self, text: str, **options: Any) -> list[int]:
        return []

    def apply_chat_template(self, *messages: Any, **options: Any) -> str:
        return ""

    def get_vocab(self) -> dict[str, int]:
        return {}


def timed_s(work: Callable[[], object]) -> float:
    mx.synchronize()
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def print_baseline_ratio(target: MLXTarget, prompt: list[int], options: Any) -> None:
    """(a): both make the same tokens, greedy, no stop; prefill included in both."""
    given: list[int] = []

    def theirs() -> None:
        answers = stream_generate(target.model, NoText(), prompt, max_tokens=options.new_tokens)
        given[:] = [answer.token for answer in answers]

    def ours() -> Decoded:
        return decode(target, None, prompt, options.new_tokens, None)

    theirs()
    if tuple(given) != ours().output_ids:
        raise SystemExit("the baseline and mlx_lm.stream_generate give other tokens: nothing to compare")
    pairs = [(timed_s(theirs), timed_s(ours)) for _ in range(options.repeats)]
    ratio = statistics.median(their_s / our_s for their_s, our_s in pairs)
    print(f"(a) baseline loop over mlx_lm.stream_generate: {ratio:.3f}x its speed")


def print_loop_ratio(target: MLXTarget, draft: DFlashDraftModel, prompt: list[int], options: Any) -> None:
    """(b): a step in the loop, and as bare forwards of the same shapes, in turns."""
    loop_s: list[float] = []
    bare_s: list[float] = []
    for repeat in range(options.repeats + 1):
        decoded = decode(target, draft, prompt, options.new_tokens, None, block_size=options.block_size)
        steps_s = bare_forwards_s(target, draft, decoded)
        if repeat:  # the first is warm-up
            loop_s += [gap_ns / 1e9 for gap_ns in decoded.step_gaps_ns[1:]]
            bare_s += steps_s[1:]
    loop, bare = statistics.median(loop_s), statistics.median(bare_s)
    print(
        f"(b) DFlash step over bare forwards, B={options.block_size}: {loop / bare:.3f} "
        f"({loop * 1e3:.1f} ms over {bare * 1e3:.1f} ms)"
    )


def bare_forwards_s(target: MLXTarget, draft: DFlashDraftModel, decoded: Decoded) -> list[float]:
    """The forwards of a generation step by step: embedding, draft, head, target; no choice, count or rollback."""
    block_size, layer_ids = decoded.block_size or 2, draft.target_layer_ids
    cache = target.new_cache()
    draft_cache = draft.new_cache(len(decoded.prompt_ids) + (len(decoded.output_ids) + 2) * block_size)
    block = mx.full((block_size,), MASK_ID)
    context = target.forward(mx.array(decoded.prompt_ids), cache, layer_ids=layer_ids).features
    times_s = []
    for num_accepted in decoded.step_num_accepted:
        assert context is not None
        mx.eval(context, cache.arrays())
        start_s = time.perf_counter()
        hidden = draft(target.embedding(block)[None], context, draft_cache)
        proposed = target.head(hidden[0, 1:])
        forward = target.forward(block, cache, layer_ids=layer_ids, can_roll_back=True)
        mx.eval(proposed, forward.logits)
        times_s.append(time.perf_counter() - start_s)
        assert forward.features is not None
        context = forward.features[:, : num_accepted + 1]
        cache.rollback(block_size, num_accepted + 1)
    return times_s


if __name__ == "__main__":
    main()
