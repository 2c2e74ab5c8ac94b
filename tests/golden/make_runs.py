"""Makes the run folders of `runs/` anew, with the simulated backend: `python tests/golden/make_runs.py`.

The machine that they name is made up, so that they say nothing of the one that this ran on. After it, write the
expected reports with `DFLASH_UPDATE_GOLDEN=1 python -m pytest tests/results/test_golden_runs.py` and read the
difference.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = Path(__file__).parent / "runs"
ENVIRONMENT = {
    "machine": {"cpu": "made-up CPU", "num_cpus": 2, "architecture": "made-up", "os": "made-up OS"},
    "versions": {"dflash": "0.1.0", "python": "CPython 3.12.0"},
    "threads": {},
    "engine": {"device": "simulated"},
}
CREATED = {"yesterday": "2026-01-01T10:00:00+00:00"}
COMMON = ["--backend", "simulated", "--max-new-tokens", "24"]
PROMPTS = ["--dataset", "quickstart", "--num-prompts", "6"]
FAILING = """
[[faults]]
action = "error"
arm = "dflash"
kind = "out_of_memory"
message = "no memory | <b>left</b>"
"""
DIFFERING = """
[[faults]]
action = "differ"
arm = "dflash"
request_id = "quickstart/0047"
position = 5
"""
# Run -> its arguments, and the scenario that is played.
COMMANDS = {
    "sweep": ([*PROMPTS, "--block-size", "4,8", "--repeats", "3"], DIFFERING),
    "yesterday": ([*PROMPTS, "--arms", "baseline"], ""),
    "today": ([*PROMPTS, "--arms", "dflash", "--block-size", "8"], ""),
    "longer": ([*PROMPTS, "--arms", "dflash", "--block-size", "8", "--max-new-tokens", "32"], ""),
    "failing": ([*PROMPTS, "--block-size", "8"], FAILING),
    "one_prompt": (["--dataset", "quickstart", "--num-prompts", "1", "--block-size", "8"], ""),
    "one_token": ([*PROMPTS, "--block-size", "8", "--max-new-tokens", "1"], ""),
}


def main() -> None:
    shutil.rmtree(RUNS, ignore_errors=True)
    for name, (arguments, scenario) in COMMANDS.items():
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "scenario.toml"
            script.write_text(scenario, encoding="utf-8")
            played = ["--script", script.name] if scenario else []
            command = [sys.executable, "-m", "dflash.benchmark", *COMMON, *arguments, *played]
            command += ["--run", name, "--output-dir", "reports", "--quiet"]
            subprocess.run(command, cwd=folder, check=name != "failing")
            keep(Path(folder) / "reports" / name)


def keep(folder: Path) -> None:
    """Copy the lines of a run, and its `run.json` with a machine and times that are made up."""
    target = RUNS / folder.name
    target.mkdir(parents=True)
    for path in folder.glob("*.jsonl"):
        shutil.copy(path, target)
    info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    created = CREATED.get(folder.name, "2026-01-02T10:00:00+00:00")
    info |= {"created_at": created, "dflash_version": "0.1.0", "environment": ENVIRONMENT}
    for segment in info["segments"]:
        segment["started_at"] = created
    (target / "run.json").write_text(json.dumps(info, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
