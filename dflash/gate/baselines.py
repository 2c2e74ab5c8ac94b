"""Accepted runs, kept by machine and suite, and the history that trends are read from.

`<root>/<machine>/machine.json` is the fingerprint; below it, by suite: `baseline.json` names the accepted run, or the
several that make up the baseline, `runs/` holds them, `history.jsonl` has a line of values for every run that was
recorded, `calibration.json` what a calibration found. Nothing is ever removed here. One process at a time writes for a
suite; another one waits for it.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from dflash.errors import NotComparableError, UsageError
from dflash.gate.calibrated import CALIBRATION_FILE, Calibration, load_calibration
from dflash.gate.gated_run import GatedRun
from dflash.gate.history_file import HistoryEntry, format_history, history_entry, parse_line, run_id
from dflash.results.atomic_file import write_file
from dflash.results.fingerprint import Fingerprint, machine_fingerprint, machine_name, same_machine
from dflash.results.records import RunInfo
from dflash.results.store import (
    ANSWERS_FILE,
    CODE_FILE,
    DIFFERENCES_FILE,
    INFO_FILE,
    OUTPUTS_FILE,
    RECORDS_FILE,
    WINDOWS_FILE,
    read_info,
)

DEFAULT_ROOT = Path("reports") / "baselines"
MACHINE_FILE = "machine.json"
BASELINE_FILE = "baseline.json"
HISTORY_FILE = "history.jsonl"
LOCK_FILE = ".lock"
_SCORE_FILES = (ANSWERS_FILE, CODE_FILE)  # where there is one, outputs are scored
_KEPT_FILES = (RECORDS_FILE, DIFFERENCES_FILE, WINDOWS_FILE, INFO_FILE)  # what is read of any; the info last
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


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

    def baseline(self) -> tuple[Path, ...]:
        """The folders of the runs that the baseline is made of; mostly one.

        Raises:
            NotComparableError: none was accepted on this machine.
            UsageError: the file that names them is damaged.
        """
        path = self.folder / BASELINE_FILE
        if not path.exists():
            raise NotComparableError(
                f"no baseline was accepted for this machine in {self.folder}",
                "accept one by --accept, or name two runs",
            )
        values = _read_json(path)
        names = values.get("runs", [values.get("run")])  # earlier releases: one run
        if not isinstance(names, list) or not names:
            raise UsageError(f"{path} names no run", "accept a run anew by --accept")
        return tuple(self._kept_run(name, path) for name in names)

    def _kept_run(self, name: object, path: Path) -> Path:
        folder = self.folder / "runs" / str(name)
        if not isinstance(name, str) or Path(name).name != name or not folder.is_dir():
            raise UsageError(
                f"{path} names the run {name!r}, which is not there", "accept a run anew by --accept"
            )
        return folder

    def calibration(self) -> Calibration:
        """What was kept for this machine and suite; empty where nothing was."""
        return load_calibration(self.calibration_file) if self.calibration_file.exists() else Calibration()

    def accept(self, runs: Sequence[tuple[Path, GatedRun]]) -> tuple[Path, ...]:
        """Copy runs here, make them the baseline together, and note them in the history; the copies' folders.

        Raises:
            UsageError: a run is not complete, or nothing can be written.
        """
        for _, run in runs:
            _check_complete(run)
        with self._writing():
            targets = tuple(_keep_run(folder, self.folder / "runs", run_id(run.info)) for folder, run in runs)
            self._note([history_entry(run, is_accepted=True) for _, run in runs])
            content = {
                "runs": [target.name for target in targets],
                "created_at": [run.info.created_at for _, run in runs],
                "dflash_versions": sorted({run.info.dflash_version for _, run in runs}),
            }
            write_file(self.folder / BASELINE_FILE, _json_bytes(content))
        return targets

    def record(self, run: GatedRun) -> None:
        """Note a run's values in the history, once.

        Raises:
            UsageError: it cannot be written.
        """
        with self._writing():
            self._note([history_entry(run, is_accepted=False)])

    def _note(self, entries: Iterable[HistoryEntry]) -> None:
        known = {item.run_id: item for item in self.history()}
        for entry in entries:
            old = known.get(entry.run_id)
            known[entry.run_id] = replace(
                entry, is_accepted=entry.is_accepted or (old is not None and old.is_accepted)
            )
        write_file(self.folder / HISTORY_FILE, format_history(known.values()))

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

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """The folder with its machine's file, and no other process that writes there.

        Raises:
            UsageError: it cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self._machine / MACHINE_FILE
            if not path.exists():
                write_file(path, _json_bytes(dict(self._fingerprint)))
            with _locked(self.folder / LOCK_FILE):
                yield
        except OSError as error:
            raise _cannot_write(self.folder, error) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a folder for as long as some files are written; the system drops it when its holder ends."""
    with path.open("a") as file:
        try:
            import fcntl
        except ImportError:  # Windows: not guarded against a second process
            yield
            return
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        yield


def _check_complete(run: GatedRun) -> None:
    """Refuse a run that nothing could be compared with."""
    cells = [cell for cell in run.info.cells if not cell.is_retired]
    if not cells:
        raise UsageError(f"run {run.info.name} has no cell", "accept a run that measured something")
    for cell in cells:
        where = f"{cell.arm.label} on {cell.workload.dataset}"
        if cell.status != "completed":
            raise UsageError(
                f"run {run.info.name} is not complete: {where} is {cell.status}",
                "finish it by its command, or accept another run",
            )
        if not run.side_of(cell).records.completed.any():
            raise UsageError(
                f"run {run.info.name} has no completed request of {where}", "accept a run that measured it"
            )


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


def _keep_run(source: Path, parent: Path, name: str) -> Path:
    """A copy of the run, whole or not at all: copied beside its place and moved there.

    One that was kept before stays as it is; where the run went on since, its copy has a number.

    Raises:
        OSError: it cannot be written.
        UsageError: `source` is no run.
    """
    read_info(source)
    files = _kept_files(source)
    for target in (parent / each for each in chain([name], (f"{name}-{number}" for number in count(2)))):
        if not target.exists():
            break
        if _kept_files(target) == files and not any(
            filecmp.cmpfiles(source, target, files, shallow=False)[1:]
        ):
            return target
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for file in files:
        shutil.copyfile(source / file, partial / file)
    partial.rename(target)
    return target


def _kept_files(folder: Path) -> tuple[str, ...]:
    """What a comparison reads of a run; outputs only to score them."""
    scored = tuple(name for name in _SCORE_FILES if (folder / name).exists())
    names = (*scored, *((OUTPUTS_FILE,) if scored else ()), *_KEPT_FILES)
    return tuple(name for name in names if (folder / name).exists())


def _parse_entries(lines: Iterable[str], path: Path) -> Iterable[HistoryEntry]:
    for number, line in enumerate(lines, start=1):
        try:
            yield parse_line(line)
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
