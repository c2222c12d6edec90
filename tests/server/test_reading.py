"""What a chart gets, against a model in plain Python, over random frames, sessions and compactions."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from sqlite3 import Connection
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recorded import Cell, Recorder, main_line, open_database
from trainvitals_server.series import NEVER, Buckets, Points
from trainvitals_server.store.database import Database
from trainvitals_server.store.reading import (
    MAX_CELLS,
    SeriesAnswer,
    SeriesData,
    read_rows,
    read_series,
    snapshot,
)

CELLS = st.sampled_from([0.0, 1.5, -2.0, 1e39, -1e300, math.nan, math.inf, -math.inf, None])


@pytest.fixture
def database() -> Iterator[Database]:
    with open_database() as opened:
        yield opened


def read(
    database: Database,
    names: list[str],
    start: int = 0,
    stop: int = NEVER,
    pixels: int = 1000,
    rank: int = 0,
    session_id: str | None = None,
) -> SeriesAnswer:
    return database.read(lambda c: read_series(c, "run-1", names, start, stop, pixels, rank, session_id))


def cells(data: SeriesData) -> dict[int, Cell]:
    """Return raw rows in the form of the model."""
    assert isinstance(data.rows, Points)
    rows = data.rows
    return {
        int(step): float(value) if flag else None
        for step, value, flag in zip(rows.steps, rows.values, rows.present, strict=True)
    }


def spelled(rows: dict[int, Cell]) -> dict[int, str]:
    return {step: repr(cell) for step, cell in rows.items()}


def assert_true_buckets(buckets: Buckets, rows: dict[int, Cell]) -> None:
    """Assert that buckets tell the truth about exactly these rows, none left out and none twice."""
    assert int(buckets.count.sum()) == len(rows)
    steps = np.array(sorted(rows))
    for index in range(len(buckets)):
        low, high = int(buckets.step[index]), int(buckets.last_step[index])
        inside = [rows[int(step)] for step in steps[(steps >= low) & (steps <= high)]]
        values = [cell for cell in inside if cell is not None]
        finite = [cell for cell in values if math.isfinite(cell)]
        told = [buckets.count, buckets.n_missing, buckets.n_nan, buckets.n_posinf, buckets.n_neginf]
        assert [int(column[index]) for column in told] == [
            len(inside),
            inside.count(None),
            sum(math.isnan(cell) for cell in values),
            values.count(math.inf),
            values.count(-math.inf),
        ]
        if finite:
            assert (buckets.min[index], buckets.max[index]) == (min(finite), max(finite))
            assert rows[int(buckets.argmin[index])] == min(finite)
            assert rows[int(buckets.argmax[index])] == max(finite)
        if values:
            assert repr(float(buckets.first[index])) == repr(values[0])
            assert repr(float(buckets.last[index])) == repr(values[-1])


SESSIONS = st.lists(
    st.tuples(
        st.integers(0, 9000),  # where it begins
        st.lists(st.tuples(st.integers(1, 400), st.integers(1, 40)), min_size=1, max_size=6),  # rows, stride
        st.booleans(),  # says where it resumed
        st.lists(st.integers(0, 12), max_size=3),  # compactions, up to which frame
    ),
    min_size=1,
    max_size=3,
)


def record(database: Database, plan: list[Any], pool: list[Cell]) -> list[Recorder]:
    recorders = []
    for ordinal, (begin, frames, says, compactions) in enumerate(plan):
        recorder = Recorder(
            database, session_id=f"s{ordinal}", ordinal=ordinal, resume_step=begin if says else None
        )
        step = begin
        for count, stride in frames:
            steps = [step + stride * row for row in range(count)]
            recorder.steps(steps, {"loss": [pool[(7 * step) % len(pool)] for step in steps]})
            step = steps[-1] + 1
        for up_to_seq in compactions:
            recorder.compact(up_to_seq)
        recorders.append(recorder)
    return recorders


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(
    plan=SESSIONS,
    pool=st.lists(CELLS, min_size=1, max_size=31),
    window=st.tuples(st.integers(0, 12_000), st.integers(1, 20_000)),
    pixels=st.integers(2, 60),
)
def test_a_read_equals_the_model_whatever_was_compacted_and_resumed(
    plan: list[Any], pool: list[Cell], window: tuple[int, int], pixels: int
) -> None:
    start, stop = window[0], window[0] + window[1]
    with open_database() as database:
        recorders = record(database, plan, pool)
        expected = {step: cell for step, cell in main_line(recorders, "loss").items() if start <= step < stop}
        raw = database.read(lambda c: read_rows(c, "run-1", ["loss"], start, stop))
        assert spelled(cells(raw["loss"])) == spelled(expected)
        answer = read(database, ["loss"], start, stop, pixels)
        if not expected:
            assert len(answer.series["loss"].rows if answer.series else ()) == 0
        elif answer.is_raw:
            assert spelled(cells(answer.series["loss"])) == spelled(expected)
            assert len(expected) <= 2 * pixels
        else:
            buckets = answer.series["loss"].rows
            assert isinstance(buckets, Buckets)
            assert len(buckets) <= pixels
            assert_true_buckets(buckets, expected)


def test_the_later_session_wins_and_the_older_branch_is_a_ghost(database: Database) -> None:
    old = Recorder(database, session_id="old", ordinal=0)
    old.steps(range(100), {"loss": [1.0] * 100})
    new = Recorder(database, session_id="new", ordinal=1, resume_step=60)
    new.steps(range(60, 80), {"loss": [2.0] * 20})
    answer = read(database, ["loss"])
    assert cells(answer.series["loss"]) == dict.fromkeys(range(60), 1.0) | dict.fromkeys(range(60, 80), 2.0)
    assert [branch.told() for branch in answer.branches] == [
        {
            "session_id": "old", "ordinal": 0, "late": False, "first_step": 0, "last_step": 99,
            "main": {"first_step": 0, "last_step": 59}, "ghost": {"first_step": 60, "last_step": 99},
        },
        {
            "session_id": "new", "ordinal": 1, "late": False, "first_step": 60, "last_step": 79,
            "main": {"first_step": 60, "last_step": 79}, "ghost": None,
        },
    ]  # fmt: skip
    ghost = read(database, ["loss"], session_id="old")
    assert cells(ghost.series["loss"]) == dict.fromkeys(range(100), 1.0)


def test_a_session_that_arrives_late_does_not_win_over_a_later_one(database: Database) -> None:
    new = Recorder(database, session_id="new", ordinal=5)
    new.steps([3, 4], {"loss": [2.0, 2.0]})
    database.write(lambda c: c.execute("UPDATE session SET ordinal = 5")).result(10)
    old = Recorder(database, session_id="old", ordinal=1)
    database.write(lambda c: c.execute("UPDATE session SET ordinal = 1 WHERE session_id = 'old'")).result(10)
    old.steps([1, 2, 3, 4], {"loss": [1.0] * 4})
    assert cells(read(database, ["loss"]).series["loss"]) == {1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0}


def test_what_a_resume_skipped_is_no_part_of_the_main_line(database: Database) -> None:
    Recorder(database, session_id="old", ordinal=0).steps(range(10), {"loss": [1.0] * 10})
    new = Recorder(database, session_id="new", ordinal=1, resume_step=5)
    new.steps([8, 9], {"loss": [2.0, 2.0]})  # what came before was lost on the way
    assert cells(read(database, ["loss"]).series["loss"]) == dict.fromkeys(range(5), 1.0) | {8: 2.0, 9: 2.0}


def test_a_session_that_goes_back_hides_none_of_its_rows(database: Database) -> None:
    recorder = Recorder(database)
    recorder.steps(range(100), {"loss": [1.0] * 100})
    recorder.steps(range(50, 60), {"loss": [2.0] * 10})
    assert cells(read(database, ["loss"]).series["loss"]) == recorder_rows(recorder)


def test_a_snapshot_does_not_see_what_is_compacted_meanwhile(database: Database) -> None:
    recorder = Recorder(database)
    recorder.steps([0], {"loss": [1.0]})

    def count(connection: Connection) -> int:
        query = "SELECT count(*) FROM frame WHERE kind = 'steps'"
        return int(connection.execute(query).fetchone()[0])

    def look_twice(connection: Connection) -> list[int]:
        with snapshot(connection):
            first = count(connection)
            recorder.compact()
            return [first, count(connection)]

    assert database.read(look_twice) == [1, 1]
    assert database.read(count) == 0


def test_missing_stays_a_mask_and_nan_stays_a_value(database: Database) -> None:
    recorder = Recorder(database)
    recorder.steps([0, 1, 2, 3], {"loss": [math.nan, None, math.inf, -math.inf]})
    recorder.compact()
    loss = read(database, ["loss"]).series["loss"]
    assert spelled(cells(loss)) == {0: "nan", 1: "None", 2: "inf", 3: "-inf"}


def test_ranks_are_read_apart(database: Database) -> None:
    Recorder(database, rank=0).steps([0], {"loss": [1.0]})
    Recorder(database, rank=3, session_id="s3").steps([0], {"loss": [2.0]})
    assert cells(read(database, ["loss"], rank=3).series["loss"]) == {0: 2.0}


def test_layers_of_two_layouts_are_read_as_one_table(database: Database) -> None:
    recorder = Recorder(database)
    recorder.layout(1, ["a", "b"])
    recorder.steps([0, 1], {}, {"layer_grad_norm": [1.0, math.nan, 2.0, None]}, layout_id=1)
    recorder.layout(2, ["b", "c"])
    recorder.steps([2], {}, {"layer_grad_norm": [3.0, math.inf]}, layout_id=2)
    recorder.compact(up_to_seq=2)
    data = read(database, ["layer_grad_norm"]).series["layer_grad_norm"]
    assert isinstance(data.rows, Points)
    assert data.layers == ("a", "b", "c")
    shown = np.where(data.rows.present, data.rows.values, -1.0)
    expected = np.array([[1, math.nan, -1], [2, -1, -1], [-1, 3, math.inf]])
    assert np.array_equal(shown, expected, equal_nan=True)


def test_a_table_of_very_many_layers_stays_small(database: Database) -> None:
    recorder = Recorder(database)
    recorder.layout(1, [str(number) for number in range(4000)])
    for begin in range(0, 120, 30):
        cells = [float(cell) for cell in range(30 * 4000)]
        recorder.steps(range(begin, begin + 30), {}, {"layer_grad_norm": cells}, layout_id=1, dtype="f4")
    rows = read(database, ["layer_grad_norm"]).series["layer_grad_norm"].rows
    assert isinstance(rows, Buckets)
    assert int(rows.count.sum()) == 120
    assert rows.max.size <= MAX_CELLS


@pytest.mark.parametrize("compacts", [False, True])
def test_a_long_layer_series_is_bucketed_layer_by_layer(database: Database, compacts: bool) -> None:
    generator = np.random.default_rng(7)
    values = generator.normal(size=(6000, 3))
    values[[17, 4100, 5999], [0, 1, 2]] = [math.nan, math.inf, 1e30]
    recorder = Recorder(database)
    recorder.layout(1, ["a", "b", "c"])
    for begin in range(0, 6000, 1000):
        rows = values[begin : begin + 1000].reshape(-1).tolist()
        recorder.steps(range(begin, begin + 1000), {}, {"layer_grad_norm": rows}, layout_id=1)
        if compacts:
            recorder.compact(recorder.seq - 1)
    buckets = read(database, ["layer_grad_norm"], pixels=50).series["layer_grad_norm"].rows
    assert isinstance(buckets, Buckets)
    assert len(buckets) <= 50
    assert buckets.n_nan.sum(axis=0).tolist() == [1, 0, 0]
    assert buckets.n_posinf.sum(axis=0).tolist() == [0, 1, 0]
    assert buckets.max[:, 2].max() == 1e30
    for layer, column in enumerate(values.T):
        assert buckets.min[:, layer].min() == column[np.isfinite(column)].min()


def test_a_sparse_series_is_given_raw(database: Database) -> None:
    recorder = Recorder(database)
    recorder.steps(range(0, 10_000_000, 1_000_000), {"val_loss": [float(step) for step in range(10)]})
    recorder.compact()
    answer = read(database, ["val_loss"], pixels=100)
    assert answer.is_raw
    assert list(cells(answer.series["val_loss"])) == list(range(0, 10_000_000, 1_000_000))


@pytest.mark.parametrize("again", [4096, 10])
def test_a_repeated_step_of_one_session_counts_once_and_the_later_row_stays(
    database: Database, again: int
) -> None:
    recorder = Recorder(database)
    recorder.steps(range(4096), {"loss": [1.0] * 4096})
    recorder.steps(range(4096, 5000), {"loss": [9.0] * 904})
    recorder.compact()
    recorder.steps(range(again, again + 104), {"loss": [2.0] * 104})
    for _ in range(2):  # from the tail, then from the blocks
        buckets = read(database, ["loss"], pixels=5).series["loss"].rows
        assert isinstance(buckets, Buckets)
        assert_true_buckets(buckets, recorder_rows(recorder))
        recorder.compact()


def recorder_rows(recorder: Recorder) -> dict[int, Cell]:
    return {step: row["loss"] for step, row in recorder.rows.items()}


def test_a_name_that_the_run_does_not_have_is_left_out(database: Database) -> None:
    Recorder(database).steps([0], {"loss": [1.0]})
    assert list(read(database, ["loss", "nonsense"]).series) == ["loss"]


def test_the_clock_is_a_series(database: Database) -> None:
    recorder = Recorder(database)
    recorder.steps([5, 6], {"loss": [1.0, 2.0]})
    recorder.compact()
    assert cells(read(database, ["time"]).series["time"]) == {5: 1_700_000_005.0, 6: 1_700_000_006.0}


def test_a_reader_beside_the_compactor_never_misses_a_row_nor_sees_one_twice(database: Database) -> None:
    recorder = Recorder(database)
    for begin in range(0, 6000, 20):
        recorder.steps(range(begin, begin + 20), {"loss": [float(begin)] * 20})
    done, counts = threading.Event(), set()

    def count(connection: Connection) -> int:
        return len(read_rows(connection, "run-1", ["loss"], 0, NEVER)["loss"].rows)

    def keep_reading() -> None:
        while not done.is_set():
            counts.add(database.read(count))

    reader = threading.Thread(target=keep_reading)
    reader.start()
    for up_to_seq in range(10, 301, 10):
        recorder.compact(up_to_seq)
    done.set()
    reader.join(30)
    assert counts == {6000}
