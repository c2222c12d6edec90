"""Answer: series as the JSON of the REST interface. Values in, builtins out."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainvitals_server.codec import JsonColumn, encode_column
from trainvitals_server.series import Buckets, Points, Values
from trainvitals_server.store.reading import SeriesAnswer, SeriesData

Json = dict[str, Any]


def tell_answer(answer: SeriesAnswer, cursor: int) -> Json:
    """Return a whole answer; what the live socket sends after `cursor` may not be in it."""
    return {
        "run_id": answer.run_id,
        "rank": answer.rank,
        "from": answer.start if answer.start < answer.stop else None,
        "to": answer.stop - 1 if answer.start < answer.stop else None,
        "raw": answer.is_raw,
        "cursor": cursor,
        "series": {name: tell_series(data) for name, data in answer.series.items()},
        "gaps": answer.gaps,
        "sessions": [branch.told() for branch in answer.branches],
    }


def tell_series(data: SeriesData) -> Json:
    """Return one series: rows, buckets, or a table of layers."""
    if data.layers:
        return _tell_layers(data)
    return _tell_points(data.rows) if isinstance(data.rows, Points) else _tell_buckets(data.rows)


def _tell_points(rows: Points) -> Json:
    return {"step": encode_column(rows.steps), "value": encode_column(rows.values, rows.present)}


def _tell_buckets(rows: Buckets) -> Json:
    valued, finite = rows.has_value, rows.has_finite
    return {
        "step": encode_column(rows.step),
        "last_step": encode_column(rows.last_step),
        "first": encode_column(rows.first, valued),
        "min": encode_column(rows.min, finite),
        "argmin": encode_column(rows.argmin, finite),
        "max": encode_column(rows.max, finite),
        "argmax": encode_column(rows.argmax, finite),
        "last": encode_column(rows.last, valued),
        "count": encode_column(rows.count),
        "n_nan": encode_column(rows.n_nan),
        "n_posinf": encode_column(rows.n_posinf),
        "n_neginf": encode_column(rows.n_neginf),
        "n_missing": encode_column(rows.n_missing),
    }


def _tell_layers(data: SeriesData) -> Json:
    """Return a table `[rows, layers]`, row by row; a bucket's cell is its worst value."""
    rows = data.rows
    if isinstance(rows, Points):
        step, last_step, values, present = rows.steps, rows.steps, rows.values, rows.present
    else:
        step, last_step, values, present = rows.step, rows.last_step, _worst(rows), rows.has_value
    return {
        "layers": list(data.layers),
        "step": encode_column(step),
        "last_step": encode_column(last_step),
        "value": _flat(values, present),
    }


def _worst(rows: Buckets) -> Values:
    """Return NaN where a bucket has one, else the infinity it has, else its largest finite value."""
    worst = np.where(rows.n_neginf > 0, -np.inf, rows.max)
    worst = np.where(rows.n_posinf > 0, np.inf, worst)
    return np.where(rows.n_nan > 0, np.nan, worst)


def _flat(values: Values, present: Values) -> JsonColumn:
    return encode_column(values.reshape(-1), present.reshape(-1))
