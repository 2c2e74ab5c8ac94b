"""Make an engine's own environment: `python tests/integration/engines/install.py vllm|sglang [--into FOLDER]`.

An environment lies outside the checkout, one for each engine and digest of what it is made from, and is used again
by every later run. What happens is said in lines on standard error; the only line on standard output is the
environment's python. Exit codes: 0 ready, 2 wrong arguments, 4 the package index does not have what is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
try:
    import dflash  # noqa: F401
except ModuleNotFoundError:  # started by a python that does not have the project
    sys.path.append(str(CHECKOUT))

from dflash.cache_folder import user_cache_folder  # noqa: E402
from dflash.errors import EXIT_INTERRUPTED, DFlashError, UnavailableError, UsageError  # noqa: E402

CACHE_VARIABLE = "DFLASH_ENGINES_CACHE"
PIP_VARIABLE = "PIP_ARGS"
READY_NAME = ".ready"
RECIPE = 1  # raised when the steps change: environments made by the older ones are then not taken
SOURCES = {".lock", ".toml", ".py"}

Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Engine:
    """What an environment is made from."""

    name: str
    folder: Path  # holds requirements.lock and our own packages
    packages: tuple[str, ...]  # our own, below `folder`
    check: str  # Python that fails where the environment is not usable
    repair: Callable[[Path], None] | None = None  # of what the wheels brought; takes the site-packages folder

    @property
    def lock_file(self) -> Path:
        return self.folder / "requirements.lock"


def declare_torchvision_schemas(site_packages: Path) -> None:
    """The torchvision wheel's kernels are linked against CUDA and do not load, but its Python looks for two schemas.

    Raises:
        UnavailableError: the wheel is not laid out as the one that the lock file names.
    """
    extension = site_packages / "torchvision" / "extension.py"
    if not extension.is_file():
        raise UnavailableError(
            f"torchvision has no {extension.name}", "install the release that the lock names"
        )
    with extension.open("a", encoding="utf-8") as stream:
        stream.write(
            "\n\nimport torch as _torch\n\n"
            '_schemas = _torch.library.Library("torchvision", "DEF")\n'
            '_schemas.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")\n'
            '_schemas.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")\n'
        )


ENGINES: Mapping[str, Engine] = {
    "vllm": Engine(
        name="vllm",
        folder=HERE / "vllm-cpu",
        packages=("vllm-shim", "dflash-k-norm-fix"),
        check="import vllm, dflash_cpu_fix; from vllm.platforms import current_platform as p; assert p.is_cpu()",
    ),
    "sglang": Engine(
        name="sglang",
        folder=HERE / "sglang-cpu-plugin",
        packages=(".",),
        check="import sglang.srt.server_args, sglang_cpu_native.platform, torchvision",
        repair=declare_torchvision_schemas,
    ),
}


def default_cache() -> Path:
    """`DFLASH_ENGINES_CACHE`, else `engines` in the project's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else user_cache_folder() / "engines"


def digest_of(engine: Engine) -> str:
    """Of all that decides what the environment holds: steps, Python release, machine, lock file, own packages."""
    digest = hashlib.sha256()
    digest.update(f"{RECIPE} {sys.version_info[:2]} {platform.machine()} {sys.platform}\n".encode())
    for path in sorted(path for path in engine.folder.rglob("*") if path.suffix in SOURCES):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(engine.folder).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def install(engine: Engine, cache: Path, announce: Announce) -> Path:
    """The python of the engine's environment, made first if it is not there. One process at a time.

    An environment cannot be moved (its scripts hold its path), so it is made in its place, and a mark is written last:
    without the mark it is not whole, and is made anew.

    Raises:
        UsageError: `cache` lies inside the checkout.
        UnavailableError: the package index does not have what is needed, or the folder cannot be written.
    """
    digest = digest_of(engine)
    folder = cache.expanduser().absolute() / f"{engine.name}-{digest[:12]}"
    if folder.resolve().is_relative_to(CHECKOUT):
        raise UsageError(f"{folder} lies inside the checkout", "name a folder outside of it")
    if _is_ready(folder, digest):
        announce(f"{engine.name}: ready in {folder}")
        return _python(folder)
    with _disk_faults(folder), _only_process(folder, announce) as lock:
        if not _is_ready(folder, digest):
            _make(engine, folder, digest, lock, announce)
    return _python(folder)


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _is_ready(folder: Path, digest: str) -> bool:
    try:
        return (folder / READY_NAME).read_text(encoding="utf-8") == digest and _python(folder).exists()
    except OSError:
        return False


def _make(engine: Engine, folder: Path, digest: str, lock: IO[str], announce: Announce) -> None:
    started = time.monotonic()
    if folder.exists():
        announce(f"{engine.name}: removing what an unfinished installation left in {folder}")
        shutil.rmtree(folder)
    steps = _Steps(engine, folder, lock, announce)
    try:
        steps.run()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    unmarked = folder / f"{READY_NAME}.tmp"
    unmarked.write_text(digest, encoding="utf-8")
    unmarked.replace(folder / READY_NAME)
    announce(f"{engine.name}: ready in {folder} after {time.monotonic() - started:.0f} s")


