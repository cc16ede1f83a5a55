"""What selecting on a GPU takes, against the time that the memory traffic of one pass needs::

    python benchmarks/gpu_selection.py --elements 1,25,100

One pass reads gradient and residual and writes the residual: 12 bytes an element in fp32. Its time at the
bandwidth of a large copy on the same device is the least there can be. Printed, per rule and size, medians in
ms: of a usual step (adding up, selecting, taking what is sent out of the residual), of that step and the
payload in the host's memory, and of the step by PyTorch's own operations, which rules fall back on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gradsieve
from gradsieve.codec import encode
from gradsieve.kernels.gpu import GpuSum
from gradsieve.kernels.reference import ReferenceSum

_MILLION, _MILLI = 1_000_000, 1e3
_SETTLING = 150  # steps
RULES = {
    "laplace": gradsieve.LaplaceSelector((0.8, 1.25)),
    "topk": gradsieve.TopKSelector(),
    "group_topk 1000": gradsieve.GroupTopKSelector(1000),
}


def median_seconds(work: Callable[[], Any], repeats: int, before: Callable[[], Any] = lambda: None) -> float:
    """Return what it takes, device included, each time after ``before``; the first two are not counted."""
    taken = []
    for _ in range(repeats + 2):
        before()
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[-repeats:])


def copy_bandwidth(repeats: int) -> float:
    """Return bytes a second, read and written, of a copy within the device."""
    source = torch.randn(256 * _MILLION // 2, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_seconds(lambda: target.copy_(source), repeats)


class Training:
    """Steps of one rule over one tensor.

    Every gradient is drawn anew, so that the residual grows as slowly as in the middle of a training, and the
    last step's threshold mostly still holds.
    """

    def __init__(self, kernel: Any, rule: Any, elements: int, density: float, dtype: torch.dtype) -> None:
        self._kernel, self._rule, self._density = kernel, rule, density
        self._generator = torch.Generator("cuda").manual_seed(0)
        self._drawn = torch.empty(elements, device="cuda")
        self._gradient = torch.empty(elements, device="cuda", dtype=dtype)
        self._residuals = list(torch.zeros(2, elements, device="cuda"))
        self._threshold: float | None = None
        self.selection: Any = None

    def draw(self) -> None:
        """Draw the next gradient."""
        self._gradient.copy_(self._drawn.normal_(0, 1e-3, generator=self._generator))

    def select(self) -> None:
        """Add up, select, and take what is sent out of the residual."""
        self._residuals.reverse()
        source = self._kernel.of(self._gradient, 1.0, *self._residuals)
        self.selection = self._rule.select(source, self._density, self._threshold)
        source.subtract_sent(self.selection)
        self._threshold = self.selection.threshold

    def send(self) -> None:
        """Take a step, and make its payload."""
        self.select()
        encode(self.selection, self._gradient.numel(), "float32")

    def seconds(self, work: Callable[[], None], repeats: int) -> float:
        """Return the median of what a step takes."""
        return median_seconds(work, repeats, self.draw)


def measured(name: str, elements: int, density: float, repeats: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return what a rule takes."""
    torch.cuda.empty_cache()
    rule = RULES[name]
    gpu, reference = (Training(kernel, rule, elements, density, dtype) for kernel in (GpuSum, ReferenceSum))
    for training, _ in itertools.product((gpu, reference), range(_SETTLING)):
        training.draw()
        training.select()
    return {
        "rule": name,
        "elements": elements,
        "dtype": str(dtype).removeprefix("torch."),
        "select_seconds": gpu.seconds(gpu.select, repeats),
        "payload_seconds": gpu.seconds(gpu.send, repeats),
        "reference_select_seconds": reference.seconds(reference.select, repeats),
        "kept": gpu.selection.indices.numel(),
    }


def main() -> None:
    """Measure the sizes of the command line."""
    parser = argparse.ArgumentParser(description="What selecting on a GPU takes.")
    parser.add_argument("--elements", default="1,25,100", help="in millions")
    parser.add_argument("--density", default=0.01, type=float)
    parser.add_argument("--repeats", default=25, type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bandwidth = copy_bandwidth(options.repeats)
    print(f"{torch.cuda.get_device_name()}: a copy moves {bandwidth / 1e9:.0f} GB/s, read and written")
    print(
        f"{'rule':18}{'elements':>12}{'type':>10}{'kept':>10}{'pass':>8}{'step':>8}{'payload':>9}{'torch':>8}"
    )
    sizes = [int(float(size) * _MILLION) for size in options.elements.split(",")]
    rows = []
    for elements, dtype, name in itertools.product(sizes, (torch.float32, torch.bfloat16), RULES):
        row = measured(name, elements, options.density, options.repeats, dtype)
        row["pass_seconds"] = (2 * torch.float32.itemsize + dtype.itemsize) * elements / bandwidth
        rows.append(row)
        print(
            f"{name:18}{elements:12,}{row['dtype']:>10}{row['kept']:10,}"
            f"{row['pass_seconds'] * _MILLI:8.3f}{row['select_seconds'] * _MILLI:8.3f}"
            f"{row['payload_seconds'] * _MILLI:9.3f}{row['reference_select_seconds'] * _MILLI:8.3f}",
            flush=True,
        )
    if options.json:
        device = torch.cuda.get_device_name()
        report = {"device": device, "copy_bytes_per_second": bandwidth, "rows": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
