"""The catalogue's entries for conversations, mixed tasks, and long contexts, and the set that is shipped.

Commits of the model hub are written only where public code was seen to pin that data set to them: the comment
says where. SHA-256 digests are those of the files themselves.
"""

from __future__ import annotations

from dflash.datasets.spec import DatasetSpec, HubSource, PublishedFile
from dflash.datasets.templates import quickstart_prompt
from dflash.datasets.templates_chat import (
    MT_BENCH_CATEGORIES,
    SPEC_BENCH_CATEGORIES,
    SPEED_BENCH_QUALITATIVE_CATEGORIES,
    SPEED_BENCH_THROUGHPUT_CATEGORIES,
    alpaca_prompt,
    mt_bench_prompt,
    sharegpt_prompt,
    spec_bench_prompt,
    speed_bench_preparation,
    speed_bench_prompt,
)
from dflash.datasets.templates_long import LONGBENCH_TASKS, longbench_prompt


def _speed_bench(
    name: str, config: str, group: str | None, num_rows: int, categories: tuple[str, ...]
) -> DatasetSpec:
    return DatasetSpec(
        name=name,
        title=f"SPEED-Bench, {config.replace('_', ' ')}",
        group=group,
        licence="NVIDIA Evaluation Dataset License; its sources have licences of their own",
        template_version=f"{name}-1",
        columns=("question_id", "category", ("turns", "messages")),
        to_prompt=speed_bench_prompt(config, categories),
        num_rows=num_rows,
        categories=categories,
        split="test",
        files=(
            PublishedFile(path=f"speed_bench/{config}/test.parquet"),  # as Model-Optimizer writes it
            PublishedFile(path=f"speed_bench/{config}.jsonl"),  # as NeMo-Skills writes it
        ),
        hub=HubSource(
            dataset_id="nvidia/SPEED-Bench",
            config=config,
            files=(),
            # seen as the revision of this data set in several public scripts and notes of its results
            revision="454f88454792dfa3ccfd7ef15fff248efde44cd1",
        ),
        needs_preparation="many of its rows on the hub hold a placeholder in place of other data sets' texts: "
        + speed_bench_preparation(config),
    )


QUICKSTART = DatasetSpec(
    name="quickstart",
    title="short questions for a small model: math, code, chat, and other kinds",
    group=None,
    licence="MIT",
    template_version="quickstart-1",
    columns=("prompt_id", "category", "turns"),
    to_prompt=quickstart_prompt,
    num_rows=68,
    categories=("math", "code", "chat", "open"),
    shipped="quickstart/prompts.jsonl",
)

