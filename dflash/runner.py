"""Runs a benchmark: the way in, from Python and from the command line."""

from __future__ import annotations

from contextlib import ExitStack

from dflash.backends import create_backend
from dflash.backends.base import Backend
from dflash.config import BenchmarkConfig, check_concurrency
from dflash.execution import Execution
from dflash.interrupts import Interrupts
from dflash.outcome import Outcome
from dflash.progress import Progress, SilentProgress
from dflash.prompt_sets import load_prompt_sets
from dflash.ranks import Ranks, check_ranks
from dflash.recorder import Invocation
from dflash.results.store import Run
from dflash.server_options import check_heeded
from dflash.stages import backend_settings, make_stages
from dflash.time_budget import TimeBudget


def run_benchmark(
    config: BenchmarkConfig, *, backend: Backend | None = None, progress: Progress | None = None
) -> Run:
    """Run `config` and return its run, read back from its folder.

    Naming an existing run by `config.run_name` resumes it: prompts that completed in every arm are not run
    again. A cell that fails is recorded and the others go on; the first such error is raised at the end.

    Args:
        backend: an engine that is not opened yet; None: the one that `config.backend` names.
        progress: what to tell while it runs; None: nothing.

    Raises:
        UsageError: settings, models or an existing run that do not fit; nothing was measured.
        UnavailableError: an engine or a data set that cannot be had.
        TooManyFailuresError: more requests failed than `config.max_error_rate` allows.
        KeyboardInterrupt: Ctrl-C or SIGTERM.
        Exception: what went wrong in the engine. Once a run was begun, what was measured is in its folder.
    """
    outcome = execute(config, backend=backend, progress=progress)
    if outcome.error is not None:
        raise outcome.error
    return outcome.run


def execute(
    config: BenchmarkConfig,
    *,
    backend: Backend | None = None,
    progress: Progress | None = None,
    interrupts: Interrupts | None = None,
    invocation: Invocation | None = None,
) -> Outcome:
    """As `run_benchmark`, but what ended a run that was begun is returned beside the run.

    Args:
        interrupts: entered by the caller, who keeps it until its report is written; None: one of our own.

    Raises:
        DFlashError, KeyboardInterrupt: before anything was measured; no run folder was made.
    """
    check_heeded(config)
    with ExitStack() as stack:
        budget = TimeBudget.of(config.time_budget_s)
        if interrupts is None:
            interrupts = stack.enter_context(Interrupts())
        ranks = stack.enter_context(Ranks())
        if backend is None:
            backend = create_backend(config.backend, backend_settings(config))
        engines = {config.backend: backend}
        for part in config.all_parts:
            if part.backend not in engines:
                engines[part.backend] = create_backend(part.backend, backend_settings(part))
            capabilities = engines[part.backend].capabilities
            check_concurrency(part.loads, part.backend, capabilities.max_concurrency)
            check_ranks(ranks, capabilities.in_process, part.backend)
        stages = ranks.of_first(lambda: make_stages(config, lambda part: load_prompt_sets(part)))
        if not ranks.is_first:
            progress = SilentProgress()
        execution = Execution(
            config,
            stages,
            backend,
            progress or SilentProgress(),
            interrupts,
            invocation or Invocation(),
            ranks,
            budget,
        )
        return execution.run()
