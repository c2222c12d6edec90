"""Which rows tell of a failed step."""

from __future__ import annotations

import numpy as np
import pytest

from trainvitals.autopsy.watch import MANY_SKIPS, Watch, last_well
from trainvitals.probe.decode import Decoded
from trainvitals.rows import Cells


def piece(**columns: list[float]) -> Decoded:
    cells: dict[str, Cells] = {name: (np.array(values), None) for name, values in columns.items()}
    return Decoded(np.arange(len(next(iter(columns.values())))), cells, {})


@pytest.mark.parametrize(
    ("rows", "has_failed", "is_well"),
    [
        (piece(loss=[1, 2], grad_nonfinite=[0, 0]), False, True),
        (piece(loss=[1, np.nan, 2]), True, True),
        (piece(loss=[1, -np.inf]), True, False),
        (piece(loss=[1, 1], grad_nonfinite=[0, 3]), True, False),
        (piece(loss=[1, 1], grad_nonfinite=[3, 0], skipped=[1, 0]), False, True),
        (piece(loss=[1, 1], grad_nonfinite=[0, 3], skipped=[0, 1]), False, False),
        (piece(loss=[1, np.inf], grad_nonfinite=[0, 3], skipped=[0, 1]), True, False),
    ],
)
def test_a_failure_is_a_bad_loss_or_a_bad_gradient_that_no_scaler_skips(
    rows: Decoded, has_failed: bool, is_well: bool
) -> None:
    watch = Watch()
    assert (watch.feed(rows), watch.is_well) == (has_failed, is_well)


def test_a_missing_loss_is_no_failure() -> None:
    cells = (np.array([np.nan, 1.0]), np.array([False, True]))
    assert not Watch().feed(Decoded(np.arange(2), {"loss": cells}, {}))


def test_skips_are_counted_over_pieces_and_forgotten_at_an_update() -> None:
    watch = Watch()
    watch.feed(piece(skipped=[0, 1, 1]))
    watch.feed(piece(skipped=[1] * (MANY_SKIPS - 2)))
    assert (watch.skips, watch.has_many_skips) == (MANY_SKIPS, True)
    watch.feed(piece(skipped=[1, 0, 1]))
    assert (watch.skips, watch.has_many_skips) == (1, False)


def test_the_last_well_step_is_the_last_finite_one_before_a_step() -> None:
    rows = [piece(loss=[1, 2, np.nan, 3, np.nan])]
    assert [last_well(rows, step) for step in (0, 2, 4, 9)] == [None, 1, 3, 3]
