"""The filter of system calls, run through a small interpreter of its instructions."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from dflash.code_execution.seccomp import _NUMBERS, AUDIT_ARCHITECTURES, seccomp_filter

ALLOWED = 0x7FFF0000
REFUSED = 0x00050000 | errno.EPERM
UNKNOWN = 0x00050000 | errno.ENOSYS
KILLED = 0x80000000
HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
ARM_HEADER = Path("/usr/include/asm-generic/unistd.h")


def decide(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the filter answers to a call, by the rules of classic BPF."""
    instructions = list(struct.iter_unpack("=HBBI", seccomp_filter(machine) or b""))
    architecture = AUDIT_ARCHITECTURES[machine] if architecture is None else architecture
    data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    position, accumulator = 0, 0
    while True:
        opcode, if_true, if_false, operand = instructions[position]
        position += 1
        if opcode == 0x20:
            accumulator = struct.unpack_from("<I", data, operand)[0]
        elif opcode == 0x15:
            position += if_true if accumulator == operand else if_false
        elif opcode == 0x45:
            position += if_true if accumulator & operand else if_false
        else:
            assert opcode == 0x06
            return operand


def test_another_machine_has_no_filter():
    assert seccomp_filter("riscv64") is None


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_filter_is_short_enough_for_the_kernel(machine):
    assert len(seccomp_filter(machine) or b"") // 8 < 4096


def test_calls_are_allowed_by_their_number():
    assert decide("x86_64", 0) == ALLOWED  # read
    assert decide("aarch64", 63) == ALLOWED  # read
    assert decide("x86_64", 63) == ALLOWED  # uname
    assert decide("aarch64", 0) == REFUSED  # io_setup


@pytest.mark.parametrize(
    "number",
    # socket, connect, socketpair, fork, vfork, execve, kill, rename, mkdir, rmdir, symlink, chmod, ptrace,
    # mount, unshare, tgkill, memfd_create, bpf, execveat, process_vm_readv, io_uring_setup, pidfd_open
    [41, 42, 53, 57, 58, 59, 62, 82, 83, 84, 88, 90, 101, 165, 272, 234, 319, 321, 322, 310, 425, 434],
)
def test_dangerous_calls_are_refused(number):
    assert decide("x86_64", number) == REFUSED
    assert decide("x86_64", number | 0x40000000) == REFUSED  # the same call by the x32 convention


def test_calls_of_another_architecture_end_the_process():
    assert decide("x86_64", 0, architecture=0x40000003) == KILLED


@pytest.mark.parametrize(("machine", "clone", "clone3"), [("x86_64", 56, 435), ("aarch64", 220, 435)])
def test_threads_are_made_and_processes_are_not(machine, clone, clone3):
    assert decide(machine, clone, 0x3D0F00) == ALLOWED  # as glibc makes a thread
    assert decide(machine, clone, 0x01200011) == REFUSED  # as glibc forks
    assert decide(machine, clone, 0x4111) == REFUSED  # vfork
    assert decide(machine, clone, 0x3D0F00 | 0x10000000) == REFUSED  # a user namespace
    assert decide(machine, clone3) == UNKNOWN


def test_arguments_are_looked_at():
    assert decide("x86_64", 72, 3, 3) == ALLOWED  # fcntl F_GETFL
    assert decide("x86_64", 72, 3, 8) == REFUSED  # F_SETOWN
    assert decide("x86_64", 16, 0, 0x5401) == ALLOWED  # ioctl TCGETS
    assert decide("x86_64", 16, 0, 0x5412) == REFUSED  # TIOCSTI
    assert decide("x86_64", 263, 3, 0, 0) == ALLOWED  # unlinkat
    assert decide("x86_64", 263, 3, 0, 0x200) == REFUSED  # AT_REMOVEDIR
    assert decide("x86_64", 302, 0) == ALLOWED  # prlimit64
    assert decide("x86_64", 302, 1) == REFUSED


@pytest.mark.parametrize(("header", "index"), [(HEADER, 0), (ARM_HEADER, 1)])
def test_the_numbers_are_those_of_the_kernel(header, index):
    if not header.is_file():
        pytest.skip("the kernel's headers are not installed")
    text = header.read_text(encoding="utf-8")
    kernel = {name: int(number) for name, number in re.findall(r"define __NR(?:3264)?_(\w+) (\d+)", text)}
    kernel["newfstatat"] = kernel.get("newfstatat", kernel.get("fstatat", -1))
    ours = {name: numbers[index] for name, numbers in _NUMBERS.items() if numbers[index] is not None}
    assert ours == {name: kernel[name] for name in ours}
