"""Every setting of a benchmark run, frozen, and its validation. Pure: no files, no network."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dflash.datasets.catalogue import CUSTOM, expand_datasets
from dflash.draft_config import DRAFT_BITS
from dflash.errors import UsageError
from dflash.server_options import NO_CAP, SERVER_BACKENDS, check_servers

ARM_NAMES = ("baseline", "dflash")
DTYPES = ("float32", "bfloat16", "float16")
IN_PROCESS_BACKENDS = ("transformers", "mlx")  # those that load a pair
DEFAULT_DATASET = "quickstart"
MAX_RUN_NAME = 120
MAX_INTEGER = 2**53  # every JSON reader takes integers up to here
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True, slots=True)
class BenchmarkConfig:
    """What to run. Lists make grids: every data set with every concurrency, every block size as its own arm.

    The defaults are those of the command line (`python -m dflash.benchmark --help`).

    Raises:
        UsageError: a setting is out of range, or two contradict each other.
    """

    backend: str = "transformers"
    model: str | None = None  # None: the quickstart pair (in process), or the server's model
    draft_model: str | None = None
    datasets: tuple[str, ...] = (DEFAULT_DATASET,)
    dataset_file: Path | None = None
    dataset_id: str | None = (
        None  # of the data set `custom`, on the model hub; with its config, split and revision
    )
    dataset_config: str | None = None
    dataset_split: str | None = None
    dataset_revision: str | None = None
    prompt_field: str | None = None  # of the data set `custom`: the column that holds the prompt
    turns_field: str | None = None  # or a list of turns
    datasets_cache: Path | None = None
    num_prompts: int | None = None  # None: 128, or all of a smaller set
    category: str | None = None
    min_prompt_chars: int | None = None
    max_prompt_chars: int | None = None
    repeat: bool = False  # use prompts again where a set has fewer than were asked for
    max_new_tokens: int | None = None  # None: 2048; the quickstart data set: 128
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    reasoning: str = "off"
    concurrencies: tuple[int, ...] = ()  # empty: one request at a time; in an open loop no limit
    block_sizes: tuple[int, ...] = ()  # empty: what the draft was trained for (the quickstart draft: 4)
    arms: tuple[str, ...] = ("baseline", "dflash")
    seed: int = 0
    repeats: int = 1  # rounds: every cell is run once in each
    dtype: str | None = None
    device: str | None = None
    attn_implementation: str | None = None
    trust_remote_code: bool = False
    force_block_size: bool = False
    draft_bits: int | None = None  # MLX: quantise the draft to 4 or 8 bits a weight
    base_url: str | None = None  # of a server; None: the engine's own port on this machine
    baseline_url: str | None = None  # of a second server, which decodes plainly
    arm_urls: tuple[str, ...] = ()  # NAME=URL, any number
    metrics_urls: tuple[str, ...] = ()  # URL, or NAME=URL
    serve: bool = False  # start the engine's own server, one arm after the other
    server_args: tuple[str, ...] = ()  # words for it; after "NAME:" only for that arm
    engine_python: str | None = None  # of the environment that the engine is installed in
    ready_timeout_s: float | None = None  # for a server that is started; None: 600
    route: str = "chat"
    api_key: str | None = field(default=None, repr=False)
    api_key_variable: str | None = None
    headers: tuple[str, ...] = field(default=(), repr=False)  # "NAME: VALUE"
    verify_tls: bool = True
    connect_timeout_s: float | None = None  # None: 10
    first_token_timeout_s: float | None = None  # None: 300
    chunk_timeout_s: float | None = None  # None: 120
    timeout_s: float | None = None  # of a whole request; None: no limit
    request_rate: float | None = None  # requests a second (open loop); None: closed loop
    arrivals: str = "poisson"
    slo: str | None = None  # what counts as good: "ttft:500ms,tpot:50ms"
    script: str | None = None
    num_warmup: int | None = None  # None: see `plan.num_warmup_of`; prompts that are used for nothing else
    max_error_rate: float = 0.0
    save_outputs: bool = True
    execute_code: bool = False  # try out generated code, in a limited subprocess
    output_dir: Path = Path("reports")
    run_name: str | None = None  # None: a time stamp
    resume: bool = True  # go on with a run of that name; False: refuse it
    cooldown_s: float = 0.0  # of rest between cells, outside of every clock
    time_budget_s: float | None = None  # nothing new is begun once it is used up; None: no limit
    json_file: str | None = None  # "-": standard output
    quiet: bool = False
    list_only: bool = False
    smoke: bool = False
    suite: str | None = None  # name or file of the suite that `parts` come from
    parts: tuple[BenchmarkConfig, ...] = ()  # grids that are run in one folder; empty: this one alone
    typed: tuple[str, ...] = ()  # fields that were given beside a suite, and hold in every part

    def __post_init__(self) -> None:
        _check_lists(self)
        _check_datasets(self)
        _check_ranges(self)
        _check_sampling(self)
        _check_models(self)
        check_servers(self)
        _check_output(self)

    @property
    def all_parts(self) -> tuple[BenchmarkConfig, ...]:
        """The grids of the sweep: those of the suite, or this one."""
        return self.parts or (self,)

    @property
    def loads(self) -> tuple[int, ...]:
        """Requests in flight, as a grid: the limit of an open loop, the level of a closed one."""
        return self.concurrencies or ((1,) if self.request_rate is None else (NO_CAP,))

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """The data sets, groups such as `math` and `all` taken apart."""
        return expand_datasets(self.datasets)[0]


def check_concurrency(concurrencies: Sequence[int], backend: str, max_concurrency: int | None) -> None:
    """Refuse a load that an engine cannot take (its capabilities are known before it is opened)."""
    too_many = [value for value in concurrencies if max_concurrency is not None and value > max_concurrency]
    if too_many:
        raise UsageError(
            f"--concurrency {too_many[0]}: backend {backend!r} runs at most {max_concurrency} at a time",
            f"use --concurrency {max_concurrency}, or a backend that serves requests over HTTP",
        )


def _check_lists(config: BenchmarkConfig) -> None:
    named: tuple[tuple[str, tuple[str | int, ...]], ...] = (
        ("--dataset", config.datasets),
        ("--concurrency", config.concurrencies),
        ("--block-size", config.block_sizes),
        ("--arms", config.arms),
    )
    for flag, values in named:
        twice = [value for place, value in enumerate(values) if value in values[:place]]
        if twice:
            raise UsageError(f"{flag} names {twice[0]!r} twice", "give each value once")
        if not values and flag not in ("--block-size", "--concurrency"):
            raise UsageError(f"{flag} is empty", "give at least one value")
    known = (
        [name for name in config.arms if _WORD.fullmatch(name)]
        if config.backend in SERVER_BACKENDS
        else ARM_NAMES
    )
    unknown = [name for name in config.arms if name not in known]
    if unknown:
        raise UsageError(f"unknown arm {unknown[0]!r}", f"choose from {', '.join(ARM_NAMES)}")
    for flag, value in (("--block-size", config.block_sizes), ("--draft-bits", config.draft_bits)):
        if value and config.arms == ("baseline",):
            raise UsageError(
                f"{flag} has no meaning for the baseline alone", "add the arm dflash, or drop it"
            )


def _check_datasets(config: BenchmarkConfig) -> None:
    names = config.dataset_names  # refuses unknown ones
    if config.dataset_file is not None and len(names) > 1:
        raise UsageError("--dataset-file goes with one data set", "name one by --dataset")
    if config.dataset_file is not None and names == (DEFAULT_DATASET,):
        raise UsageError(
            f"--dataset-file cannot replace the data set {DEFAULT_DATASET!r}, which is shipped",
            f"say by --dataset which data set the file holds, or --dataset {CUSTOM} for one of your own",
        )
    own = {
        "--dataset-id": config.dataset_id,
        "--dataset-config": config.dataset_config,
        "--dataset-split": config.dataset_split,
        "--dataset-revision": config.dataset_revision,
        "--prompt-field": config.prompt_field,
        "--turns-field": config.turns_field,
    }
    given = [flag for flag, value in own.items() if value is not None]
    if CUSTOM not in names:
        if given:
            raise UsageError(
                f"{given[0]} is for a data set of your own", f"add --dataset {CUSTOM}, or drop it"
            )
        return
    if (config.dataset_file is None) == (config.dataset_id is None):
        raise UsageError(
            f"--dataset {CUSTOM} takes its rows from one place",
            "give either --dataset-file FILE or --dataset-id NAMESPACE/NAME",
        )
    of_hub = [flag for flag in given if flag in ("--dataset-config", "--dataset-split", "--dataset-revision")]
    if config.dataset_file is not None and of_hub:
        raise UsageError(
            f"{of_hub[0]} has no meaning for a file", "drop it, or name a data set by --dataset-id"
        )
    if config.prompt_field is not None and config.turns_field is not None:
        raise UsageError("--prompt-field contradicts --turns-field", "give the one that the rows have")


def _check_ranges(config: BenchmarkConfig) -> None:
    at_least: tuple[tuple[str, int | None, int], ...] = (
        ("--num-prompts", config.num_prompts, 1),
        ("--max-new-tokens", config.max_new_tokens, 1),
        ("--repeats", config.repeats, 1),
        ("--warmup", config.num_warmup, 0),
        ("--seed", config.seed, 0),
        ("--min-prompt-chars", config.min_prompt_chars, 1),
        ("--max-prompt-chars", config.max_prompt_chars, 1),
        *(("--concurrency", value, 1) for value in config.concurrencies),
        *(("--block-size", value, 2) for value in config.block_sizes),
    )
    for flag, value, lowest in at_least:
        if value is not None and value < lowest:
            hint = "a block is one known token and at least one draft token" if flag == "--block-size" else ""
            raise UsageError(f"{flag} {value} is below {lowest}", hint or f"give {lowest} or more")
        if value is not None and value > MAX_INTEGER:
            raise UsageError(f"{flag} {value} is above {MAX_INTEGER}", "give a smaller number")
    if not (config.cooldown_s >= 0 and math.isfinite(config.cooldown_s)):
        raise UsageError(f"--cooldown {config.cooldown_s:g} is no time", "give seconds, 0 or more")
    if config.time_budget_s is not None and not config.time_budget_s > 0:
        raise UsageError(f"--time-budget {config.time_budget_s:g} is not above 0", "give a time such as 30m")
    low, high = config.min_prompt_chars, config.max_prompt_chars
    if low is not None and high is not None and low > high:
        raise UsageError(f"--min-prompt-chars {low} is above --max-prompt-chars {high}", "give low and high")
    if not 0 <= config.max_error_rate <= 1:
        raise UsageError(f"--max-error-rate {config.max_error_rate:g} is no share", "give 0 to 1")
    if config.smoke and config.num_prompts not in (None, 1):
        raise UsageError("--smoke runs one prompt per cell and contradicts --num-prompts", "drop one of them")
    if not _WORD.fullmatch(config.reasoning):
        raise UsageError(
            f"--reasoning {config.reasoning!r} is no setting", "use off, on, or a level such as low"
        )


def _check_sampling(config: BenchmarkConfig) -> None:
    if not (config.temperature >= 0 and math.isfinite(config.temperature)):
        raise UsageError(f"--temperature {config.temperature:g} is no temperature", "give 0 (greedy) or more")
    if config.temperature == 0 and not (config.top_p is None and config.top_k is None):
        flag = "--top-p" if config.top_p is not None else "--top-k"
        raise UsageError(
            f"{flag} has no effect at temperature 0 (greedy)", "drop it, or set --temperature above 0"
        )
    if config.top_p is not None and not 0 < config.top_p <= 1:
        raise UsageError(
            f"--top-p {config.top_p:g} is outside (0, 1]", "give a share, or drop it for no limit"
        )
    if config.top_k is not None and config.top_k < 1:
        raise UsageError(f"--top-k {config.top_k} is below 1", "give 1 or more, or drop it for no limit")


def _check_models(config: BenchmarkConfig) -> None:
    for flag, text in (("--model", config.model), ("--draft-model", config.draft_model)):
        if text is not None and not text.strip():
            raise UsageError(f"{flag} is empty", "give a model id or a folder, or drop it")
    if config.dtype is not None and config.dtype not in DTYPES:
        raise UsageError(f"unknown dtype {config.dtype!r}", f"choose from {', '.join(DTYPES)}")
    if config.draft_bits is not None and config.backend != "mlx":
        raise UsageError(f"--draft-bits contradicts --backend {config.backend}", "it is for --backend mlx")
    if config.draft_bits not in (None, *DRAFT_BITS):
        raise UsageError(f"--draft-bits {config.draft_bits} is not possible", "choose 4 or 8, or drop it")
    if config.script is not None and config.backend != "simulated":
        raise UsageError(
            f"--script contradicts --backend {config.backend}", "scripts are for --backend simulated"
        )
    drafts = any(name != "baseline" for name in config.arms)
    has_own_draft = config.model in (
        None,
        DEFAULT_DATASET,
    )  # the quickstart pair bears the name of its prompts
    if config.backend in IN_PROCESS_BACKENDS and not has_own_draft and not config.draft_model and drafts:
        raise UsageError(
            f"no draft is named for the target {config.model!r}",
            "add --draft-model, or --arms baseline to measure plain decoding only",
        )


def _check_output(config: BenchmarkConfig) -> None:
    name = config.run_name
    if name is not None and (not _WORD.fullmatch(name) or len(name) > MAX_RUN_NAME):
        raise UsageError(
            f"--run {name!r} is no run name",
            "use letters, digits, '.', '_', '+', '-', a letter or digit first; --output-dir names the folder",
        )
    if config.quiet and config.list_only and config.json_file is None:
        raise UsageError("--quiet contradicts --list, which only prints", "drop one of them")
    if not config.resume and name is None:
        raise UsageError("--no-resume has no meaning for a run without a name", "add --run, or drop it")
    if config.execute_code and not config.save_outputs:
        raise UsageError(
            "--execute-code contradicts --no-save-outputs", "code is read from the saved outputs"
        )
    if config.json_file == "":
        raise UsageError("--json is empty", "give a file, or - for standard output")
