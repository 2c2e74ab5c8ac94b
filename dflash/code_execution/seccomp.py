"""The system calls that a limited program may make, as a seccomp filter. Pure.

A list of what is allowed, not of what is refused: a kernel's new system call is refused until it is looked at.
What is missing on purpose: sockets of every kind, new processes and programs, signals to others, tracing,
keys, mounts, folders (made, entered or removed), links, renaming, and whatever changes owners or modes. A
refused call fails with EPERM and the program goes on.

The format is that of `struct sock_filter` and `struct seccomp_data` (Linux, Documentation/userspace-api/
seccomp_filter.rst); the numbers are those of the kernel's own tables for the two machines.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: number on x86_64, on aarch64; None where the machine has no such call
_NUMBERS: dict[str, tuple[int, int | None]] = {
    # files: which ones is Landlock's business
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "newfstatat": (262, 79),
    "lseek": (8, 62), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66),
    "openat": (257, 56), "getdents64": (217, 61), "readlinkat": (267, 78), "faccessat": (269, 48),
    "faccessat2": (439, 439), "statx": (332, 291), "statfs": (137, 43), "fstatfs": (138, 44),
    "getcwd": (79, 17), "unlinkat": (263, 35), "ftruncate": (77, 46), "fsync": (74, 82),
    "fdatasync": (75, 83), "dup": (32, 23), "dup3": (292, 24), "pipe2": (293, 59), "ppoll": (271, 73),
    "pselect6": (270, 72), "fcntl": (72, 25), "ioctl": (16, 29),
    "open": (2, None), "stat": (4, None), "lstat": (6, None), "access": (21, None), "unlink": (87, None),
    "readlink": (89, None), "poll": (7, None), "select": (23, None), "dup2": (33, None), "pipe": (22, None),
    # memory
    "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226),
    "madvise": (28, 233),
    # threads
    "clone": (56, 220), "futex": (202, 98), "set_robust_list": (273, 99), "set_tid_address": (218, 96),
    "rseq": (334, 293), "gettid": (186, 178), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    # the program's own signals, timers and end
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132), "getitimer": (36, 102), "setitimer": (38, 103), "alarm": (37, None),
    "restart_syscall": (219, 128), "exit": (60, 93), "exit_group": (231, 94),
    # clocks
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153),
    # what the program and its machine are
    "getpid": (39, 172), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getpgid": (121, 155), "getsid": (124, 156),
    "getpgrp": (111, None), "getrusage": (98, 165), "getrlimit": (97, None), "prlimit64": (302, 261),
    "uname": (63, 160), "sysinfo": (99, 179), "getrandom": (318, 278),
}  # fmt: skip
# glibc makes threads by clone3, whose flags a filter cannot see, and falls back to clone where it is unknown.
_CLONE3 = 435

_CLONE_THREAD = 0x10000
_CLONE_NEW_NAMESPACES = 0x7E020000
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC: F_SETOWN could send signals to others
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030)
# TCGETS, FIONCLEX, FIOCLEX
_IOCTL_COMMANDS = (0x5401, 0x5450, 0x5451)

# opcodes of classic BPF, on 32-bit words
_LOAD = 0x20
_JUMP_IF_EQUAL = 0x15
_JUMP_IF_ANY_BIT = 0x45
_RETURN = 0x06

_OFFSET_NUMBER = 0
_OFFSET_ARCHITECTURE = 4
_OFFSET_ARGUMENTS = 16  # six of 64 bits, low word first on both machines

_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_FAIL_WITH = 0x00050000

Instruction = tuple[int, int, int, int]  # opcode, instructions to skip if true, if false, operand


def seccomp_filter(machine: str) -> bytes | None:
    """The filter for a machine (`x86_64`, `aarch64`) as an array of `struct sock_filter`; None for any other."""
    if machine not in AUDIT_ARCHITECTURES:
        return None
    refuse = (_RETURN, 0, 0, _FAIL_WITH | errno.EPERM)
    program: list[Instruction] = [
        (_LOAD, 0, 0, _OFFSET_ARCHITECTURE),
        (_JUMP_IF_EQUAL, 1, 0, AUDIT_ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),  # the numbers of another architecture mean other calls
        (_LOAD, 0, 0, _OFFSET_NUMBER),
        *_when_called(_CLONE3, [(_RETURN, 0, 0, _FAIL_WITH | errno.ENOSYS)]),
    ]
    for name, numbers in _NUMBERS.items():
        number = numbers[0] if machine == "x86_64" else numbers[1]
        if number is not None:
            program += _when_called(number, [*_CHECKS.get(name, ()), (_RETURN, 0, 0, _ALLOW)])
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in [*program, refuse])


def _when_called(number: int, body: Sequence[Instruction]) -> list[Instruction]:
    """Run `body`, which returns, if the loaded system call is `number`."""
    return [(_JUMP_IF_EQUAL, 0, len(body), number), *body]


def _argument_is(index: int, values: Sequence[int]) -> list[Instruction]:
    """Fall through if the low word of an argument is one of `values`, else refuse."""
    comparisons = [
        (_JUMP_IF_EQUAL, len(values) - position, 0, value) for position, value in enumerate(values)
    ]
    refuse = (_RETURN, 0, 0, _FAIL_WITH | errno.EPERM)
    return [(_LOAD, 0, 0, _OFFSET_ARGUMENTS + 8 * index), *comparisons, refuse]


_CHECKS: dict[str, list[Instruction]] = {
    "clone": [  # a thread of this process, in the namespaces it has
        (_LOAD, 0, 0, _OFFSET_ARGUMENTS),
        (_JUMP_IF_ANY_BIT, 1, 0, _CLONE_NEW_NAMESPACES),
        (_JUMP_IF_ANY_BIT, 1, 0, _CLONE_THREAD),
        (_RETURN, 0, 0, _FAIL_WITH | errno.EPERM),
    ],
    "fcntl": _argument_is(1, _FCNTL_COMMANDS),
    "ioctl": _argument_is(1, _IOCTL_COMMANDS),
    "unlinkat": _argument_is(2, (0,)),  # files, no folders
    "prlimit64": _argument_is(0, (0,)),  # of this process
}
