"""Result: one measured figure with how it was measured; and the statistics that all parts share."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

BOOTSTRAPS = 4000
CONFIDENCE = (2.5, 97.5)
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured, the figure in words, and the method."""

    what: str
    figure: str
    method: str


def median_interval(values: npt.ArrayLike) -> tuple[float, float, float]:
    """Return the median and its 95 % bootstrap interval."""
    cells = np.asarray(values, dtype=float)
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(cells, (BOOTSTRAPS, len(cells))), axis=1)
    low, high = np.percentile(medians, CONFIDENCE)
    return float(np.median(cells)), float(low), float(high)


def quantiles(values: npt.ArrayLike, unit: float = 1e3) -> str:
    """Return p50, p99 and the largest of times in seconds, told in milliseconds."""
    p50, p99, worst = np.percentile(np.asarray(values, dtype=float) * unit, (50, 99, 100))
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, worst {worst:.1f} ms"


def machine() -> str:
    """Return what it was measured on."""
    names = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    chip = names[0] if names else platform.machine()
    return f"{os.cpu_count()} cores ({chip}), Python {platform.python_version()}"


def status_mib(pid: int, field: str) -> float:
    """Return a field of a process's memory, such as VmRSS or VmHWM, in MiB."""
    (kib,) = [line.split()[1] for line in _lines(f"/proc/{pid}/status") if line.startswith(field + ":")]
    return int(kib) / 1024


def child_environ(**more: str) -> dict[str, str]:
    """Return the environment of a measured process: this one's, and where it finds this package."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **more}


def _lines(path: str) -> Iterable[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
