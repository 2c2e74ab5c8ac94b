"""How much the loops cost beyond the model's own forwards, and whether the baseline is a fair one.

Prints in one run, on the quickstart pair and this machine:
  (a) speed of the baseline loop over `model.generate()` of transformers on the same prompts (at least 1.0 is wanted:
      a slow baseline would inflate every speedup);
  (b) time of the DFlash loop over the sum of its bare draft and target forwards of the same shapes (at most 1.05);
  (c) growth of the time of a step from a short to a long context, over that of the bare forwards (no more than 1);
  (d) peak memory above the weights, per arm, at the long context.

Every figure is a ratio of medians of alternating measurements in this process; times are noisy on shared machines.

    python benchmarks/loop_overhead.py [--repeats 5] [--block-size 4] [--long-context 1500]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dflash import quickstart
from dflash.backends.memory import PeakMemory
from dflash.decoded import Decoded
from dflash.decoding import dflash_generate, plain_generate
from dflash.few_rows import use_few_row_products, use_grouped_attention
from dflash.model import DFlashDraftModel
from dflash.quickstart.target import ensure_target
from dflash.target import FeatureTap, Target

PROMPT = "A train travels 80 miles per hour. How far does it go in 4 hours?"


def main() -> None:
    options = parse_options()
    model, tokenizer, draft = load_pair()
    target = Target(model)
    ids = prompt_ids(tokenizer)
    long_ids = (ids * (options.long_context // len(ids) + 1))[: options.long_context]
    print(f"quickstart pair, float32, {torch.get_num_threads()} threads, block size {options.block_size}")
    print_baseline_ratio(model, target, ids, options)
    short = step_times_s(target, draft, ids[: options.short_context], options)
    long = step_times_s(target, draft, long_ids, options)
    print_loop_ratio("(b)", options.short_context, *short)
    print_loop_ratio("(b)", options.long_context, *long)
    growth = (long[0] / short[0]) / (long[1] / short[1])
    print(f"(c) growth of the step time, loop over bare forwards: {growth:.3f}")
    print_memory(target, draft, long_ids, options)


def parse_options() -> Any:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--block-size", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--short-context", type=int, default=100)
    parser.add_argument("--long-context", type=int, default=1500)
    return parser.parse_args()


def load_pair() -> tuple[Any, Any, DFlashDraftModel]:
    folder = ensure_target()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    draft = DFlashDraftModel.from_pretrained(quickstart.DRAFT_FOLDER)
    use_few_row_products(model)
    use_few_row_products(draft)
    use_grouped_attention(model)
    return model, AutoTokenizer.from_pretrained(folder), draft


def prompt_ids(tokenizer: Any) -> list[int]:
    messages = [{"role": "user", "content": f"{PROMPT} Explain it step by step. {PROMPT} " * 2}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def timed_s(work: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


@torch.inference_mode()
def print_baseline_ratio(model: Any, target: Target, ids: list[int], options: Any) -> None:
    """(a): both make the same number of tokens, stop tokens off, greedy; prefill included in both."""
    input_ids = torch.tensor([ids])
    num_tokens = options.new_tokens

    def generate() -> object:
        return model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
        )

    def baseline() -> object:
        return plain_generate(target, ids, num_tokens, None)

    generate(), baseline()
    pairs = [(timed_s(generate), timed_s(baseline)) for _ in range(options.repeats)]
    ratio = statistics.median(theirs / ours for theirs, ours in pairs)
    print(f"(a) baseline loop over model.generate(): {ratio:.3f}x its speed ({num_tokens} tokens)")


@torch.inference_mode()
def step_times_s(
    target: Target, draft: DFlashDraftModel, ids: list[int], options: Any
) -> tuple[float, float]:
    """Median seconds of a DFlash step: in the loop, and as bare forwards of the same shapes, in turns."""
    loop_s: list[float] = []
    bare_s: list[float] = []
    for repeat in range(options.repeats + 1):
        decoded = dflash_generate(
            draft, target, ids, options.new_tokens, None, block_size=options.block_size, return_stats=True
        )
        assert isinstance(decoded, Decoded)
        steps_s = bare_forwards_s(target, draft, decoded)
        if repeat:  # the first is warm-up
            loop_s += [gap_ns / 1e9 for gap_ns in decoded.step_gaps_ns[1:]]
            bare_s += steps_s[1:]
    return statistics.median(loop_s), statistics.median(bare_s)


def bare_forwards_s(target: Target, draft: DFlashDraftModel, decoded: Decoded) -> list[float]:
    """Replays the forwards of a generation step by step: embedding, draft, head, target; no choice, count or cut."""
    block_size = decoded.block_size or 2
    capacity = len(decoded.prompt_ids) + len(decoded.output_ids) + 2 * block_size
    cache, draft_cache = target.new_cache(capacity), draft.new_cache(capacity)
    block = torch.full((block_size,), draft.config.mask_token_id)
    times_s = []
    with FeatureTap(target, draft.target_layer_ids) as tap:
        target.forward(torch.tensor([decoded.prompt_ids]), cache, num_logits=1, has_tap=True)
        num_new = committed = len(decoded.prompt_ids)
        for num_accepted in decoded.step_num_accepted:
            features = tap.features(num_new)
            start_s = time.perf_counter()
            hidden = draft(target.embed(block)[None], features, draft_cache)
            target.head(hidden[0, 1:])
            target.forward(block[None], cache)
            times_s.append(time.perf_counter() - start_s)
            num_new = num_accepted + 1
            committed += num_new
            cache.rollback_to(committed)
    return times_s


def return_freed_memory() -> None:
    """Give what the last arm freed back to the system: it would hide what the next one needs."""
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def print_loop_ratio(mark: str, context: int, loop_s: float, bare_s: float) -> None:
    print(
        f"{mark} DFlash step over bare forwards at {context} tokens of context: {loop_s / bare_s:.3f} "
        f"({loop_s * 1e3:.1f} ms over {bare_s * 1e3:.1f} ms)"
    )


def print_memory(target: Target, draft: DFlashDraftModel, ids: list[int], options: Any) -> None:
    arms: tuple[tuple[str, Callable[[], object]], ...] = (
        ("baseline", lambda: plain_generate(target, ids, options.new_tokens, None)),
        (
            "dflash",
            lambda: dflash_generate(
                draft, target, ids, options.new_tokens, None, block_size=options.block_size
            ),
        ),
    )
    for name, work in arms:
        return_freed_memory()
        memory = PeakMemory(target.device)
        work()
        peak_bytes = memory.peak_bytes()
        shown = "n/a" if peak_bytes is None else f"{peak_bytes / 1e6:.1f} MB"
        print(f"(d) peak memory above the weights, {name}, {len(ids)} + {options.new_tokens} tokens: {shown}")


if __name__ == "__main__":
    main()
