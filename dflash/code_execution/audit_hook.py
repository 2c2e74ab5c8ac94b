"""Refuses inside of Python what a limited program has no business with. Standard library only.

An audit hook cannot be taken away again, but it runs among what it guards against. So it keeps nothing where
the program could change it: it uses no global, no built-in by name, no closure and no function in Python, only
what is bound to its parameters, and all of that is immutable. Paths are compared as texts: the program's
folder has no links and cannot get any.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

_REFUSED_EVENTS = frozenset(
    {
        # other processes and programs
        "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn",
        "os.startfile", "pty.spawn", "os.kill", "os.killpg", "resource.prlimit", "webbrowser.open",
        # files: names, folders, owners and modes; the working folder stays what it is
        "os.chdir", "os.chmod", "os.chown", "os.chflags", "os.link", "os.symlink", "os.rename", "os.mkdir",
        "os.rmdir", "os.utime", "os.setxattr", "os.removexattr", "sqlite3.enable_load_extension",
        # interpreters that have no hook
        "cpython.PyInterpreterState_New", "sys.addaudithook", "sys.remote_exec",
        # what is in other frames' hands, the token first of all
        "gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys.settrace", "sys.setprofile",
        "sys._current_frames", "sys._current_exceptions", "sys.monitoring.register_callback",
    }
)  # fmt: skip
_REFUSED_PREFIXES = ("socket.", "ctypes.", "syslog.")
_REFUSED_MODULES = frozenset(
    {"ctypes", "_ctypes", "_testcapi", "_testinternalcapi", "_xxsubinterpreters", "_interpreters"}
)
_READ_EVENTS = frozenset({"os.listdir", "os.scandir"})
_WRITE_EVENTS = frozenset({"os.remove", "os.truncate", "sqlite3.connect"})
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class ForbiddenImportError(ImportError):
    """A module that a limited program may not have."""


def make_audit_hook(folder: str, readable: tuple[str, ...]) -> Callable[[str, tuple[Any, ...]], None]:
    """A hook for `sys.addaudithook`.

    Args:
        folder: absolute path without links; the program reads and writes in it.
        readable: absolute paths of folders and files that it may read besides.

    The hook raises `PermissionError` or `ForbiddenImportError`.
    """
    inside = f"{folder}/"
    prefixes = (inside, *(f"{path}/" for path in (*readable, "/dev/null")))

    def hook(
        event: str,
        args: tuple[Any, ...],
        folder: str = inside,
        prefixes: tuple[str, ...] = prefixes,
        refused_events: frozenset[str] = _REFUSED_EVENTS,
        refused_prefixes: tuple[str, ...] = _REFUSED_PREFIXES,
        refused_modules: frozenset[str] = _REFUSED_MODULES,
        read_events: frozenset[str] = _READ_EVENTS,
        write_events: frozenset[str] = _WRITE_EVENTS,
        write_flags: int = _WRITE_FLAGS,
        starts_with: Callable[..., bool] = str.startswith,
        decode: Callable[..., str] = bytes.decode,
        kind_of: Callable[[object], type] = type,
        text: type = str,
        data: type = bytes,
        number: type = int,
        refusal: type = PermissionError,
        import_refusal: type = ForbiddenImportError,
    ) -> None:
        if event in refused_events or starts_with(event, refused_prefixes):
            raise refusal(1, f"{event} is not allowed here")
        if event == "import":
            if args[0] in refused_modules:
                raise import_refusal(f"{args[0]} may not be imported here")
            return
        if event == "open":
            mode, flags = args[1], args[2]
            writes = bool(flags & write_flags) if kind_of(flags) is number else True
            if kind_of(mode) is text and ("w" in mode or "a" in mode or "x" in mode or "+" in mode):
                writes = True
        elif event in write_events:
            writes = True
        elif event in read_events:
            writes = False
        else:
            return
        path = args[0]
        kind = kind_of(path)
        if kind is number or path is None or path == ":memory:":
            return  # a file that is open already, the working folder, a data base without a file
        if kind is data:
            path = decode(path, "utf-8", "surrogateescape")
        elif kind is not text:
            raise refusal(1, "a path that is neither text nor bytes is not allowed here")
        full = f"{path}/" if starts_with(path, "/") else f"{folder}{path}/"
        if "/../" in full or not starts_with(full, folder if writes and path != "/dev/null" else prefixes):
            raise refusal(1, f"{'writing to' if writes else 'reading'} {path!r} is not allowed here")

    return hook
