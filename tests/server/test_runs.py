from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

import pytest

from client_frames import hello, steps
from trainvitals import wire
from trainvitals_server.errors import Conflict, NotFound
from trainvitals_server.store import runs, streams, summaries
from trainvitals_server.store.database import Database
from trainvitals_server.store.runs import Appended, append_frames, upsert_hello

T = TypeVar("T")
TIMEOUT_S = 20.0
NOW = 1_700_000_000.0


class Store:
    """A database, and what the tests do to it in one word each."""

    def __init__(self, path: Path) -> None:
        self.database = Database(path)

    def do(self, job: Callable[[Connection], T]) -> T:
        return self.database.write(job).result(TIMEOUT_S)

    def open(self, frame: wire.Hello) -> int:
        return self.do(lambda c: upsert_hello(c, frame, NOW))

    def append(
        self, *frames: wire.Sequenced, session_id: str = "s1", rank: int = 0, cap: int = 512
    ) -> Appended:
        return self.do(lambda c: append_frames(c, "run", rank, session_id, frames, NOW, cap))

    def run(self) -> summaries.RunDetail:
        return self.do(lambda c: summaries.find_run(c, "run"))

    def seqs(self) -> list[int]:
        return self.do(lambda c: [seq for (seq,) in c.execute("SELECT seq FROM frame WHERE kind != 'hello'")])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "test.db")
    opened.open(hello())
    yield opened
    opened.database.close()


def test_frames_continue_a_session_and_hello_finds_it_again(store: Store) -> None:
    assert store.append(steps(1, 0, [1.0, 2.0]), steps(2, 2, [3.0])).acked_seq == 2
    assert store.open(hello()) == 2
    assert store.run().last_step == 2


def test_a_duplicate_is_acked_and_stored_once(store: Store) -> None:
    store.append(steps(1, 0, [1.0]), steps(2, 1, [2.0]))
    again = store.append(steps(1, 0, [1.0]), steps(2, 1, [2.0]), steps(3, 2, [3.0]))
    assert (again.acked_seq, [frame.seq for frame in again.stored]) == (3, [3])
    assert store.seqs() == [1, 2, 3]


def test_a_jump_keeps_what_came_before_and_names_what_is_expected(store: Store) -> None:
    appended = store.append(steps(1, 0, [1.0]), steps(3, 2, [3.0]), steps(4, 3, [4.0]))
    assert appended.acked_seq == 1
    assert appended.reject is not None
    assert (appended.reject.code, appended.reject.seq, appended.reject.expected_seq) == ("seq_jump", 3, 2)
    assert store.seqs() == [1]


def test_a_gap_stands_for_all_its_frames(store: Store) -> None:
    gap = wire.Gap(seq=1, last_seq=10, reason="queue_full", steps_lost=20)
    assert store.append(gap, steps(11, 0, [1.0])).acked_seq == 11


def test_frames_of_a_session_that_nobody_opened_are_refused(store: Store) -> None:
    with pytest.raises(NotFound, match="say Hello first"):
        store.append(steps(1, 0, [1.0]), session_id="s9")


def test_the_series_cap_counts_names_not_frames(store: Store) -> None:
    full = store.append(steps(1, 0, [1.0], a=[1.0]), steps(2, 1, [1.0], a=[1.0]), cap=2)
    assert (full.acked_seq, full.reject) == (2, None)
    over = store.append(steps(3, 2, [1.0], b=[1.0]), cap=2)
    assert over.reject is not None
    assert (over.acked_seq, over.reject.code, over.reject.seq) == (2, "series_cap", 3)
    assert store.append(wire.Gap(seq=3, last_seq=3, reason="series_cap"), cap=2).acked_seq == 3
    assert store.run().series == ["a", "loss"]


def test_a_bye_ends_the_run_and_a_later_frame_revives_it(store: Store) -> None:
    store.append(wire.Bye(seq=1, status="finished", step=3))
    assert store.run().state == "finished"
    store.open(hello())
    assert store.run().state == "finished", "a reconnect alone is no life"
    store.append(wire.Event(seq=2, step=4, kind="message"))
    assert store.run().state == "running"
    store.append(wire.Bye(seq=3, status="interrupted"))
    assert store.run().state == "interrupted"


def test_a_run_runs_while_one_of_its_ranks_does_and_ends_as_its_worst(store: Store) -> None:
    store.open(hello(rank=1, world_size=2))
    store.append(wire.Bye(seq=1, status="failed"), rank=1)
    assert store.run().state == "running"
    store.append(wire.Bye(seq=1, status="finished"))
    assert store.run().state == "failed"


