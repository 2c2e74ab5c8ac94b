"""Accepted runs, kept by machine and suite, and the history that trends are read from.

`<root>/<machine>/machine.json` is the fingerprint; below it, by suite: `baseline.json` names the accepted run, `runs/`
holds it, `history.jsonl` has a line of values for every run that was recorded, `calibration.json` what a calibration
found. Nothing is ever removed here.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash.errors import NotComparableError, UsageError
from dflash.gate.calibrated import CALIBRATION_FILE, Calibration, cell_key, load_calibration
from dflash.gate.comparison import GatedRun
from dflash.gate.quantities import QUANTITIES
from dflash.results.atomic_file import write_file
from dflash.results.fingerprint import Fingerprint, machine_fingerprint, machine_name, same_machine
from dflash.results.records import RunInfo
from dflash.results.store import DIFFERENCES_FILE, INFO_FILE, RECORDS_FILE, WINDOWS_FILE, read_info

DEFAULT_ROOT = Path("reports") / "baselines"
MACHINE_FILE = "machine.json"
BASELINE_FILE = "baseline.json"
HISTORY_FILE = "history.jsonl"
_KEPT_FILES = (
    RECORDS_FILE,
    DIFFERENCES_FILE,
    WINDOWS_FILE,
    INFO_FILE,
)  # what a comparison reads; the info last
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One run in the history of a suite."""

    run_id: str  # when it was begun, and its name
    created_at: str
    is_accepted: bool
    commit: str | None  # of dflash
    versions: Mapping[str, Any]
    values: Mapping[str, Mapping[str, float | None]]  # cell key -> quantity -> value


class BaselineStore:
    """The folder of a machine and suite; made when something is written.

    Raises:
        UsageError: the suite's name could leave the folder, or a machine's file is damaged.
    """

    def __init__(self, root: Path, fingerprint: Fingerprint, suite: str) -> None:
        if not _NAME.fullmatch(suite):
            raise UsageError(
                f"--suite {suite!r} is no name",
                "use letters, digits, '.', '_', '+', '-', a letter or digit first",
            )
        self._fingerprint = fingerprint
        self._machine = _machine_folder(root, fingerprint)
        self.folder = self._machine / suite

    @property
    def calibration_file(self) -> Path:
        return self.folder / CALIBRATION_FILE

    def baseline(self) -> Path:
        """The folder of the accepted run.

        Raises:
            NotComparableError: none was accepted on this machine.
            UsageError: the file that names it is damaged.
        """
        path = self.folder / BASELINE_FILE
        if not path.exists():
            raise NotComparableError(
                f"no baseline was accepted for this machine in {self.folder}",
                "accept one by --accept, or name two runs",
            )
        name = _read_json(path).get("run")
        folder = self.folder / "runs" / str(name)
        if not isinstance(name, str) or Path(name).name != name or not folder.is_dir():
            raise UsageError(
                f"{path} names the run {name!r}, which is not there", "accept a run anew by --accept"
            )
        return folder

    def calibration(self) -> Calibration:
        """What was kept for this machine and suite; empty where nothing was."""
        return load_calibration(self.calibration_file) if self.calibration_file.exists() else Calibration()

    def accept(self, run_folder: Path, run: GatedRun) -> Path:
        """Copy a run here, make it the baseline, and note it in the history; the copy's folder.

        Raises:
            UsageError: it cannot be written.
        """
        name = run_id(run.info)
        target = self.folder / "runs" / name
        try:
            self._write_machine()
            if not target.exists():
                _copy_run(run_folder, target)
            content = {
                "run": name,
                "created_at": run.info.created_at,
                "dflash_version": run.info.dflash_version,
            }
            write_file(self.folder / BASELINE_FILE, _json_bytes(content))
        except OSError as error:
            raise _cannot_write(self.folder, error) from error
        self.record(run, is_accepted=True)
        return target

    def record(self, run: GatedRun, *, is_accepted: bool = False) -> None:
        """Note a run's values in the history; one that is there already is noted anew only when it is accepted.

        Raises:
            UsageError: it cannot be written.
        """
        entry = history_entry(run, is_accepted=is_accepted)
        known = {item.run_id: item for item in self.history()}
        old = known.get(entry.run_id)
        if old is not None and (old.is_accepted or not is_accepted):
            return
        known[entry.run_id] = entry
        ordered = sorted(known.values(), key=lambda item: item.created_at)
        lines = b"".join(json.dumps(asdict(item)).encode() + b"\n" for item in ordered)
        try:
            self._write_machine()
            write_file(self.folder / HISTORY_FILE, lines)
        except OSError as error:
            raise _cannot_write(self.folder, error) from error

    def history(self) -> tuple[HistoryEntry, ...]:
        """All recorded runs, the oldest first.

        Raises:
            UsageError: the file is damaged.
        """
        path = self.folder / HISTORY_FILE
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise UsageError(f"cannot read {path} ({error.strerror or error})", "mend its rights") from error
        return tuple(_parse_entries(lines, path))

    def _write_machine(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._machine / MACHINE_FILE
        if not path.exists():
            write_file(path, _json_bytes(dict(self._fingerprint)))


def history_entry(run: GatedRun, *, is_accepted: bool) -> HistoryEntry:
    """A run's values under their quantities' names, by cell."""
    git = run.info.environment.get("git")
    versions = run.info.environment.get("versions")
    values = {
        cell_key(cell): {
            name: quantity.value(run.sides[cell.cell_id])
            for name, quantity in QUANTITIES.items()
            if cell.cell_id in run.sides
        }
        for cell in run.info.cells
        if not cell.is_retired
    }
    return HistoryEntry(
        run_id(run.info),
        run.info.created_at,
        is_accepted,
        git.get("commit") if isinstance(git, Mapping) else None,
        dict(versions) if isinstance(versions, Mapping) else {},
        values,
    )


def run_id(info: RunInfo) -> str:
    """When a run was begun, and its name: tells two runs of one name apart."""
    stamp = re.sub(r"[^0-9T]", "", info.created_at.partition("+")[0])
    return f"{stamp}-{info.name}"


def suite_of(info: RunInfo) -> str | None:
    """The name of the suite that a run was made from; None: it was made from none."""
    suite = info.config.get("suite")
    return Path(str(suite)).stem if suite else None


def _machine_folder(root: Path, fingerprint: Fingerprint) -> Path:
    """The folder whose fingerprint is this one; a new name where there is none."""
    for path in sorted(root.glob(f"*/{MACHINE_FILE}")):
        if same_machine(_read_json(path), fingerprint):
            return path.parent
    return root / machine_name(fingerprint)


def _copy_run(source: Path, target: Path) -> None:
    """Whole or not at all: copied beside its place and moved there.

    Raises:
        OSError: it cannot be written.
        UsageError: `source` is no run.
    """
    read_info(source)
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name in _KEPT_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, partial / name)
    partial.rename(target)


def _parse_entries(lines: Iterable[str], path: Path) -> Iterable[HistoryEntry]:
    for number, line in enumerate(lines, start=1):
        try:
            yield HistoryEntry(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"line {number} of {path} cannot be read ({error})", "delete that line, or restore the file"
            ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({error})", "restore it, or delete its folder") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path} holds no table", "restore it, or delete its folder")
    return values


def _json_bytes(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()


def _cannot_write(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write {path} ({error.strerror or error})", "choose another --baselines")


def fingerprint_of(info: RunInfo) -> Fingerprint:
    """The machine that a run was made on."""
    return machine_fingerprint(info.environment)
