"""How much the MLX loops cost beyond the model's own forwards, and whether the baseline is a fair one.

Prints in one run, on a tiny random float32 target of mlx-lm and a random draft, on this machine:
  (a) speed of the baseline loop over `mlx_lm.stream_generate` for the same tokens (at least 1.0 is wanted: a slow
      baseline would inflate every speedup);
  (b) time of a DFlash step over its bare draft and target forwards of the same shapes (at most 1.10).

Both are measured in turns in this process, and each repeat does the same work. Of every step the fastest of the
repeats is taken: what others do on the machine only adds to a time.

    python benchmarks/mlx_overhead.py [--kind qwen3|llama|qwen3_5] [--repeats 7] [--block-size 8]
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generation_stream, stream_generate

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
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--block-size", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=24)
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


def print_baseline_ratio(target: MLXTarget, prompt: list[int], options: Any) -> None:
    """(a): both make the same tokens, greedy, no stop; prefill included in both."""
    their_s: list[list[float]] = []  # by repeat, by token
    our_s: list[list[float]] = []
    for repeat in range(options.repeats + 1):
        token_ids, times_s = [], []
        mx.synchronize()
        last_s = time.perf_counter()
        for answer in stream_generate(target.model, NoText(), prompt, max_tokens=options.new_tokens):
            now_s = time.perf_counter()
            times_s.append(now_s - last_s)
            token_ids.append(answer.token)
            last_s = now_s
        mx.synchronize(generation_stream)  # it leaves a forward under way, which would slow down what follows
        decoded = decode(target, None, prompt, options.new_tokens, None)
        if tuple(token_ids) != decoded.output_ids:
            raise SystemExit("the baseline and mlx_lm.stream_generate give other tokens: nothing to compare")
        if repeat:  # the first is warm-up
            their_s.append(times_s)
            gaps_ns = (decoded.first_ns - decoded.sent_ns, *decoded.step_gaps_ns)
            our_s.append([gap_ns / 1e9 for gap_ns in gaps_ns])
    theirs, ours = fastest_s(their_s), fastest_s(our_s)
    print(
        f"(a) baseline loop over mlx_lm.stream_generate: {theirs / ours:.3f}x its speed "
        f"({ours * 1e3:.1f} ms a token)"
    )


def fastest_s(times_s: list[list[float]]) -> float:
    """Mean over steps of the fastest repeat of each."""
    fastest = [min(step) for step in zip(*times_s, strict=True)]
    return statistics.fmean(fastest)


def print_loop_ratio(target: MLXTarget, draft: DFlashDraftModel, prompt: list[int], options: Any) -> None:
    """(b): a step in the loop, and as bare forwards of the same shapes, in turns."""
    loop_s: list[list[float]] = []  # by repeat, by step
    bare_s: list[list[float]] = []
    for repeat in range(options.repeats + 1):
        decoded = decode(target, draft, prompt, options.new_tokens, None, block_size=options.block_size)
        steps_s = bare_forwards_s(target, draft, decoded)
        if repeat:  # the first is warm-up
            loop_s.append([gap_ns / 1e9 for gap_ns in decoded.step_gaps_ns[1:]])
            bare_s.append(steps_s[1:])
    loop, bare = fastest_s(loop_s), fastest_s(bare_s)
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
