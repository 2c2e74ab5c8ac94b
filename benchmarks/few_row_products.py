"""Cost of a linear layer by number of rows, as `F.linear` and with the weight on the left, over one row of `F.linear`.

    python benchmarks/few_row_products.py

The shapes are those of the quickstart target. Ratios below 2 at 8 rows are what makes larger blocks worth it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from dflash.few_rows import FewRowLinear

SHAPES = ((576, 576), (1536, 576), (576, 1536), (49152, 576))  # out features, in features
ROWS = (1, 2, 3, 4, 5, 6, 8, 16)
CACHE_BYTES = 64_000_000  # as many layers of a shape as exceed the caches, as in a real model
REPEATS = 15


def median_s(work: Callable[[], object]) -> float:
    work()
    times_s = []
    for _ in range(REPEATS):
        start_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    print(f"{torch.get_num_threads()} threads; cost over one row of F.linear: F.linear / weight on the left")
    print("out x in      " + "".join(f"{rows:>13} r" for rows in ROWS))
    for num_out, num_in in SHAPES:
        num_layers = max(1, CACHE_BYTES // (4 * num_out * num_in))
        layers = [nn.Linear(num_in, num_out, bias=False) for _ in range(num_layers)]
        cells = []
        one_row_s = 0.0
        for rows in ROWS:
            inputs = torch.randn(rows, num_in)
            plain_s = median_s(lambda: [F.linear(inputs, layer.weight) for layer in layers])  # noqa: B023
            few_s = median_s(lambda: [FewRowLinear.forward(layer, inputs) for layer in layers])  # type: ignore[arg-type]  # noqa: B023
            one_row_s = one_row_s or plain_s
            cells.append(f"{plain_s / one_row_s:6.2f} /{few_s / one_row_s:6.2f} ")
        print(f"{num_out:>5} x {num_in:<5} " + " ".join(cells))


if __name__ == "__main__":
    main()
