"""Settings -> the command line that starts an engine's own server for one arm. Pure.

The templates are the published commands of vLLM and SGLang for DFlash, with what makes them measurable: metrics of
every request, and no prefix cache. The baseline is started by the same words without the draft. What the user gives by
`--server-arg` takes the place of the same option of a template. B is translated to each engine's own number here and,
when it is read back, in the engine's own backend: vLLM counts the draft tokens (B-1), SGLang the whole block (B).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from dflash.backends.base import StartedAs
from dflash.backends.engine_install import DISPLAY_NAMES, EngineInstall
from dflash.backends.server_args import (
    arm_of_word,
    is_option_in,
    server_words,
    stated_dtype,
    stated_method,
)
from dflash.command_secrets import HIDDEN, hide_secrets, is_secret_name, secrets_in
from dflash.errors import UsageError
from dflash.results.records import BASELINE, Arm

DFLASH = "dflash"
MAX_SEQUENCES = 256  # that vLLM runs at once where nothing is said
MAX_RUNNING_WITH_DRAFT = 48  # SGLang's own limit with DFLASH; it has none without, so both arms get the same
CPU_SEQUENCES = {"vllm": 8, "sglang": 4}
CPU_KV_CACHE_GIB = 4
CPU_TOKENS_PER_REQUEST = 2048  # room in SGLang's cache on a CPU, where no length is given
BLACKWELL_NOTE = "trtllm_mha needs a Blackwell GPU: elsewhere give --server-arg='--attention-backend fa3'"
_PUT_BEFORE = ("PATH", "LD_PRELOAD")  # lists: ours goes before what is there

Options = list[tuple[str, str | None]]  # flag, value; a switch has none


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """What the servers of all arms are started with."""

    model: str  # id or folder
    draft_model: str | None = None  # of the arm dflash
    dtype: str | None = None  # None: float32 on CPU, the checkpoint's on GPU
    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one is chosen when the server is started
    max_concurrency: int = 1  # that will be asked for
    device: str | None = None  # "cpu", "cuda"; None: a GPU where there is one and the engine can use it
    engine_python: str | None = None  # None: the interpreter that runs this
    server_args: tuple[str, ...] = field(default=(), repr=False)  # `--server-arg`, in their order
    max_model_len: int | None = None  # prompt and output tokens; None: the model's own
    trust_remote_code: bool = False
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """How one server is started, and where it will be."""

    engine: str
    arm: Arm
    argv: tuple[str, ...] = field(repr=False)
    # Beside this process's own. `PATH` and `LD_PRELOAD` go before what is there, the defaults where nothing is.
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    default_environment: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 0  # 0: not chosen yet
    ready_paths: tuple[str, ...] = ("/health",)  # answered by a server that is ready
    secrets: tuple[str, ...] = field(default=(), repr=False)  # never shown
    notes: tuple[str, ...] = ()  # what a reader of the numbers or of the command should know

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def title(self) -> str:
        return f"{DISPLAY_NAMES[self.engine]} server of the arm {self.arm.label}"

    @property
    def started_as(self) -> StartedAs:
        """What the words say of the server, those of `--server-arg` among them."""
        return StartedAs(stated_dtype(self.argv), stated_method(self.argv))

    def with_port(self, port: int) -> LaunchCommand:
        """The same server elsewhere."""
        place = self.argv.index("--port") + 1
        return replace(self, port=port, argv=(*self.argv[:place], str(port), *self.argv[place + 1 :]))

    def printable(self, own: Mapping[str, str] | None = None) -> str:
        """What a shell would take, with the environment that is added, and without secrets.

        Args:
            own: the environment whose values the defaults give way to.
        """
        defaults = {name: (own or {}).get(name) or value for name, value in self.default_environment.items()}
        words = [
            f"{name}={HIDDEN if is_secret_name(name) else shlex.quote(value)}{':$PATH' if name == 'PATH' else ''}"
            for name, value in {**defaults, **self.environment}.items()
        ]
        return " ".join([*words, shlex.join(hide_secrets(self.argv))])

    def full_environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """The server's whole environment: `own` is that of this process."""
        defaults = {name: value for name, value in self.default_environment.items() if not own.get(name)}
        full = {**own, **defaults}
        for name, value in self.environment.items():
            joined = f"{value}:{own[name]}" if name in _PUT_BEFORE and own.get(name) else value
            full[name] = joined
        return full


