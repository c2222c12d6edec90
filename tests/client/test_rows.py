from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainvitals import wire
from trainvitals.rows import Cells, Rows, join, split, to_frame


def rows(steps: npt.ArrayLike, layers: int = 0, **columns: npt.NDArray[np.generic]) -> Rows:
    numbers = np.asarray(steps, dtype=np.int64)
    plain = columns or {"loss": numbers * 0.5}
    layered = {"layer_grad_norm": (np.outer(numbers, np.ones(layers)), None)} if layers else {}
    return Rows(
        numbers,
        numbers.astype(np.float64),
        {name: (cells, None) for name, cells in plain.items()},
        layered,
        1,
    )


def test_a_frame_keeps_dtypes_and_tells_missing_from_nan() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 7.0])
    present = np.array([True, True, True, False])
    counts = np.array([1, 2, 2**40, 4])
    norms = np.arange(4, dtype=np.float32)
    columns: dict[str, Cells] = {"loss": (values, present), "grad_norm": (norms, None), "n": (counts, None)}
    frame = to_frame(Rows(np.arange(4), np.zeros(4), columns), 1)
    assert {name: column.dtype for name, column in frame.columns.items()} == {
        "loss": "f8",
        "grad_norm": "f4",
        "n": "i8",
    }
    loss, is_there = frame.columns["loss"].unpack(4)
    np.testing.assert_array_equal(is_there, present)
    np.testing.assert_array_equal(loss[:3], values[:3])
    np.testing.assert_array_equal(frame.columns["n"].unpack(4)[0], counts)


def test_steps_that_are_not_consecutive_are_spelled_out() -> None:
    assert to_frame(rows([3, 4, 5]), 1).steps is None
    np.testing.assert_array_equal(to_frame(rows([3, 5, 9]), 1).step_numbers(), [3, 5, 9])


def test_a_layer_column_is_row_major() -> None:
    matrix = np.arange(6.0).reshape(2, 3)
    frame = to_frame(Rows(np.arange(2), np.zeros(2), {}, {"g": (matrix, None)}, 4), 1)
    np.testing.assert_array_equal(frame.layer_columns["g"].unpack(6)[0], matrix.ravel())
    assert frame.layout_id == 4


@given(st.lists(st.lists(st.integers(0, 50), min_size=0, max_size=6), max_size=8), st.integers(50, 400))
def test_join_and_split_change_no_row(chunks: list[list[int]], frame_bytes: int) -> None:
    parts = [rows(sorted(chunk)) for chunk in chunks]
    pieces = [piece for joined in join(parts) for piece in split(joined, frame_bytes)]
    sent = [int(step) for piece in pieces for step in piece.steps]
    assert sent == [step for chunk in chunks for step in sorted(chunk)]
    for piece in pieces:
        wire.decode_client(wire.encode(to_frame(piece, 1)))
        np.testing.assert_array_equal(piece.columns["loss"][0], piece.steps * 0.5)


def test_rows_of_another_shape_are_not_joined() -> None:
    assert len(list(join([rows([1]), rows([2]), rows([3], layers=2), rows([4], acc=np.ones(1))]))) == 3


def test_pieces_of_a_large_model_stay_below_the_limit_of_a_frame() -> None:
    wide = rows(np.arange(300), layers=4096)
    assert all(len(wire.encode(to_frame(piece, 1))) < wire.MAX_FRAME_BYTES for piece in split(wide))


def test_masks_join_with_columns_that_are_complete() -> None:
    masked = Rows(np.array([1]), np.zeros(1), {"loss": (np.ones(1), np.array([False]))})
    (joined,) = join([rows([0], loss=np.ones(1)), Rows(masked.steps, masked.times, masked.columns, {}, 1)])
    present = joined.columns["loss"][1]
    assert present is not None
    assert present.tolist() == [True, False]


def test_a_column_that_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'loss' of shape \\(3,\\) for 2 steps"):
        list(join([rows([1, 2], loss=np.ones(3))]))


def test_only_present_cells_count_as_non_finite() -> None:
    column = (np.array([1.0, np.nan]), np.array([True, False]))
    assert Rows(np.arange(2), np.zeros(2), {"loss": column}).is_finite
    assert not rows([1], loss=np.array([np.inf])).is_finite
