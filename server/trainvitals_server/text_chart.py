"""Text chart: a series as a few lines of characters. No spike and no non-finite point is lost in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainvitals.wire import BoolArray, FloatArray, IntArray

BLOCKS = " ▁▂▃▄▅▆▇█"
PLAIN_BLOCKS = " .:=#"
HEIGHT = 4
LOG_SPAN = 50.0  # values that lie further apart are drawn by their order of magnitude
NAN_MARK, INF_MARK = "?", "!"
LABEL_WIDTH = 9


@dataclass(frozen=True, slots=True)
class Curve:
    """What is drawn: values over steps, and steps to mark below them."""

    name: str
    steps: IntArray
    values: FloatArray
    present: BoolArray
    marks: Sequence[int] = ()


def draw(curve: Curve, width: int, *, is_plain: bool = False) -> list[str]:
    """Return the lines of a chart that is `width` characters wide; none if there is nothing to draw.

    Each character shows the largest value of its steps. A NaN among them is `?` at the top, an infinity `!`.
    """
    steps, values = curve.steps[curve.present], curve.values[curve.present]
    if len(values) < 2 or steps[0] == steps[-1]:
        return []
    columns = max(width - LABEL_WIDTH - 2, 8)
    columns = min(columns, len(values))
    place = ((steps - steps[0]) * (columns - 1) // (steps[-1] - steps[0])).astype(int)
    peaks, lacks = _peaks(place, values, columns)
    if not np.isfinite(peaks).any():
        return []
    blocks = PLAIN_BLOCKS if is_plain else BLOCKS
    heights, scale = _heights(peaks)
    low, high = float(np.nanmin(peaks)), float(np.nanmax(peaks))
    labels = [f"{high:.4g}", *[""] * (HEIGHT - 2), f"{low:.4g}"]
    lines = []
    for row, label in enumerate(labels):
        cells = [_cell(height, HEIGHT - 1 - row, blocks) for height in heights]
        if row == 0:
            cells = [lack or cell for lack, cell in zip(lacks, cells, strict=True)]
        lines.append(f"{label:>{LABEL_WIDTH}} |{''.join(cells)}".rstrip())
    lines.append(_foot(curve, steps, columns, scale))
    return lines


def _peaks(place: IntArray, values: FloatArray, columns: int) -> tuple[FloatArray, list[str]]:
    """Return the largest finite value of each column (NaN for none) and the mark of what is not finite."""
    peaks = np.full(columns, -math.inf)
    finite = np.isfinite(values)
    np.maximum.at(peaks, place[finite], values[finite])
    peaks[np.isneginf(peaks)] = math.nan
    lacks = [""] * columns
    for column in place[np.isinf(values)].tolist():
        lacks[column] = INF_MARK
    for column in place[np.isnan(values)].tolist():
        lacks[column] = NAN_MARK
    return peaks, lacks


def _heights(peaks: FloatArray) -> tuple[FloatArray, str]:
    """Return heights from 0 to 1, and what the scale is called if it is not the plain one."""
    low, high = float(np.nanmin(peaks)), float(np.nanmax(peaks))
    is_log = low > 0 and high / low > LOG_SPAN
    scaled = np.log(peaks) if is_log else peaks / max(abs(low), abs(high), 1e-300)
    bottom, top = float(np.nanmin(scaled)), float(np.nanmax(scaled))
    span = top - bottom
    return (scaled - bottom) / span if span > 0 else np.where(np.isnan(scaled), scaled, 0.0), (
        ", log scale" if is_log else ""
    )


def _cell(height: float, row: int, blocks: str) -> str:
    """Return the character of one column in one row, counted from the bottom."""
    if math.isnan(height):
        return " "
    full = len(blocks) - 1
    eighths = max(1, round(height * HEIGHT * full))  # the lowest value is still a value
    return blocks[min(max(eighths - row * full, 0), full)]


def _foot(curve: Curve, steps: IntArray, columns: int, scale: str) -> str:
    span = int(steps[-1] - steps[0])
    cells = [" "] * columns
    for mark in curve.marks:
        if steps[0] <= mark <= steps[-1]:
            cells[(mark - int(steps[0])) * (columns - 1) // span] = "^"
    marked = "".join(cells).rstrip()
    name = f"{curve.name}{scale}, steps {steps[0]} to {steps[-1]}"
    indent = " " * (LABEL_WIDTH + 2)
    return f"{indent}{marked}\n{indent}{name}" if marked else indent + name
