"""Messages of the live protocol: what browsers are sent, spelled once for all that asked for the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trainvitals_server import codec
from trainvitals_server.batch import Batch, Series
from trainvitals_server.codec import JsonColumn

TEXT_RATIO = 3  # bytes of a batch, its base64 and the messages made of that, for each byte of numbers


def join_batches(batches: Sequence[Batch]) -> list[Batch]:
    """Return the rows of `batches` in as few batches as there are changes of layout."""
    joined: list[list[Batch]] = []
    for batch in batches:
        if joined and joined[-1][0].layers == batch.layers:
            joined[-1].append(batch)
        else:
            joined.append([batch])
    return [group[0] if len(group) == 1 else _join(group) for group in joined]


def _join(batches: Sequence[Batch]) -> Batch:
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


@dataclass(frozen=True, slots=True)
class Note:
    """A message that reads the same for everyone: an incident, or how a run is."""

    cursor: int
    run_id: str
    text: str

    @property
    def size(self) -> int:
        """About how many bytes it holds."""
        return len(self.text)

    def text_for(self, series: frozenset[str], rank: int | None) -> str | None:
        """Return the text of the message."""
        return self.text


@dataclass(frozen=True, slots=True)
class Rows:
    """New rows of one stream. A column is encoded when the first browser wants it."""

    cursor: int
    run_id: str
    rank: int
    batch: Batch
    _columns: dict[str, JsonColumn] = field(default_factory=dict)
    _texts: dict[frozenset[str], str | None] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """About how many bytes it holds."""
        series = [*self.batch.columns.values(), *self.batch.layer_columns.values()]
        cells = self.batch.steps.nbytes + sum(one.values.nbytes + one.present.nbytes for one in series)
        return TEXT_RATIO * cells

    def text_for(self, series: frozenset[str], rank: int | None) -> str | None:
        """Return the message for who wants these series (of one rank), or None where it has none of them."""
        if rank not in (None, self.rank):
            return None
        if series not in self._texts:
            self._texts[series] = self._spell(series)
        return self._texts[series]

    def _spell(self, series: frozenset[str]) -> str | None:
        columns = self._encoded(self.batch.columns, series)
        layer_columns = self._encoded(self.batch.layer_columns, series)
        if not columns and not layer_columns:
            return None
        message: dict[str, object] = {"t": "rows", "run_id": self.run_id, "rank": self.rank}
        message |= {"cursor": self.cursor, "steps": codec.encode_column(self.batch.steps), "columns": columns}
        if layer_columns:
            names = [layer.name for layer in self.batch.layers]
            message |= {"layers": names, "layer_columns": layer_columns}
        return codec.dumps(message).decode()

    def _encoded(self, columns: Mapping[str, Series], wanted: frozenset[str]) -> dict[str, JsonColumn]:
        for name in wanted & columns.keys() - self._columns.keys():
            column = columns[name]
            flat = column.values.reshape(-1), column.present.reshape(-1)
            self._columns[name] = codec.encode_column(*flat)
        return {name: self._columns[name] for name in columns if name in wanted}


Message = Rows | Note
