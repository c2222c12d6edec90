"""Messages of the live protocol: what browsers are sent, spelled once for all that asked for the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainvitals_server import codec
from trainvitals_server.batch import Batch, Readable, Series
from trainvitals_server.codec import JsonColumn
from trainvitals_server.joined import join

CELL_BYTES = 9  # of a batch: a number and a flag
STEP_BYTES = 8
TEXT_RATIO = 3  # bytes of a batch, its base64 and the messages made of that, for each byte of numbers


def group_by_layers(parts: Sequence[Readable]) -> list[list[Readable]]:
    """Return the rows of `parts`, in order, in as few groups as there are changes of layout."""
    groups: list[list[Readable]] = []
    for part in parts:
        if groups and groups[-1][0].layers == part.layers:
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def size_of(parts: Sequence[Readable]) -> int:
    """Return about how many bytes a message of these rows of one layout holds once it was sent."""
    columns = {name for part in parts for name in part.columns}
    layer_columns = {name for part in parts for name in part.layer_columns}
    cells = len(columns) + len(layer_columns) * len(parts[0].layers)
    return TEXT_RATIO * sum(map(len, parts)) * (STEP_BYTES + CELL_BYTES * cells)


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
    """New rows of one stream, of one layout. Read, and encoded, when the first browser wants them."""

    cursor: int
    run_id: str
    rank: int
    parts: list[Readable]
    size: int
    _columns: dict[str, JsonColumn] = field(default_factory=dict)
    _texts: dict[frozenset[str], str | None] = field(default_factory=dict)

    def text_for(self, series: frozenset[str], rank: int | None) -> str | None:
        """Return the message for who wants these series (of one rank), or None where it has none of them."""
        if rank not in (None, self.rank):
            return None
        if series not in self._texts:
            self._texts[series] = self._spell(series)
        return self._texts[series]

    def _spell(self, series: frozenset[str]) -> str | None:
        batch = self._read()
        columns = self._encoded(batch.columns, series)
        layer_columns = self._encoded(batch.layer_columns, series)
        if not columns and not layer_columns:
            return None
        message: dict[str, object] = {"t": "rows", "run_id": self.run_id, "rank": self.rank}
        message |= {"cursor": self.cursor, "steps": codec.encode_column(batch.steps), "columns": columns}
        if layer_columns:
            names = [layer.name for layer in batch.layers]
            message |= {"layers": names, "layer_columns": layer_columns}
        return codec.dumps(message).decode()

    def _read(self) -> Batch:
        if len(self.parts) > 1 or not isinstance(self.parts[0], Batch):
            self.parts[:] = [join([part.read() for part in self.parts])]
        return self.parts[0].read()

    def _encoded(self, columns: Mapping[str, Series], wanted: frozenset[str]) -> dict[str, JsonColumn]:
        for name in wanted & columns.keys() - self._columns.keys():
            column = columns[name]
            flat = column.values.reshape(-1), column.present.reshape(-1)
            self._columns[name] = codec.encode_column(*flat)
        return {name: self._columns[name] for name in columns if name in wanted}


Message = Rows | Note
