"""Joined: batches of one stream, one after the other, as one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trainvitals_server.batch import Batch, Series


def join(batches: Sequence[Batch]) -> Batch:
    """Return the rows of `batches`, which are of one layout, as one; what a part lacks is missing there."""
    if len(batches) == 1:
        return batches[0]
    columns = [(batch.columns, len(batch)) for batch in batches]
    layer_columns = [(batch.layer_columns, len(batch)) for batch in batches]
    return Batch(
        np.concatenate([batch.steps for batch in batches]),
        _join_columns(columns, ()),
        _join_columns(layer_columns, (len(batches[0].layers),)),
        batches[0].layers,
    )


def _join_columns(
    parts: Sequence[tuple[Mapping[str, Series], int]], shape: tuple[int, ...]
) -> dict[str, Series]:
    """Return each column over all parts; where a part lacks it, its rows are missing."""
    names = dict.fromkeys(name for columns, _ in parts for name in columns)
    joined = {}
    for name in names:
        cells = [columns.get(name) or _missing((rows, *shape)) for columns, rows in parts]
        values = np.concatenate([series.values for series in cells])
        joined[name] = Series(values, np.concatenate([series.present for series in cells]))
    return joined


def _missing(shape: tuple[int, ...]) -> Series:
    return Series(np.zeros(shape), np.zeros(shape, dtype=bool))
