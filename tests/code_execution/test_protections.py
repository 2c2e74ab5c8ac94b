"""Each layer alone: what the kernel refuses with no audit hook in the way, and what the hook refuses alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash.code_execution.audit_hook import make_audit_hook
from dflash.code_execution.programs import available_protections
from dflash.code_execution.seccomp import seccomp_filter

ROOT = Path(__file__).parents[2]

# What a program could do if it got past Python: calls by number, through a handle taken before the layers.
KERNEL_ATTACKS = """
import ctypes, errno, json, os, sys
sys.path.append(sys.argv[1])
from dflash.code_execution import protections as layers
libc = ctypes.CDLL(None, use_errno=True)
folder = os.getcwd()
job = {"filter": bytes.fromhex(sys.argv[3]) or None}
if sys.argv[2] == "landlock":
    layers._seccomp = lambda *arguments: False
libc.unshare = lambda flags: -1
held = layers._protect_on_linux(job, os.getppid(), folder, layers._readable_paths())
results = {"held": held}
def call(name, function, *arguments):
    ctypes.set_errno(0)
    value = function(*arguments)
    results[name] = errno.errorcode.get(ctypes.get_errno(), "done") if value == -1 else "done"
def attempt(name, function):
    try:
        function()
        results[name] = "done"
    except OSError as error:
        results[name] = errno.errorcode[error.errno]
attempt("read outside", lambda: open("/etc/passwd").close())
attempt("read home", lambda: os.listdir(sys.argv[4]))
attempt("read parent's memory", lambda: open(f"/proc/{os.getppid()}/environ", "rb").read())
attempt("read own process", lambda: open("/proc/self/maps").read())
attempt("write outside", lambda: open(os.path.join(sys.argv[4], "written"), "w").close())
attempt("write into Python", lambda: open(os.path.join(os.path.dirname(os.__file__), "os.py"), "a").close())
attempt("make a folder", lambda: os.mkdir("inner"))
attempt("make a link", lambda: os.symlink("/etc", "link"))
attempt("remove the folder", lambda: os.rmdir(folder))
attempt("rename", lambda: os.rename("mine", "yours"))
attempt("write inside", lambda: open("mine", "w").close())
attempt("read Python", lambda: open(os.__file__).close())
call("signal to the parent", libc.kill, os.getppid(), 0)
if sys.argv[2] == "seccomp":
    call("socket", libc.socket, 2, 1, 0)
    call("unix socket", libc.socket, 1, 1, 0)
    call("fork", libc.syscall, 57 if os.uname().machine == "x86_64" else 1079)
    attempt("fork by C", os.fork)
    attempt("exec", lambda: os.execv(sys.executable, [sys.executable, "-V"]))
    call("ptrace", libc.ptrace, 16, os.getppid(), 0, 0)
    call("namespace", libc.syscall, 272 if os.uname().machine == "x86_64" else 97, 0x10000000)
    call("io_uring", libc.syscall, 425, 1, 0)
    call("anonymous file", libc.memfd_create, b"x", 0)
    attempt("its session", os.setsid)
print(json.dumps(results), flush=True)
os._exit(0)
"""
needs_landlock = pytest.mark.skipif(
    not any(name.startswith("landlock") for name in available_protections()), reason="no Landlock here"
)
needs_seccomp = pytest.mark.skipif("seccomp" not in available_protections(), reason="no seccomp here")


def attack_the_kernel(layer: str, folder: Path) -> dict[str, str]:
    home = folder / "home"
    inside = folder / "inside"
    home.mkdir()
    inside.mkdir()
    instructions = seccomp_filter(os.uname().machine) or b""
    command = [
        sys.executable,
        "-S",
        "-s",
        "-B",
        "-c",
        KERNEL_ATTACKS,
        str(ROOT),
        layer,
        instructions.hex(),
        str(home),
    ]
    done = subprocess.run(command, cwd=inside, capture_output=True, text=True, check=True, timeout=60)
    results: dict[str, str] = json.loads(done.stdout)
    assert not list(home.iterdir())
    return results


@needs_landlock
def test_landlock_alone_guards_files_and_other_processes(tmp_path):
    results = attack_the_kernel("landlock", tmp_path)
    held = results.pop("held")
    assert "seccomp" not in held
    assert results.pop("write inside") == results.pop("read Python") == "done"
    if "landlock-6" not in held and "landlock-7" not in held:
        results.pop("signal to the parent")  # since version 6
    assert set(results.values()) <= {"EACCES", "EPERM", "ENOENT", "EBUSY"}, results


@needs_seccomp
@needs_landlock
def test_seccomp_guards_network_processes_and_the_kernel(tmp_path):
    results = attack_the_kernel("seccomp", tmp_path)
    assert "seccomp" in results.pop("held")
    assert results.pop("write inside") == results.pop("read Python") == "done"
    assert set(results.values()) <= {"EACCES", "EPERM"}, results


NETWORK = """
import ctypes, os, socket, sys
if ctypes.CDLL(None).unshare(0x58000000) != 0:
    sys.exit("refused")
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5)
except OSError as error:
    print(error.errno)
