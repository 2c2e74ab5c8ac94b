"""What a process gives up before it runs a program that nobody trusts. Standard library only, by ctypes.

Each layer is laid by the process upon itself, without root, and cannot be taken off:

- `rlimits`: CPU time, memory, file size, open files, no core dump;
- `namespaces`: a user namespace, in which the powers of root end at the border, with a network of its own,
  which has no way out;
- `no-capabilities`: none of the powers of root in it either;
- `landlock-<version>`: files are read below Python's installation and the system's libraries, and read and
  written directly in the working folder; since version 4 no TCP, since version 6 no signals to others;
- `seccomp`: the system calls of `seccomp.py` and no others;
- `audit-hook`: `audit_hook.py`.

macOS has the first and the last. Structures and numbers are the kernel's (landlock(7), capabilities(7),
unshare(2), prctl(2)).
"""

from __future__ import annotations

import os
import sys
from typing import Any

from dflash.code_execution.audit_hook import make_audit_hook

_CLONE_NEWUSER_NEWNET_NEWIPC = 0x10000000 | 0x40000000 | 0x08000000
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SECCOMP_MODE_FILTER = 2
_SIGKILL = 9
_CAPABILITY_VERSION_3 = 0x20080522
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_SYS_LANDLOCK_CREATE_RULESET, _SYS_LANDLOCK_ADD_RULE, _SYS_LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1

# LANDLOCK_ACCESS_FS_*
_WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_FILE, _MAKE_REG, _TRUNCATE = (
    1 << bit for bit in (1, 2, 3, 5, 8, 14)
)
# how many rights over files each version knows; later ones know 16
_LANDLOCK_NUM_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}

_SYSTEM_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/System/Library")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/dev/random", "/dev/zero")


class ProtectionError(Exception):
    """A protection that was there when the run began could not be laid."""


def protect(job: dict[str, Any], parent: int) -> list[str]:
    """Give up rights. The names of the layers that hold are returned.

    Args:
        job: `cpu_s`, `memory_bytes`, `file_bytes`, `num_open_files`; `filter`: the seccomp filter or None;
            `layers`: the names that must hold, or None for whatever the machine has.
        parent: process id; the process ends when the parent is gone (Linux).

    Raises:
        ProtectionError: a layer of `layers` does not hold.
    """
    folder = os.path.realpath(os.getcwd())  # noqa: PTH109
    readable = _readable_paths()
    _limit_resources(job)
    layers = ["rlimits"]
    if sys.platform == "linux":
        layers += _protect_on_linux(job, parent, folder, readable)
    sys.addaudithook(make_audit_hook(folder, readable))
    layers.append("audit-hook")
    missing = set(job["layers"] or ()) - set(layers)
    if missing:
        raise ProtectionError(f"{', '.join(sorted(missing))} could not be had")
    return layers


def _readable_paths() -> tuple[str, ...]:
    """What a program may read besides its own folder: whatever an import may need."""
    prefixes = {sys.base_prefix, sys.base_exec_prefix}
    folders = {f"{prefix}/{name}" for prefix in prefixes for name in ("lib", sys.platlibdir)}
    paths = {*sys.path, *folders, *_SYSTEM_FOLDERS, *_SYSTEM_FILES}
    return tuple(sorted(path for path in paths if os.path.exists(path)))  # noqa: PTH110


def _limit_resources(job: dict[str, Any]) -> None:
    import resource

    limits = {
        resource.RLIMIT_CPU: (job["cpu_s"], job["cpu_s"] + 1),  # SIGXCPU, then SIGKILL
        resource.RLIMIT_FSIZE: (job["file_bytes"],) * 2,
        resource.RLIMIT_NOFILE: (job["num_open_files"],) * 2,
        resource.RLIMIT_CORE: (0, 0),
    }
    if sys.platform == "linux":  # macOS knows the name and refuses every value
        limits[resource.RLIMIT_AS] = (job["memory_bytes"],) * 2
    if not job["filter"]:
        # No new processes, for whom it counts (not for root). Linux counts threads as well: where seccomp
        # tells the two apart, this is left alone.
        limits[resource.RLIMIT_NPROC] = (0, 0)
    for name, (soft, hard) in limits.items():
        known = resource.getrlimit(name)[1]
        if known != resource.RLIM_INFINITY:
            soft, hard = min(soft, known), min(hard, known)
        resource.setrlimit(name, (soft, hard))


def _protect_on_linux(job: dict[str, Any], parent: int, folder: str, readable: tuple[str, ...]) -> list[str]:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    layers = []
    if libc.unshare(_CLONE_NEWUSER_NEWNET_NEWIPC) == 0:
        layers.append("namespaces")
    if _drop_capabilities(libc):
        layers.append("no-capabilities")
    # After the change of credentials, which would forget it. The parent may have gone before.
    libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return layers
    version = _landlock(libc, folder, readable)
    if version:
        layers.append(f"landlock-{version}")
    if job["filter"] and _seccomp(libc, job["filter"]):
        layers.append("seccomp")
    # What is left of ctypes would be the program's: an import after this one meets the audit hook.
    for name in [name for name in sys.modules if name.split(".")[0] in ("ctypes", "_ctypes")]:
        del sys.modules[name]
    return layers


def _drop_capabilities(libc: Any) -> bool:
    import ctypes

    number = _SYS_CAPSET.get(os.uname().machine)
    if number is None:
        return False
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    return bool(libc.syscall(number, header, nothing) == 0)


def _landlock(libc: Any, folder: str, readable: tuple[str, ...]) -> int:
    """The version of Landlock that now holds; 0: the kernel has none, or does not use it."""
    import ctypes
    import struct

    version = int(libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION))
    if version < 1:
        return 0
    rights = (1 << _LANDLOCK_NUM_FILE_RIGHTS.get(version, 16)) - 1
    # rights over files; since 4 over TCP ports; since 6 what may not leave: signals, abstract sockets
    attributes = struct.pack("=QQQ", rights, 0b11, 0b11)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    rules = libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if rules < 0:
        return 0
    allowed = dict.fromkeys(readable, _READ_FILE | _READ_DIR)
    allowed["/dev/null"] = _READ_FILE | _WRITE_FILE
    allowed[folder] = _READ_FILE | _READ_DIR | _WRITE_FILE | _REMOVE_FILE | _MAKE_REG | _TRUNCATE
    for path, access in allowed.items():
        if not os.path.isdir(path):  # noqa: PTH112
            access &= ~_READ_DIR
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", access & rights, file)
        added = libc.syscall(_SYS_LANDLOCK_ADD_RULE, rules, _LANDLOCK_RULE_PATH_BENEATH, rule, 0)
        os.close(file)
        if added != 0:
            return 0
    holds = libc.syscall(_SYS_LANDLOCK_RESTRICT_SELF, rules, 0) == 0
    os.close(rules)
    return version if holds else 0


def _seccomp(libc: Any, instructions: bytes) -> bool:
    import ctypes

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    program = Program(len(instructions) // 8, instructions)
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0)
