"""What fetching and verifying data sets costs, out of a folder of original files, into a temporary cache.

Every data set of the catalogue whose file is in the folder is fetched by one process and verified by another. Wall
clock, processor time and peak memory are of the whole process, the start of Python included; wanted are under 3 s and
200 MB for both together. Nothing is read from the network.

    python benchmarks/dataset_store.py FOLDER [--repeats 3]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

WANTED_S = 3.0
WANTED_BYTES = 200_000_000
_FETCH = """
import sys
from pathlib import Path
from dflash.datasets.catalogue import CATALOGUE
from dflash.datasets.sources import find_published
from dflash.dataset_store import fetch_dataset

specs = [spec for spec in CATALOGUE.values() if find_published(spec)[0] is not None]
for spec in specs:
    fetch_dataset(spec, Path(sys.argv[1]), announce=lambda line: None)
"""
_VERIFY = """
import sys
from pathlib import Path
from dflash.datasets.catalogue import CATALOGUE
from dflash.dataset_store import verify_stored

cache = Path(sys.argv[1])
stored = [verify_stored(spec, cache) for spec in CATALOGUE.values() if (cache / spec.name).exists()]
print(len(stored), sum(dataset.num_prompts for dataset in stored), sum(dataset.num_bytes for dataset in stored))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one process and what it started."""

    wall_s: float
    cpu_s: float
    peak_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.wall_s:.2f} s, {self.cpu_s:.2f} s of a processor, {self.peak_bytes / 1e6:.0f} MB at most"
        )


def main() -> int:
    options = parse_options()
    measured = [measure(options.folder) for _ in range(options.repeats)]
    total_s = min(fetch.wall_s + verify.wall_s for fetch, verify in measured)
    peak_bytes = max(cost.peak_bytes for costs in measured for cost in costs)
    is_met = total_s < WANTED_S and peak_bytes < WANTED_BYTES
    print(
        f"both: {total_s:.2f} s at best, {peak_bytes / 1e6:.0f} MB at worst: {'met' if is_met else 'not met'}"
    )
    return 0 if is_met else 1


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="original files, as DFLASH_DATASETS_DIR names them")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def measure(folder: Path) -> tuple[Cost, Cost]:
    with tempfile.TemporaryDirectory() as cache:
        fetch, _ = cost_of(_FETCH, folder, cache)
        verify, said = cost_of(_VERIFY, folder, cache)
    num_sets, num_prompts, num_bytes = map(int, said.split())
    print(f"{num_sets} data sets, {num_prompts} prompts, {num_bytes / 1e6:.1f} MB of rows")
    print(f"  fetch:  {fetch}\n  verify: {verify}")
    return fetch, verify


def cost_of(code: str, folder: Path, cache: str) -> tuple[Cost, str]:
    """Run in a process of its own, of which the system tells the resources that it took."""
    start_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", code, cache],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DFLASH_DATASETS_DIR": str(folder.absolute())},
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"the process ended with {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024  # of the peak
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit), said


if __name__ == "__main__":
    sys.exit(main())
