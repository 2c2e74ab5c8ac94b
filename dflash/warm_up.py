"""Requests that are not measured, before those that are."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.asking import warmup_request
from dflash.backends.base import Backend
from dflash.errors import RequestError
from dflash.plan import Group, num_warmup_of
from dflash.progress import Progress


async def warm_up(backend: Backend, group: Group, texts: Sequence[str], progress: Progress) -> None:
    """In process: every arm in turn; a request that fails is said and passed over."""
    for number in range(num_warmup_of(group.config, group.workload.concurrency)):
        text = texts[number % len(texts)]
        for cell in group.cells:
            request = warmup_request(cell, number, text)
            try:
                await backend.generate(request)
            except RequestError as error:
                progress.say(f"warm-up failed: {request.request_id}: {error}")
