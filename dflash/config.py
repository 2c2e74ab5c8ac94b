"""Every setting of a benchmark run, frozen, and its validation. Pure: no files, no network, no environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BenchmarkConfig:
    """What to run. Lists make grids: every data set with every concurrency, every block size as an arm of its own.

    The defaults are those of the command line (`python -m dflash.benchmark --help`).
    """

    backend: str = "transformers"
    model: str | None = None  # None: the quickstart pair (in process), or the server's model
    draft_model: str | None = None
    datasets: tuple[str, ...] = ("quickstart",)
    dataset_file: Path | None = None
    datasets_cache: Path | None = None
    num_prompts: int | None = None  # None: 128, or all of a smaller set
    category: str | None = None
    max_new_tokens: int | None = None  # None: 2048; the quickstart data set: 128
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    reasoning: str = "off"
    concurrencies: tuple[int, ...] = (1,)
    block_sizes: tuple[int, ...] = ()  # empty: what the draft was trained for (the quickstart draft: 3)
    arms: tuple[str, ...] = ("baseline", "dflash")
    seed: int = 0
    repeats: int = 1
    dtype: str | None = None
    device: str | None = None
    attn_implementation: str | None = None
    trust_remote_code: bool = False
    force_block_size: bool = False
    base_url: str | None = None
    timeout_s: float | None = None
    script: str | None = None
    num_warmup: int | None = None  # None: max(2, concurrency) prompts that are used for nothing else
    max_error_rate: float = 0.0
    save_outputs: bool = True
    output_dir: Path = Path("reports")
    run_name: str | None = None  # None: a time stamp
    json_file: str | None = None  # "-": standard output
    quiet: bool = False
    list_only: bool = False
    smoke: bool = False
