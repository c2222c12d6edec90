from __future__ import annotations

import numpy as np

from trainvitals import wire
from trainvitals.gate import MAX_SERIES, Gate
from trainvitals.rows import Rows, to_frame


def row(*names: str) -> Rows:
    return Rows(np.arange(1), np.zeros(1), {name: (np.ones(1), None) for name in names})


def test_everything_passes_until_the_server_refuses() -> None:
    gate = Gate(lambda: 0)
    rows = row("loss", "anything")
    assert gate.admit(rows) is rows


def frame(gate: Gate, seq: int, *names: str) -> wire.Steps:
    rows = gate.admit(row(*names))
    gate.note(rows.columns, rows.layer_columns, seq)
    return to_frame(rows, seq)


def test_after_a_refusal_only_what_was_taken_and_the_standard_series_pass() -> None:
    gate = Gate(lambda: 1)
    frame(gate, 1, "loss", "taken")
    kept = gate.salvage(frame(gate, 2, "loss", "taken", "refused"))
    assert kept is not None
    assert set(kept.columns) == {"loss", "taken"}
    assert set(gate.admit(row("grad_norm", "taken", "refused", "later")).columns) == {"grad_norm", "taken"}


def test_a_series_whose_frame_was_taken_without_it_is_not_taken() -> None:
    acked = [1]
    gate = Gate(lambda: acked[0])
    frames = [frame(gate, seq, "loss", "refused") for seq in (2, 3)]
    assert gate.salvage(frames[0]) is not None
    acked[0] = 2
    kept = gate.salvage(frames[1])
    assert kept is not None
    assert set(kept.columns) == {"loss"}


def test_a_long_name_is_known_by_what_the_server_knows() -> None:
    gate = Gate(lambda: 1)
    frame(gate, 1, "x" * 500)
    assert gate.salvage(frame(gate, 2, "loss", "refused")) is not None
    assert list(gate.admit(row("x" * 500, "y" * 500)).columns) == ["x" * 500]


def test_a_frame_with_nothing_too_much_or_nothing_left_cannot_be_salvaged() -> None:
    gate = Gate(lambda: 0)
    assert gate.salvage(to_frame(row("loss"), 1)) is None
    assert gate.salvage(to_frame(row("other"), 1)) is None


def test_series_are_bounded_without_a_server_too() -> None:
    gate = Gate(lambda: 0)
    names = {name for step in range(5000) for name in gate.admit(row("loss", f"m{step}")).columns}
    assert "loss" in names
    assert len(names) <= MAX_SERIES + 2


def test_a_frame_never_has_more_columns_than_the_wire_takes() -> None:
    rows = Gate(lambda: 0).admit(row(*(f"m{index}" for index in range(300))))
    wire.decode_client(wire.encode(to_frame(rows, 1)))
