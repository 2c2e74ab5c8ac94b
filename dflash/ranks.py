"""Several processes that make one run together, as `torchrun` starts them: who is who, and what they tell each other.

Prompts are split over the ranks. Rank 0 holds the run's folder; the others write their lines into folders of their
own, which are merged at the end (see `rank_files`). What is exchanged are small objects between processes of one
command; nothing of it is ever stored or read from a file.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

from dflash.errors import DFlashError, UsageError, first_line

VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)  # all of them: this process is one of several
_MEETING = timedelta(minutes=10)  # until all are there: who waits for one that never comes is told by nobody
_PATIENCE = timedelta(days=30)  # one rank may have far more to do; one that dies is noticed at once
_GONE = ("a process of this run has ended", "see its own message, and resume the run")
Value = TypeVar("Value")


class RankError(DFlashError):
    """Another process of the same run ended early (exit code 70 unless it says more)."""


class Ranks:
    """The processes of a run; alone, every exchange gives back what this process says. A context."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        several = all(environment.get(name) for name in VARIABLES)
        try:
            self.rank = int(environment["RANK"]) if several else 0
            self.num_ranks = int(environment["WORLD_SIZE"]) if several else 1
            self.local_rank = int(environment.get("LOCAL_RANK", self.rank)) if several else 0
        except ValueError as error:
            raise UsageError(
                f"RANK, WORLD_SIZE and LOCAL_RANK must be numbers ({error})", "start the command by torchrun"
            ) from error
        self._group: Any = None  # of torch.distributed, of all ranks

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        return self.num_ranks == 1

    def is_mine(self, index: int) -> bool:
        """Whether the prompt of this index is run here."""
        return index % self.num_ranks == self.rank

    def __enter__(self) -> Ranks:
        if not self.is_alone:
            torch = _import_torch()
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            try:
                torch.distributed.init_process_group(backend, timeout=_MEETING)
            except RuntimeError as error:
                raise RankError(
                    f"the {self.num_ranks} processes of this run did not meet ({first_line(error)})",
                    "see what the others say, and that torchrun still runs; then resume the run",
                ) from error
            self._group = torch.distributed.new_group(timeout=_PATIENCE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_alone:
            import torch

            torch.distributed.destroy_process_group()

    def all_of(self, value: Value) -> list[Value]:
        """What every rank gives, in the order of ranks; all must call it.

        Raises:
            RankError: a rank is gone.
        """
        if self.is_alone:
            return [value]
        import torch

        found: list[Any] = [None] * self.num_ranks
        try:
            torch.distributed.all_gather_object(found, value, group=self._group)
        except RuntimeError as error:
            raise RankError(*_GONE) from error
        return found

    def to_first(self, value: Value) -> list[Value]:
        """What every rank gives, on rank 0; an empty list on the others. All must call it.

        Raises:
            RankError: a rank is gone.
        """
        if self.is_alone:
            return [value]
        import torch

        found: list[Any] | None = [None] * self.num_ranks if self.is_first else None
        try:
            torch.distributed.gather_object(value, found, group=self._group)
        except RuntimeError as error:
            raise RankError(*_GONE) from error
        return found or []

    def of_first(self, make: Callable[[], Value]) -> Value:
        """What `make` gives on rank 0; the others do not call it.

        Raises:
            Exception: on rank 0 what `make` raises, on the others a `RankError` that names it.
        """
        if self.is_alone:
            return make()
        value, failure = None, None
        if self.is_first:
            try:
                value = make()
            except BaseException as error:
                failure = error
        (found, said), *_ = self.all_of((value, None if failure is None else _words(failure)))
        if failure is not None:
            raise failure
        if said is not None:
            raise RankError(f"rank 0 ended: {said}")
        return found  # type: ignore[return-value]

    def together(self, failure: BaseException | None) -> None:
        """Go on only where every rank does.

        Raises:
            BaseException: the failure of this rank, or a `RankError` that names another's.
        """
        said = self.all_of(None if failure is None else _words(failure))
        if failure is not None:
            raise failure
        others = [f"rank {rank} ended: {words}" for rank, words in enumerate(said) if words is not None]
        if others:
            raise RankError("; ".join(others))

    def device_of(self, asked: str | None) -> str | None:
        """The device of this rank: one GPU each where there are any, and what is asked for in any case."""
        if self.is_alone or asked is not None:
            return asked
        torch = _import_torch()
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return f"cuda:{self.local_rank % count}" if count else "cpu"

    def share_a_device(self, device: str | None) -> bool:
        """Whether two ranks decode on one device of one host: then none of their times says anything."""
        if self.is_alone:
            return False
        places = self.all_of((platform.node(), device))
        return len(set(places)) < len(places)


def check_ranks(ranks: Ranks, in_process: bool, backend: str) -> None:
    """Refuse to split what would not be faster for it.

    Raises:
        UsageError: the backend is a server, which several processes would only load at once.
    """
    if not ranks.is_alone and not in_process:
        raise UsageError(
            f"--backend {backend} under torchrun: {ranks.num_ranks} processes would load one server at once",
            "run it without torchrun: a server is scaled by its own settings",
        )


def _words(failure: BaseException) -> str:
    return str(failure) if isinstance(failure, DFlashError) else f"{type(failure).__name__}: {failure}"


def _import_torch() -> Any:
    try:
        import torch
        import torch.distributed
    except ModuleNotFoundError as error:
        raise UsageError(
            "a run of several processes needs torch, which is not installed",
            "pip install 'dflash[transformers]'",
        ) from error
    return torch


def ranks_words(num_ranks: int, devices_shared: bool) -> Sequence[str]:
    """What a reader of the numbers must know; nothing for one process."""
    if num_ranks == 1:
        return ()
    made = f"made by {num_ranks} processes, the prompts split over them"
    shared = "; they shared a device, so no time was kept" if devices_shared else ""
    return (made + shared,)