class _Steps:
    """The steps of one installation; their output goes to a log beside the environment."""

    def __init__(self, engine: Engine, folder: Path, lock: IO[str], announce: Announce) -> None:
        self.engine, self.folder, self.lock, self.announce = engine, folder, lock, announce
        self.log = folder.with_name(f"{folder.name}.log")

    def run(self) -> None:
        self.log.write_bytes(b"")
        self.say(f"making an environment in {self.folder} (log: {self.log})")
        self.call([sys.executable, "-m", "venv", str(self.folder)], "Python cannot make an environment")
        num_packages = len(self.engine.lock_file.read_text(encoding="utf-8").splitlines())
        self.say(f"installing {num_packages} packages: 1 to 2 GB to download, several minutes")
        self.pip("--no-deps", "-r", str(self.engine.lock_file))
        if self.engine.repair is not None:
            self.say(f"repairing: {self.engine.repair.__name__.replace('_', ' ')}")
            (site_packages,) = self.folder.glob("lib/python*/site-packages")
            self.engine.repair(site_packages)
        self.say(f"installing our own {' and '.join(self.own_names())}")
        self.install_own()
        self.say("trying it")
        self.call(
            [str(_python(self.folder)), "-c", self.engine.check],
            f"the packages of {self.engine.name} are installed but do not work on this machine",
        )

    def say(self, line: str) -> None:
        self.announce(f"{self.engine.name}: {line}")

    def own_names(self) -> list[str]:
        return [(self.engine.folder / package).resolve().name for package in self.engine.packages]

    def install_own(self) -> None:
        """From copies, since a build writes into the folder that it builds from."""
        with tempfile.TemporaryDirectory(prefix="dflash-engines-") as copies:
            for name, package in zip(self.own_names(), self.engine.packages, strict=True):
                copy = shutil.copytree(self.engine.folder / package, Path(copies) / name)
                self.pip("--no-deps", "--no-build-isolation", str(copy))

    def pip(self, *arguments: str) -> None:
        command = [str(_python(self.folder)), "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
        chosen = shlex.split(os.environ.get(PIP_VARIABLE, ""))
        self.call(
            [*command, *chosen, *arguments],
            f"the package index does not give all that {self.engine.name} needs",
        )

    def call(self, command: Sequence[str], fault: str) -> None:
        """Run one command; where it fails, `fault` with the reason that it gave.

        It holds the lock as well: should this process be killed, nobody else begins before the command has ended.
        """
        begin = self.log.stat().st_size
        with self.log.open("ab") as log:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                pass_fds=(self.lock.fileno(),),
            )
        if done.returncode != 0:
            output = self.log.read_bytes()[begin:].decode("utf-8", errors="replace")
            if os.strerror(errno.ENOSPC) in output:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            mend = f"see {self.log}; further pip options go into {PIP_VARIABLE}"
            raise UnavailableError(f"{fault} ({_reason(output)})", mend)


def _environment() -> dict[str, str]:
    """pip's own configuration stays; what would lead it or Python out of the environment does not."""
    outside = {"PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"}
    kept = {name: value for name, value in os.environ.items() if name not in outside}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def _reason(output: str) -> str:
    """The line that names the cause, without passwords in addresses."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and "is ignored" not in line]
    errors = [line for line in lines if line.startswith("ERROR:") and not line.endswith("Exception:")]
    # pip's first complaint lists what it looked at; the one about the distribution names what is missing.
    missing = [line for line in errors if "No matching distribution" in line]
    chosen = (missing or errors or lines[-1:] or ["no reason was given"])[0]
    return re.sub(r"://[^/@\s]+@", "://", chosen.removeprefix("ERROR:").strip())[:300]


@contextlib.contextmanager
def _only_process(folder: Path, announce: Announce) -> Iterator[IO[str]]:
    """Hold the environment's lock; the system drops it when its last holder has ended."""
    import fcntl

    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            announce(f"another process is making {folder.name}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


@contextlib.contextmanager
def _disk_faults(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        mend = f"free some space, or name another folder by --into or {CACHE_VARIABLE}"
        raise UnavailableError(f"cannot make {folder}: {error.strerror or error}", mend) from error


def _end_on_signal(number: int, frame: Any) -> NoReturn:
    raise SystemExit(128 + number)  # so that what runs is ended and what is half made is removed


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make an engine's own environment, outside the checkout.")
    parser.add_argument("engine", choices=sorted(ENGINES))
    parser.add_argument(
        "--into",
        type=Path,
        metavar="FOLDER",
        help=f"the parent folder (default: {CACHE_VARIABLE}, else the cache)",
    )
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _end_on_signal)

    def announce(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        print(install(ENGINES[arguments.engine], arguments.into or default_cache(), announce), flush=True)
    except DFlashError as error:
        announce(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        announce("interrupted: nothing was kept")
        return EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
