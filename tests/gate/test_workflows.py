"""The ready workflows: they are read as the runner reads them, and their commands are run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
SIMULATED = {"BACKEND": "simulated", "MODEL": "made-up", "DRAFT": "made-up-draft", "DATASET": "quickstart"}


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((WORKFLOWS / name).read_text(encoding="utf-8"))


def steps_of(name: str) -> dict[str, str]:
    """The commands of the one job, by the step's name."""
    (job,) = load(name)["jobs"].values()
    return {step["name"]: step["run"] for step in job["steps"] if "run" in step}


class Runner:
    """Runs steps as a runner does: `bash -e`, one after the other in one folder."""

    def __init__(self, folder: Path, **environment: str) -> None:
        programs = folder / "programs"
        programs.mkdir()
        python = programs / "python"  # no link: through one, an environment is not recognised
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
        python.chmod(0o755)
        self.folder = folder / "checkout"
        self.folder.mkdir()
        self.environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
            **environment,
        }

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )


@pytest.fixture
def summary(tmp_path) -> Path:
    return tmp_path / "summary.md"


@pytest.mark.slow
def test_the_simulated_chain_runs(tmp_path, summary):
    steps = steps_of("gate-simulated.yml")
    assert steps.pop("Install") == "python -m pip install ."
    runner = Runner(tmp_path)
    for name, command in steps.items():
        done = runner.run(command)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
    assert summary.read_text(encoding="utf-8").startswith("# new against base: same\n")
    document = json.loads((runner.folder / "gate.json").read_text(encoding="utf-8"))
    assert {item["verdict"] for item in document["comparisons"]} == {"same"}
    assert len(document["comparisons"]) == 12
    assert (runner.folder / "gate.xml").exists()
    assert list((runner.folder / "reports" / "baselines").glob("*/simulated/calibration.json"))


@pytest.mark.slow
def test_the_commands_of_the_gpu_workflow_run(tmp_path, summary):
    steps = steps_of("gate-gpu.yml")
    runner = Runner(tmp_path, **SIMULATED, NUM_PROMPTS="8", BASELINES=str(tmp_path / "kept"), RUN="gate-1-1")
    (runner.folder / ".github").symlink_to(ROOT / ".github")
    assert runner.run(steps["Measure"]).returncode == 0
    assert runner.run(steps["Gate"]).returncode == 5  # nothing was accepted yet
    assert runner.run(steps["Accept"]).returncode == 0
    runner.environment["RUN"] = "gate-2-1"
    shutil.copytree(runner.folder / "reports" / "gate-1-1", runner.folder / "reports" / "gate-2-1")
    for name in ("Gate", "Gate and note in the history"):
        done = runner.run(steps[name])
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
    assert summary.read_text(encoding="utf-8").startswith("# gate-1-1 against gate-1-1: same\n")


def test_every_step_of_the_gpu_workflow_is_run_by_the_test_above():
    names = {"Install", "Measure", "Accept", "Gate", "Gate and note in the history"}
    assert set(steps_of("gate-gpu.yml")) == names


@pytest.mark.parametrize("name", sorted(path.name for path in WORKFLOWS.glob("gate*.yml")))
def test_a_workflow_has_no_more_rights_than_it_needs(name):
    workflow = load(name)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] > 0
        for step in job["steps"]:
            assert "${{" not in step.get("run", ""), "a value from elsewhere comes by the environment"


def test_code_of_forks_does_not_reach_the_gpu_runner():
    (job,) = load("gate-gpu.yml")["jobs"].values()
    assert "github.event.pull_request.head.repo.full_name == github.repository" in job["if"]
    assert load("gate-gpu.yml")["concurrency"]["cancel-in-progress"] is False