CHAT_ENTRIES = (
    DatasetSpec(
        name="mt-bench",
        title="open questions of eight kinds, two turns each",
        group="chat",
        licence="Apache-2.0",
        template_version="mt-bench-1",
        columns=("category", ("turns", "prompt")),
        to_prompt=mt_bench_prompt,
        num_rows=80,
        categories=MT_BENCH_CATEGORIES,
        split="train",
        files=(
            PublishedFile(
                path="mt_bench/question.jsonl",
                sha256="119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
                num_bytes=48929,
                num_rows=80,
                github="lm-sys/FastChat@0e6d3e4beaab66f4d3f93db72541a4abab8af28d:"
                "fastchat/llm_judge/data/mt_bench/question.jsonl",
            ),
        ),
        hub=HubSource(
            dataset_id="HuggingFaceH4/mt_bench_prompts",
            files=("raw/question.jsonl",),
            # seen with this file in several public lists of benchmark sources
            revision="e3a795c5e9a82ee40611c416b8a7786c73198991",
        ),
    ),
    DatasetSpec(
        name="alpaca",
        title="instructions that a model wrote",
        group="chat",
        licence="CC-BY-NC-4.0",
        template_version="alpaca-1",
        columns=("instruction", "input"),
        to_prompt=alpaca_prompt,
        num_rows=52002,
        categories=("chat",),
        split="train",
        files=(
            # A part of the set: recognised where it is at hand, never fetched in the place of the whole.
            PublishedFile(
                path="alpaca/alpaca_data.json",
                sha256="0eb9d69c541162daa8ae63003b3da70547bf278e2207fd6369857b382dd8c53b",
                num_bytes=2468633,
                num_rows=2000,
            ),
        ),
        hub=HubSource(
            dataset_id="tatsu-lab/alpaca",
            files=("data/train-00000-of-00001-a09b74b3ef9c3b56.parquet",),
            # seen with this file in several public lists of data set sources
            revision="dce01c9b08f87459cf36a430d809084718273017",
        ),
    ),
    DatasetSpec(
        name="sharegpt",
        title="conversations that people shared, version 3",
        group="chat",
        licence="Apache-2.0 (hub); whose the conversations are is disputed",
        template_version="sharegpt-1",
        columns=("conversations",),
        to_prompt=sharegpt_prompt,
        num_rows=94145,  # of the file; those in which nobody says anything are no prompts
        categories=("chat",),
        split="train",
        files=(
            PublishedFile(
                path="sharegpt/ShareGPT_V3_unfiltered_cleaned_split.json",
                sha256="35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4",
                num_bytes=672_837_942,
                num_rows=94145,
            ),
            # A part of the set, the first human turn of each: recognised where it is at hand, never fetched.
            PublishedFile(
                path="sharegpt/ShareGPT_V3_filtered_500.json",
                sha256="1dfcb9e6a6b794145128a3d2dd2f3c83aff8f11c806654e77aede2b0cda30e0e",
                num_bytes=216075,
                num_rows=500,
            ),
        ),
        hub=HubSource(
            dataset_id="anon8231489123/ShareGPT_Vicuna_unfiltered",
            files=("ShareGPT_V3_unfiltered_cleaned_split.json",),
            # sgl-project/sglang, python/sglang/test/ascend/e2e/run_ascend_testcase.sh at 52a496a
            revision="192ab2185289094fc556ec8ce5ce1e8e587154ca",
            num_bytes=672_837_942,
        ),
    ),
    DatasetSpec(
        name="spec-bench",
        title="six tasks to measure speculative decoding",
        group="chat",
        licence="Apache-2.0",
        template_version="spec-bench-1",
        columns=("question_id", "category", "turns"),
        to_prompt=spec_bench_prompt,
        num_rows=480,
        categories=SPEC_BENCH_CATEGORIES,
        files=(
            PublishedFile(
                path="spec_bench/question.jsonl",
                sha256="4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04",
                num_bytes=698768,
                num_rows=480,
                github="hemingkx/Spec-Bench@fd2c1cd7d2201ef71db4c5f4e455008f017967bf:"
                "data/spec_bench/question.jsonl",
            ),
        ),
    ),
    _speed_bench("speed-bench", "qualitative", "chat", 880, SPEED_BENCH_QUALITATIVE_CATEGORIES),
    _speed_bench("speed-bench-1k", "throughput_1k", "chat", 1536, SPEED_BENCH_THROUGHPUT_CATEGORIES),
    _speed_bench("speed-bench-2k", "throughput_2k", "chat", 1536, SPEED_BENCH_THROUGHPUT_CATEGORIES),
)

LONG_ENTRIES = (
    DatasetSpec(
        name="longbench",
        title="questions, summaries and code over long contexts, in English and Chinese",
        group=None,
        licence="MIT (LongBench); its sources have licences of their own",
        template_version="longbench-1",
        columns=("input", "context", "dataset"),
        to_prompt=longbench_prompt,
        num_rows=4750,
        categories=LONGBENCH_TASKS,
        split="test",
        hub=HubSource(
            dataset_id="zai-org/LongBench",
            files=tuple(f"data.zip:data/{task}.jsonl" for task in LONGBENCH_TASKS),
            # seen in the address of this archive in several public evaluation scripts
            revision="5e628be450b7e67fb7ae6e201bd6d8f7056f7672",
            num_bytes=113_932_529,
        ),
    ),
    _speed_bench("speed-bench-8k", "throughput_8k", None, 1536, SPEED_BENCH_THROUGHPUT_CATEGORIES),
    _speed_bench("speed-bench-16k", "throughput_16k", None, 1536, SPEED_BENCH_THROUGHPUT_CATEGORIES),
    _speed_bench("speed-bench-32k", "throughput_32k", None, 1536, SPEED_BENCH_THROUGHPUT_CATEGORIES),
)
