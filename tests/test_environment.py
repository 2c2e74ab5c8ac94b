"""The fingerprint: what moves a number is told, who and where is not."""

from __future__ import annotations

import getpass
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from dflash import environment
from dflash.environment import fingerprint, without_home


def test_it_names_the_machine_and_the_versions() -> None:
    found = fingerprint()
    assert found["machine"]["num_cpus"] >= 1
    assert found["machine"]["architecture"] == platform.machine()
    assert found["versions"]["python"].endswith(platform.python_version())
    assert found["versions"]["numpy"]
    assert json.loads(json.dumps(found)) == found


def test_it_is_the_same_every_time() -> None:
    assert fingerprint() == fingerprint()


def test_thread_settings_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert fingerprint()["threads"]["OMP_NUM_THREADS"] == "3"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert "OMP_NUM_THREADS" not in fingerprint()["threads"]


def test_it_tells_nobodys_name_or_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    text = json.dumps(fingerprint())
    for secret in ("hf_secret", platform.node(), str(Path("~").expanduser()), str(Path.cwd())):
        assert len(secret) < 4 or secret not in text
    user = getpass.getuser()
    assert len(user) < 5 or user not in text


def test_gpus_are_told_by_the_driver_where_torch_was_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*command: str) -> str | None:
        if command[1] == "--query-gpu=driver_version":
            return "550.1\n550.1"
        return "Made-up H9, 81559\nMade-up H9, 81559"

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(environment, "_output_of", answer)
    environment._gpu_driver.cache_clear()
    machine = environment._gpus()
    environment._gpu_driver.cache_clear()
    assert machine["gpus"] == ["Made-up H9, 80 GiB", "Made-up H9, 80 GiB"]
    assert machine["gpu_driver"] == "550.1"


@pytest.mark.parametrize("said", [None, "", "No devices were found", "H9, [N/A]"])
def test_no_gpu_is_told_where_the_driver_tells_none(
    monkeypatch: pytest.MonkeyPatch, said: str | None
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(environment, "_output_of", lambda *command: said)
    assert environment._gpus() == {}


def test_it_imports_nothing_heavy() -> None:
    code = (
        "import sys; from dflash.environment import fingerprint; fingerprint(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_home_folder_is_written_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert without_home("a /home/somebody/x") == "a ~/x"
    monkeypatch.setenv("HOME", "/")
    assert without_home("/x") == "/x"
