"""Share: what of an autopsy leaves the machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from trainvitals.autopsy.report import Report
from trainvitals.probe.types import Value
from trainvitals.response import Response

MAX_SHARED_SAMPLES = 4
MAX_SHARED_NUMBERS = 1024  # of each part of the batch
MAX_SHARED_PARTS = 16


def event_data(report: Report, data: Value, response: Response) -> dict[str, Any]:
    """Return the data of the `autopsy` event.

    Ranges, counts, indices and source lines; with `redact` no ranges and no lines either; with `share_batch`
    the samples that made the step fail, too.
    """
    shown = report.redacted() if response.redact else report
    found = shown.to_data()
    if response.share_batch:
        found["batch"] = _samples(data, report.samples)
    return found


def _samples(data: Value, samples: tuple[int, ...]) -> list[dict[str, Any]]:
    rows = list(samples[:MAX_SHARED_SAMPLES]) or [0]
    parts = []
    leaves = [one for one in tf.nest.flatten(data, expand_composites=True) if one is not None]
    for leaf in leaves[:MAX_SHARED_PARTS]:
        values = np.asarray(leaf)
        is_batch = values.ndim > 0 and max(rows) < len(values)
        chosen = values[rows] if is_batch else values
        parts.append(
            {
                "samples": rows if is_batch else [],
                "dtype": str(values.dtype),
                "shape": list(values.shape),
                "values": _plain(chosen.ravel()[:MAX_SHARED_NUMBERS]),
            }
        )
    return parts


def _plain(values: np.ndarray[Any, Any]) -> list[Any]:
    if values.dtype.kind in "OSU":
        return [str(value)[:100] for value in values[:64]]
    if values.dtype.kind not in "biuf":  # bfloat16 and its like
        values = np.real(values).astype(np.float64)
    return values.tolist()  # type: ignore[no-any-return]