def test_a_session_that_forgot_its_ordinal_gets_the_next(store: Store) -> None:
    store.open(hello(session_id="s2"))
    store.open(hello(session_id="s3", session_ordinal=7))
    store.open(hello(session_id="s4", session_ordinal=3))
    assert [(s.session_id, s.ordinal) for s in store.run().sessions] == [
        ("s1", 0), ("s2", 1), ("s3", 7), ("s4", 8),
    ]  # fmt: skip


def test_a_late_session_keeps_its_ordinal_and_does_not_move_the_run(store: Store) -> None:
    store.append(steps(1, 0, [1.0] * 5))
    store.open(hello(session_id="old", session_ordinal=0, late=True))
    store.append(steps(1, 0, [1.0] * 3), session_id="old")
    run = store.run()
    assert [(s.session_id, s.ordinal, s.late) for s in run.sessions] == [("old", 0, True), ("s1", 0, False)]
    assert run.last_step == 4


def test_a_resume_takes_the_run_back(store: Store) -> None:
    store.append(steps(1, 0, [1.0] * 100))
    store.open(hello(session_id="s2", session_ordinal=1, resume_step=50))
    store.append(steps(1, 50, [1.0] * 2), session_id="s2")
    assert store.run().last_step == 51


def test_a_reconnect_undoes_nothing_that_a_person_changed(store: Store) -> None:
    store.do(lambda c: runs.patch_run(c, "run", name="mine", tags=["kept"], notes="why"))
    store.open(hello(name="theirs", tags=["other"]))
    run = store.run()
    assert (run.name, run.tags, run.notes) == ("mine", ["kept"], "why")


def test_the_environment_is_that_of_the_latest_layout(store: Store) -> None:
    layers = [wire.Layer(name="dense", kind="Dense", parameters=4)]
    environment = wire.Environment(optimizer="Adam", optimizer_config={"epsilon": 1e-7})
    store.append(wire.Layout(seq=1, layout_id=1, layers=layers, environment=environment))
    run = store.run()
    assert (run.environment, run.layers) == (environment, layers)
    key = runs.StreamKey("run", 0, "s1")
    assert store.do(lambda c: streams.load_layouts(c, key)) == {1: tuple(layers)}


def test_a_stop_stays_asked_for_until_the_run_says_bye(store: Store) -> None:
    store.do(lambda c: runs.request_stop(c, "run", "too hot"))
    store.append(steps(1, 0, [1.0]))
    assert store.do(lambda c: runs.stop_reason(c, "run")) == "too hot"
    assert store.run().stop_requested
    store.append(wire.Bye(seq=2, status="stopped"))
    assert not store.run().stop_requested
    with pytest.raises(Conflict, match="the run has ended: stopped"):
        store.do(lambda c: runs.request_stop(c, "run", "again"))


def test_a_stop_is_not_meant_for_a_later_start_of_the_run(store: Store) -> None:
    store.do(lambda c: runs.request_stop(c, "run", "too hot"))
    store.open(hello(session_id="s2", session_ordinal=1))
    assert not store.run().stop_requested


def test_a_deleted_run_leaves_nothing_behind(store: Store) -> None:
    store.append(steps(1, 0, [1.0]))
    store.do(lambda c: streams.save_fold(c, "run", b"state", {}))
    store.do(lambda c: runs.delete_run(c, "run"))

    def leftovers(connection: Connection) -> int:
        tables = ("run", "session", "frame", "series", "fold")
        return sum(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)

    assert store.do(leftovers) == 0
    with pytest.raises(NotFound):
        store.do(lambda c: runs.delete_run(c, "run"))


def test_a_fold_reads_on_from_where_it_is_earlier_sessions_first(store: Store) -> None:
    store.append(steps(1, 0, [1.0]), wire.Event(seq=2, step=0, kind="message"))
    store.open(hello(session_id="a2", session_ordinal=1))
    store.append(steps(1, 1, [2.0]), session_id="a2")

    def next_frames(progress: dict[str, int]) -> list[tuple[str, int, str]]:
        frames = store.do(lambda c: streams.unfolded_frames(c, "run", progress, limit=4))
        return [(frame.session_id, frame.seq, frame.kind) for frame in frames]

    opening = [("s1", 0, "hello"), ("s1", 1, "steps"), ("s1", 2, "event"), ("a2", 0, "hello")]
    assert next_frames({}) == opening
    assert next_frames({"0/s1": 1, "0/a2": 0}) == [("s1", 2, "event"), ("a2", 1, "steps")]
    assert store.do(streams.unfolded_runs) == ["run"]
    store.do(lambda c: streams.save_fold(c, "run", b"", {"0/s1": 2, "0/a2": 1}))
    assert store.do(streams.unfolded_runs) == []
    store.append(wire.Bye(seq=2, status="finished"), session_id="a2")
    assert store.do(streams.unfolded_runs) == ["run"]
