"""Compaction: what it takes, what it leaves, and that doing it in any portions gives the same blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorded import Recorder, open_database
from trainvitals.rows import FRAME_BYTES
from trainvitals.wire import Dtype, Event
from trainvitals_server.series import LEVEL_STEPS, NEVER, Buckets, Points, bucketize
from trainvitals_server.store.blocks import MAX_BLOCKS, SeriesKey, load_buckets, load_points
from trainvitals_server.store.database import Database
from trainvitals_server.store.payload import decode_buckets, decode_points, encode_buckets, encode_points
from trainvitals_server.store.reading import read_rows
from trainvitals_server.store.runs import StreamKey

KEY = StreamKey("run-1", 0, "s0")
LOSS = SeriesKey(KEY, "loss")


@pytest.fixture
def database() -> Iterator[Database]:
    with open_database() as opened:
        yield opened


def ask(database: Database, query: str) -> list[Any]:
    return database.read(lambda connection: connection.execute(query).fetchall())


def blocks(database: Database) -> list[Any]:
    return ask(database, "SELECT * FROM block ORDER BY run_id, rank, series, session_id, level, first_step")


def frames(database: Database) -> list[tuple[int, str]]:
    return ask(database, "SELECT seq, kind FROM frame WHERE seq > 0 ORDER BY seq")


def record(database: Database, rows: int, at_once: int, stride: int = 1) -> Recorder:
    recorder = Recorder(database)
    generator = np.random.default_rng(rows)
    for begin in range(0, rows, at_once):
        steps = range(begin * stride, min(begin + at_once, rows) * stride, stride)
        recorder.steps(steps, {"loss": [float(cell) for cell in generator.normal(size=len(steps))]})
    return recorder


def test_nothing_is_compacted_past_the_given_seq(database: Database) -> None:
    recorder = record(database, rows=100, at_once=10)
    assert recorder.compact(up_to_seq=7) == 7
    assert frames(database) == [(8, "steps"), (9, "steps"), (10, "steps")]


def test_rows_so_far_apart_that_each_needs_a_block_stay_a_frame(database: Database) -> None:
    recorder = Recorder(database)
    names = [f"m{number}" for number in range(8)]
    far = range(0, 4096 * 4096, 4096)  # 9 series, the clock among them, each in 4,096 blocks
    recorder.steps(far, {name: [1.0] * len(far) for name in names})
    recorder.steps([4096 * 4096], {"loss": [2.0]})
    assert recorder.compact() == 1
    assert recorder.compact() == 0
    assert frames(database) == [(1, "steps")]
    found = database.read(lambda c: read_rows(c, "run-1", ["m7", "loss"], 0, NEVER))
    assert len(found["m7"].rows) == 4096
    assert len(found["loss"].rows) == 1


def test_a_frame_of_our_reporters_is_always_compacted() -> None:
    assert FRAME_BYTES // np.dtype("f4").itemsize <= MAX_BLOCKS


def test_compacting_again_changes_nothing(database: Database) -> None:
    recorder = record(database, rows=100, at_once=10)
    recorder.compact()
    before = blocks(database)
    assert recorder.compact() == 0
    assert blocks(database) == before


def test_only_rows_are_taken_and_the_ack_stays(database: Database) -> None:
    recorder = Recorder(database)
    recorder.layout(1, ["a"])
    recorder.steps([0, 1], {"loss": [1.0, 2.0]})
    recorder.send(Event(seq=3, step=1, kind="message", data={"text": "hello"}))
    recorder.compact()
    assert frames(database) == [(1, "layout"), (3, "event")]
    assert ask(database, "SELECT acked_seq FROM session") == [(3,)]


def test_few_frames_wait_for_more(database: Database) -> None:
    recorder = record(database, rows=30, at_once=10)
    assert recorder.compact(min_frames=4) == 0
    assert recorder.compact(min_frames=3) == 3


def test_one_call_takes_a_bounded_number_of_bytes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = record(database, rows=10_000, at_once=1000)  # a frame has 16,000 bytes of numbers
    monkeypatch.setattr("trainvitals_server.store.blocks.MAX_BYTES", 70_000)
    taken = list(itertools.takewhile(bool, (recorder.compact() for _ in itertools.count())))
    assert taken == [4, 4, 2]


def test_many_bytes_do_not_wait_for_more_frames(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record(database, rows=4000, at_once=2000)
    assert recorder.compact(min_frames=3) == 0
    monkeypatch.setattr("trainvitals_server.store.blocks.MAX_BYTES", 60_000)
    assert recorder.compact(min_frames=3) == 1


@settings(max_examples=15)
@given(st.lists(st.integers(1, 14), max_size=5), st.sampled_from([1, 3, 700]))
def test_any_portions_of_compaction_give_the_same_blocks(portions: list[int], stride: int) -> None:
    found = []
    for stops in (sorted(portions), []):
        with open_database() as database:
            recorder = record(database, rows=6000, at_once=430, stride=stride)
            for up_to_seq in stops:
                recorder.compact(up_to_seq)
            while recorder.compact():
                pass
            found.append(blocks(database))
    assert found[0] == found[1]


@pytest.mark.parametrize("stride", [1, 5, 1000])
def test_every_level_is_what_the_rows_say(database: Database, stride: int) -> None:
    recorder = record(database, rows=9000, at_once=1000, stride=stride)
    while recorder.compact():
        pass
    steps = np.array(sorted(recorder.rows), dtype=np.int64)
    values = np.array([recorder.rows[int(step)]["loss"] for step in steps])
    rows = Points(steps, values, np.ones(len(steps), dtype=bool))
    for level, size in enumerate(LEVEL_STEPS[1:], start=1):
        parts = database.read(partial(load_buckets, key=LOSS, level=level, start=0, stop=NEVER))
        expected = bucketize(rows, size)
        for name in (
            "step",
            "last_step",
            "count",
            "first",
            "last",
            "min",
            "argmin",
            "max",
            "argmax",
            "n_missing",
        ):
            stored = np.concatenate([getattr(part, name) for part in parts])
            assert np.array_equal(stored, getattr(expected, name)), (level, name)


def test_levels_of_a_layer_series_are_what_its_rows_say(database: Database) -> None:
    recorder = Recorder(database)
    recorder.layout(1, ["a", "b"])
    values = np.random.default_rng(3).normal(size=(3000, 2))
    for begin in range(0, 3000, 500):
        cells = values[begin : begin + 500].reshape(-1).tolist()
        recorder.steps(range(begin, begin + 500), {}, {"layer_grad_norm": cells}, layout_id=1)
    while recorder.compact():
        pass
    key = SeriesKey(KEY, "layer_grad_norm", 1, 2)
    rows = Points(np.arange(3000), values, np.ones((3000, 2), dtype=bool))
    for level, size in enumerate(LEVEL_STEPS[1:], start=1):
        parts = database.read(partial(load_buckets, key=key, level=level, start=0, stop=NEVER))
        stored = np.concatenate([part.argmax for part in parts])
        assert np.array_equal(stored, bucketize(rows, size).argmax)


def test_a_block_holds_a_window_of_4096_steps(database: Database) -> None:
    recorder = record(database, rows=9000, at_once=1000)
    while recorder.compact():
        pass
    query = "SELECT first_step, last_step, count FROM block WHERE level = 0 AND series = 'loss'"
    assert ask(database, query) == [(0, 4095, 4096), (4096, 8191, 4096), (8192, 8999, 808)]


@pytest.mark.parametrize("dtype", ["f8", "f4", "i4", "i8", "u1"])
def test_a_series_keeps_its_kind_of_number(database: Database, dtype: Dtype) -> None:
    recorder = Recorder(database)
    recorder.steps([0, 1], {"loss": [3.0, None]}, dtype=dtype)
    recorder.compact()
    recorder.steps([2], {"loss": [4.0]}, dtype=dtype)
    recorder.compact()
    (rows,) = database.read(lambda c: load_points(c, LOSS, 0, 10))
    assert rows.values.dtype.str[1:] == dtype
    assert rows.present.tolist() == [True, False, True]


SHAPES = st.sampled_from([(1,), (5,), (70,), (1, 2), (6, 3)])


@given(SHAPES, st.integers(0, 2**32 - 1), st.sampled_from(["f4", "f8"]), st.integers(1, 9))
def test_payloads_come_back_bit_for_bit(shape: tuple[int, ...], seed: int, dtype: str, stride: int) -> None:
    generator = np.random.default_rng(seed)
    pool = np.array([0.5, -0.0, 1e30, math.nan, math.inf, -math.inf]).astype(dtype)
    steps = np.arange(10, 10 + stride * shape[0], stride, dtype=np.int64)
    present = generator.random(shape) < 0.7
    points = Points(steps, np.where(present, generator.choice(pool, shape), 0).astype(dtype), present)
    assert same(decode_points(encode_points(points)), points)
    buckets = bucketize(points, 8)
    assert same_buckets(decode_buckets(encode_buckets(buckets)), buckets)


def same(one: Points, other: Points) -> bool:
    names = ("steps", "values", "present")
    return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in names)


def same_buckets(one: Buckets, other: Buckets) -> bool:
    names = Buckets.__dataclass_fields__
    return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in names)