"""


@pytest.mark.skipif("namespaces" not in available_protections(), reason="no unprivileged namespaces here")
def test_a_namespace_alone_has_no_network():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-c", NETWORK, port], capture_output=True, text=True, check=True
        )
    assert int(done.stdout) > 0


HOOK_ATTACKS = """
import os, sys
sys.path.append(sys.argv[1])
from dflash.code_execution.audit_hook import make_audit_hook
import subprocess, socket, ctypes, gc, threading, io, pathlib, tempfile
folder = os.path.realpath(os.getcwd())
sys.addaudithook(make_audit_hook(folder, (os.path.dirname(os.__file__),)))
for name in ("ctypes", "_ctypes"):
    del sys.modules[name]
exec(sys.argv[2])
"""


def run_below_the_hook(code: str, folder: Path) -> str:
    """The last line of the error, or "done"."""
    command = [sys.executable, "-S", "-B", "-c", HOOK_ATTACKS, str(ROOT), code]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=60, env={"HOME": "/"}
    )
    return "done" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd')",
        "io.FileIO(b'/etc/passwd')",
        "os.open('/etc/passwd', os.O_RDONLY)",
        "pathlib.Path('/etc/passwd').read_text()",
        "open('../outside', 'w')",
        "open('sub/../../outside', 'w')",
        "open(os.path.dirname(os.__file__) + '/../../x')",
        "open(os.__file__, 'a')",
        "os.open(os.__file__, os.O_RDWR)",
        "class P(str): pass\nopen(P('mine'))",
        "class P:\n    def __fspath__(self): return '/etc/passwd'\nio.FileIO(P())",
        "os.listdir('/')",
        "os.scandir(b'/etc')",
        "os.remove('/etc/passwd')",
        "os.mkdir('inner')",
        "os.symlink('/etc', 'link')",
        "os.rename('mine', 'yours')",
        "os.chdir('/')",
        "os.chmod('.', 0o777)",
        "os.rmdir(folder)",
        "subprocess.run(['true'])",
        "os.system('true')",
        "os.fork()",
        "os.execv(sys.executable, [sys.executable])",
        "os.posix_spawn(sys.executable, [sys.executable], {})",
        "os.kill(os.getppid(), 0)",
        "os.killpg(os.getpgrp(), 0)",
        "socket.socket()",
        "socket.getaddrinfo('localhost', 80)",
        "gc.get_objects()",
        "gc.get_referents(sys)",
        "sys.setprofile(print)",
        "sys._current_frames()",
        "import ctypes",
        "import _ctypes",
        "import sqlite3\nsqlite3.connect('/etc/x')",
        # the hook's own frame is within reach, what it goes by is not
        "import builtins\nbuiltins.type = builtins.isinstance = print\nopen('/etc/passwd')",
        """
try: open('/etc/passwd')
except OSError as error: frame = error.__traceback__.tb_next.tb_frame
frame.f_globals['_REFUSED_EVENTS'] = ()
frame.f_locals['prefixes'] = ('/',)
open('/etc/passwd')""",
    ],
)
def test_the_hook_alone_refuses(code, tmp_path):
    (tmp_path / "mine").touch()
    last = run_below_the_hook(code, tmp_path)
    assert "is not allowed here" in last or "may not be imported here" in last
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "code",
    [
        "open('mine', 'w').write('x')\nassert open('mine').read() == 'x'\nos.remove('mine')",
        "open(folder + '/mine', 'wb').close()\nassert 'mine' in os.listdir()",
        "tempfile.TemporaryFile().write(b'x')",
        "open('/dev/null', 'w').write('x')",
        "open(os.__file__).read()",
        "import asyncio, json, decimal, dataclasses, unittest",
        "threading.Thread(target=int).start()",
        "import sqlite3\nsqlite3.connect(':memory:').execute('select 1')",
        "from collections import namedtuple\nnamedtuple('A', 'b')(1)",
        "import traceback\ntry: 1/0\nexcept Exception: traceback.print_exc()",
    ],
)
def test_the_hook_lets_honest_programs_work(code, tmp_path):
    assert run_below_the_hook(code, tmp_path) == "done"


def test_a_folder_with_the_same_beginning_is_another_one(tmp_path):
    hook = make_audit_hook("/a/b", ("/c",))
    hook("open", ("/a/b/x", "w", os.O_WRONLY))
    hook("open", ("/c/x", "r", os.O_RDONLY))
    for path in ("/a/bc/x", "/cd/x", "/a", "/"):
        with pytest.raises(PermissionError):
            hook("open", (path, "r", os.O_RDONLY))