def launch_command(
    engine: str, arm: Arm, settings: LaunchSettings, install: EngineInstall | None = None
) -> LaunchCommand:
    """How the server of an arm is started.

    Args:
        install: what is known of the engine there (see `inspect_engine`); None: it has everything.

    Raises:
        UsageError: a draft or a block size is missing, or a `--server-arg` or a device cannot be honoured.
    """
    install = install or EngineInstall(engine, settings.engine_python or "python")
    _check_arm(arm, settings)
    own_words = server_words(settings.server_args, arm.name)
    on_cpu = _is_on_cpu(settings.device, install)
    template = {"vllm": _vllm, "sglang": _sglang}[engine](arm, settings, install, on_cpu)
    options = [option for option in template.options if not is_option_in(option[0], own_words)]
    words = [word for flag, value in options for word in (flag, value) if word is not None]
    argv = (*template.start, *words, *own_words)
    notes = [*template.notes, *([BLACKWELL_NOTE] if ("--attention-backend", "trtllm_mha") in options else [])]
    folder = str(PurePath(install.python).parent)
    # The build tools that an engine calls are beside its interpreter.
    environment = {} if folder == "." else {"PATH": folder}
    environment |= template.environment | dict(settings.environment)
    return LaunchCommand(
        engine,
        arm,
        argv,
        environment,
        {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", **template.default_environment},
        settings.host,
        settings.port,
        template.ready_paths,
        secrets_in(argv, settings.environment),
        tuple(notes),
    )


@dataclass(frozen=True, slots=True)
class _Template:
    start: tuple[str, ...]
    options: Options
    environment: dict[str, str] = field(default_factory=dict)
    default_environment: dict[str, str] = field(default_factory=dict)
    ready_paths: tuple[str, ...] = ("/health",)
    notes: list[str] = field(default_factory=list)


def _vllm(arm: Arm, settings: LaunchSettings, install: EngineInstall, on_cpu: bool) -> _Template:
    start: tuple[str, ...] = (install.python, "-m", "vllm.entrypoints.cli.main", "serve", settings.model)
    if install.distributions and "vllm" not in install.distributions:
        # The command line asks for a distribution of the very name `vllm`; the server by itself does not.
        start = (install.python, "-m", "vllm.entrypoints.openai.api_server", "--model", settings.model)
    options, notes = _common(settings, on_cpu), []
    options += _given("--max-model-len", settings.max_model_len)
    drafts = not arm.is_baseline
    if arm.name == DFLASH and arm.block_size is not None:
        config = {
            "method": "dflash",
            "model": settings.draft_model or arm.draft,
            "num_speculative_tokens": arm.block_size - 1,
        }
        options.append(("--speculative-config", json.dumps(config)))
        notes.append(f"B = {arm.block_size}: num_speculative_tokens {arm.block_size - 1}")
    if on_cpu:
        options += [("--enforce-eager", None)]
        options += [("--max-num-seqs", str(max(CPU_SEQUENCES["vllm"], settings.max_concurrency)))]
    else:
        options += [("--attention-backend", "flash_attn"), ("--max-num-batched-tokens", "32768")]
        if settings.max_concurrency > MAX_SEQUENCES:
            options += [("--max-num-seqs", str(settings.max_concurrency))]
    options += [("--no-enable-prefix-caching", None)]
    metrics: Options = [("--enable-prompt-tokens-details", None), ("--enable-per-request-metrics", None)]
    if drafts:  # refused without speculation
        metrics += [("--per-request-spec-decode-metrics", "detailed")]
    options += _that_it_has(metrics, install, notes)
    environment = {}
    defaults = {"VLLM_NO_USAGE_STATS": "1"}
    if on_cpu:
        defaults |= {"VLLM_CPU_KVCACHE_SPACE": str(CPU_KV_CACHE_GIB), "VLLM_CPU_OMP_THREADS_BIND": "auto"}
        defaults |= _threads(install)
        notes.append(
            f"on CPU: {CPU_KV_CACHE_GIB} GiB of KV cache unless VLLM_CPU_KVCACHE_SPACE says otherwise"
        )
        if install.openmp_library is not None:
            environment["LD_PRELOAD"] = install.openmp_library
    return _Template(start, options, environment, defaults, notes=notes)


def _sglang(arm: Arm, settings: LaunchSettings, install: EngineInstall, on_cpu: bool) -> _Template:
    start = (install.python, "-m", "sglang.launch_server", "--model-path", settings.model)
    options, notes = _common(settings, on_cpu), []
    options += _given("--context-length", settings.max_model_len)
    drafts = arm.name == DFLASH
    if drafts:
        options += [("--speculative-algorithm", "DFLASH")]
        options += _given("--speculative-draft-model-path", settings.draft_model or arm.draft)
        options += _given("--speculative-num-draft-tokens", arm.block_size)
        if arm.block_size is not None:
            notes.append(
                f"B = {arm.block_size}: --speculative-num-draft-tokens {arm.block_size}, which counts the anchor "
                f"with {arm.block_size - 1} draft tokens"
            )
    if on_cpu:
        options += _sglang_on_cpu(settings)
        options += _that_it_has([("--disable-cuda-graph", None)], install, notes)  # deprecated in 0.5.23
        if drafts:
            notes.append(
                "SGLang drafts on a CPU only through an out-of-tree platform named by SGLANG_PLATFORM"
            )
    else:
        options += [("--attention-backend", "trtllm_mha")]
        if drafts:
            kernel: Options = [("--speculative-draft-attention-backend", "fa4")]
            options += _that_it_has(kernel, install, notes)
        options += [("--mem-fraction-static", "0.75")]
        if settings.max_concurrency > MAX_RUNNING_WITH_DRAFT:
            options += [("--max-running-requests", str(settings.max_concurrency))]
    options += [("--enable-metrics", None), ("--disable-radix-cache", None)]
    options += _that_it_has([("--enable-cache-report", None)], install, notes)
    return _Template(
        start,
        options,
        default_environment=_threads(install) if on_cpu else {},
        ready_paths=("/health", "/v1/models"),
        notes=notes,
    )


def _sglang_on_cpu(settings: LaunchSettings) -> Options:
    num_requests = max(CPU_SEQUENCES["sglang"], settings.max_concurrency)
    num_tokens = num_requests * (settings.max_model_len or CPU_TOKENS_PER_REQUEST)
    return [
        ("--device", "cpu"),
        ("--attention-backend", "torch_native"),
        ("--sampling-backend", "pytorch"),
        ("--max-total-tokens", str(num_tokens)),
        ("--max-running-requests", str(num_requests)),
        ("--disable-overlap-schedule", None),
        ("--skip-server-warmup", None),
        ("--sleep-on-idle", None),  # else an idle server keeps a core busy
    ]


def _common(settings: LaunchSettings, on_cpu: bool) -> Options:
    options: Options = [("--host", settings.host), ("--port", str(settings.port))]
    options += _given("--dtype", settings.dtype or ("float32" if on_cpu else None))
    if settings.trust_remote_code:
        options.append(("--trust-remote-code", None))
    return options


def _given(flag: str, value: str | int | None) -> Options:
    return [] if value is None else [(flag, str(value))]


def _that_it_has(options: Options, install: EngineInstall, notes: list[str]) -> Options:
    """Options that only some releases take; those that this one lacks are noted."""
    kept = [option for option in options if install.has_option(option[0].removeprefix("--"))]
    version = f"{DISPLAY_NAMES[install.engine]} {install.version or ''}".strip()
    notes += [f"{version} has no {flag}: left out" for flag, value in options if (flag, value) not in kept]
    return kept


def _threads(install: EngineInstall) -> dict[str, str]:
    return {} if install.num_cpus is None else {"OMP_NUM_THREADS": str(install.num_cpus)}


def _check_arm(arm: Arm, settings: LaunchSettings) -> None:
    if arm.name == BASELINE:
        return
    if arm.name != DFLASH:
        if arm.name not in map(arm_of_word, settings.server_args):
            raise UsageError(
                f"there is no published command that starts a server of the arm {arm.name!r}",
                f"say how it drafts by --server-arg={arm.name}:--FLAG=VALUE, or name its server by --arm",
            )
        return
    if not (settings.draft_model or arm.draft):
        raise UsageError("a server of the arm 'dflash' needs a draft", "name it by --draft-model")
    if arm.block_size is None:
        raise UsageError("a server of the arm 'dflash' is started with a block size", "give --block-size B")


def _is_on_cpu(device: str | None, install: EngineInstall) -> bool:
    if device not in (None, "cpu", "cuda"):
        raise UsageError(
            f"--device {device} says nothing to an engine's server",
            "give cpu or cuda, and choose a GPU by CUDA_VISIBLE_DEVICES",
        )
    if device == "cuda" and install.is_cpu_build:
        raise UsageError(
            f"{DISPLAY_NAMES[install.engine]} {install.version} of {install.python} is built for CPU",
            "leave --device out, or name another interpreter by --engine-python",
        )
    return device == "cpu" or (device is None and (install.is_cpu_build or not install.has_gpu))
