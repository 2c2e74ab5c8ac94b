"""What a first run needs with no GPU and no model hub: a small target, its draft, prompts.

The target is SmolLM2-135M-Instruct in the form that the package index carries (see `target.py`). That is
another model than the hub's of that name: it has a name of its own, and the digest of its file goes into
every identity.
"""

from __future__ import annotations

from pathlib import Path

from dflash.datasets.catalogue import find_dataset, make_prompts
from dflash.datasets.files import read_rows
from dflash.prompts import Prompt

TARGET_NAME = "quickstart-smollm2-135m-q4_1"
TARGET_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

DRAFT_NAME = "quickstart-dflash"

QUICKSTART = "quickstart"  # by this name, or none, a model is the quickstart target, and a draft its draft

_FOLDER = Path(__file__).parent
DRAFT_FOLDER = _FOLDER / "draft"
PROMPTS_FILE = _FOLDER / "prompts.jsonl"
WARMUP_PROMPTS_FILE = _FOLDER / "warmup_prompts.jsonl"

# Trained for 8. On a CPU a verify forward of 4 rows costs about what one row costs (see few_rows.py), and few blocks
# are accepted for more than 3 tokens: 4 is the fastest as a rule, and `--block-size` sweeps others.
DEFAULT_BLOCK_SIZE = 4


def is_quickstart_draft(draft_model: str | None, model: str | None) -> bool:
    """Whether the shipped draft is meant: it is named, or none is and the target is the quickstart one."""
    if draft_model is None:
        return model in (None, QUICKSTART)
    return draft_model in (QUICKSTART, DRAFT_NAME)


def warmup_prompts() -> tuple[Prompt, ...]:
    """The prompts to warm up on, used for nothing else: no measured prompt has been seen before."""
    return make_prompts(find_dataset("quickstart"), read_rows(WARMUP_PROMPTS_FILE), WARMUP_PROMPTS_FILE.name)
