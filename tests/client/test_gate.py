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
    assert gate.admit(rows, 1) is rows


def test_after_a_refusal_only_what_was_taken_and_the_standard_series_pass() -> None:
    gate = Gate(lambda: 1)
    gate.admit(row("loss", "taken"), 1)
    kept = gate.salvage(to_frame(gate.admit(row("loss", "taken", "refused"), 2), 2))
    assert kept is not None
    assert set(kept.columns) == {"loss", "taken"}
    assert set(gate.admit(row("grad_norm", "taken", "refused", "later"), 3).columns) == {"grad_norm", "taken"}


def test_a_frame_with_nothing_too_much_or_nothing_left_cannot_be_salvaged() -> None:
    gate = Gate(lambda: 0)
    assert gate.salvage(to_frame(row("loss"), 1)) is None
    assert gate.salvage(to_frame(row("other"), 1)) is None


def test_series_are_bounded_without_a_server_too() -> None:
    gate = Gate(lambda: 0)
    names = {name for step in range(5000) for name in gate.admit(row("loss", f"m{step}"), step).columns}
    assert "loss" in names
    assert len(names) <= MAX_SERIES + 2


def test_a_frame_never_has_more_columns_than_the_wire_takes() -> None:
    rows = Gate(lambda: 0).admit(row(*(f"m{index}" for index in range(300))), 1)
    wire.decode_client(wire.encode(to_frame(rows, 1)))
