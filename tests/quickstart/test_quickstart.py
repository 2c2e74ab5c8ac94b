"""What is shipped for a first run: whole, apart from each other, and cheap to ask about."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from dflash.dataset_store import load_prompts
from dflash.quickstart import DEFAULT_BLOCK_SIZE, DRAFT_FOLDER, TARGET_GGUF_SHA256, warmup_prompts
from dflash.quickstart.target import TARGET_WHEEL

DRAFT_SHA256 = "65e96ef0674aa500a02f6d3dfd8ddd58651130b203ebddd59780b1ef9c7d903f"


def test_the_draft_is_the_one_that_its_page_describes() -> None:
    weights = DRAFT_FOLDER / "model.safetensors"
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == DRAFT_SHA256
    page = (DRAFT_FOLDER / "README.md").read_text(encoding="utf-8")
    assert DRAFT_SHA256 in page
    assert TARGET_GGUF_SHA256 in page
    assert "../" not in page
    config = json.loads((DRAFT_FOLDER / "config.json").read_text(encoding="utf-8"))
    assert 2 <= DEFAULT_BLOCK_SIZE <= config["block_size"]


def test_the_target_is_the_file_that_the_identity_names() -> None:
    assert TARGET_WHEEL.member_sha256 == TARGET_GGUF_SHA256


def test_prompts_of_every_kind() -> None:
    prompt_set = load_prompts("quickstart")
    kinds = [prompt.category for prompt in prompt_set.prompts]
    assert {kind: kinds.count(kind) for kind in kinds} == {"math": 20, "code": 20, "chat": 20, "open": 8}


def test_warmup_prompts_are_used_for_nothing_else(shared_folder: Path) -> None:
    warmup = {turn for prompt in warmup_prompts() for turn in prompt.turns}
    assert len(warmup) == len(warmup_prompts()) >= 8
    assert {prompt.category for prompt in warmup_prompts()} == {"math", "code", "chat"}
    measured = {turn for prompt in load_prompts("quickstart").prompts for turn in prompt.turns}
    assert warmup.isdisjoint(measured)
    lines = (shared_folder / "quickstart" / "train_prompts.jsonl").read_bytes().split(b"\n")
    trained = {turn for line in lines if line for turn in json.loads(line)["turns"]}
    assert trained
    assert warmup.isdisjoint(trained)
    assert measured.isdisjoint(trained)


def test_asking_imports_nothing_heavy() -> None:
    code = (
        "import sys, dflash.quickstart.target, dflash.dataset_store\n"
        "dflash.quickstart.warmup_prompts()\n"
        "dflash.dataset_store.load_prompts('quickstart')\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "datasets", "numpy", "huggingface_hub", "pyarrow", "gguf"}
    assert heavy.isdisjoint(done.stdout.split())
