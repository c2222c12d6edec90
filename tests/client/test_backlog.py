from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from client_rows import hello, steps
from trainvitals import wire
from trainvitals.backlog import Backlog, Frame, NoShelf
from trainvitals.spool import Spool


def filled(count: int, backlog: Backlog | None = None) -> Backlog:
    backlog = backlog or Backlog(NoShelf())
    for _ in range(count):
        backlog.append(steps, now=0.0)
    return backlog


def seqs(frames: list[Frame]) -> list[tuple[str, int, int]]:
    return [(frame.kind, frame.seq, frame.last_seq) for frame in frames]


def gap_of(frame: Frame) -> wire.Gap:
    message = wire.decode_client(frame.payload)
    assert isinstance(message, wire.Gap)
    return message


def test_frames_count_from_one_and_leave_when_acknowledged() -> None:
    backlog = filled(3)
    assert seqs(list(backlog.frames_from(1))) == [("steps", 1, 1), ("steps", 2, 2), ("steps", 3, 3)]
    backlog.ack(2)
    assert seqs(list(backlog.frames_from(1))) == [("steps", 3, 3)]
    backlog.ack(3)
    assert backlog.is_empty


def test_without_a_disk_the_oldest_unsent_rows_go_and_one_gap_says_which() -> None:
    backlog = filled(50, Backlog(NoShelf(), max_bytes=8_000))
    backlog.trim(sent_seq=4)
    frames = list(backlog.frames_from(1))
    assert [frame.seq for frame in frames[:4]] == [1, 2, 3, 4]
    gap = gap_of(frames[4])
    assert gap.reason == "spool_full"
    assert (gap.first_step, gap.last_step) == (5, gap.last_seq)
    assert gap.steps_lost == gap.last_seq - 4 == backlog.dropped["spool_full"]
    assert frames[-1].seq == 50


def test_a_layout_is_never_dropped() -> None:
    backlog = filled(20, Backlog(NoShelf(), max_bytes=100))
    backlog.append(lambda seq: wire.Layout(seq=seq, layout_id=1), now=0.0)
    filled(20, backlog)
    backlog.trim(sent_seq=0)
    assert [kind for kind, *_ in seqs(list(backlog.frames_from(1)))] == ["gap", "layout", "gap"]


def test_a_server_that_lost_its_data_gets_the_layouts_again_and_gaps_for_the_rest() -> None:
    backlog = filled(2)
    backlog.append(lambda seq: wire.Layout(seq=seq, layout_id=1), now=0.0)
    filled(2, backlog)
    backlog.ack(4)
    backlog.rewind(1)
    assert seqs(list(backlog.frames_from(1))) == [
        ("gap", 1, 2),
        ("layout", 3, 3),
        ("gap", 4, 4),
        ("steps", 5, 5),
    ]


def test_a_rejected_frame_becomes_a_gap_with_its_steps() -> None:
    backlog = filled(3)
    assert backlog.reject(2, "conflict")
    gap = gap_of(next(iter(backlog.frames_from(2))))
    assert (gap.seq, gap.last_seq, gap.reason, gap.first_step, gap.steps_lost) == (2, 2, "conflict", 2, 1)
    assert not backlog.reject(2, "conflict")


def test_a_gap_that_the_server_has_in_part_goes_on_with_the_rest() -> None:
    backlog = filled(50, Backlog(NoShelf(), max_bytes=8_000))
    backlog.trim(sent_seq=0)
    last = next(iter(backlog.frames_from(1))).last_seq
    backlog.ack(3)
    gap = gap_of(next(iter(backlog.frames_from(4))))
    assert (gap.seq, gap.last_seq, gap.reason) == (4, last, "spool_full")


def test_a_gap_that_was_sent_grows_no_more() -> None:
    backlog = filled(50, Backlog(NoShelf(), max_bytes=8_000))
    backlog.trim(sent_seq=0)
    sent = gap_of(next(iter(backlog.frames_from(1))))
    filled(10, backlog)
    backlog.trim(sent_seq=sent.last_seq)
    first, second, *_ = list(backlog.frames_from(1))
    assert gap_of(first) == sent
    assert gap_of(second).seq == sent.last_seq + 1


def test_a_frame_on_disk_can_be_rejected_too(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", lambda: [wire.encode(hello())])
    backlog = filled(5, Backlog(spool, max_bytes=0))
    backlog.persist(1.0)
    backlog.trim(sent_seq=5)
    assert backlog.reject(2, "conflict")
    assert [kind for kind, *_ in seqs(list(backlog.frames_from(1)))] == ["steps", "gap", *["steps"] * 3]
    spool.close()


def test_after_the_server_lost_its_data_new_frames_still_go_to_disk(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", lambda: [wire.encode(hello())])
    backlog = filled(3, Backlog(spool))
    backlog.ack(3)
    backlog.rewind(1)
    filled(2, backlog)
    assert backlog.persist(1.0)
    assert (spool.first_seq, spool.last_seq) == (4, 5)
    spool.close()


def test_a_message_that_cannot_be_made_uses_up_no_seq() -> None:
    backlog = filled(1)
    with pytest.raises(wire.OversizedFrame, match="event frame of"):
        backlog.append(lambda seq: wire.Event(seq=seq, step=0, kind="message", data={"x": "x" * 2**21}), 0.0)
    assert backlog.last_seq == 1


class AnyHistory(RuleBasedStateMachine):
    """Whatever happens, what is unacknowledged is there or covered by a gap, and nothing is changed."""

    @initialize(memory=st.integers(400, 5_000), disk=st.integers(0, 6_000), segment=st.integers(100, 1_500))
    def begin(self, memory: int, disk: int, segment: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "session"
        head = [wire.encode(hello())]
        self.spool = Spool(self.path, lambda: head, max_bytes=disk, segment_bytes=segment)
        self.memory = memory
        self.backlog = Backlog(self.spool, max_bytes=memory)
        self.made: dict[int, bytes] = {}
        self.now = 0.0
        self.sent = 0

    @rule(count=st.integers(1, 12))
    def append(self, count: int) -> None:
        for _ in range(count):
            frame = self.backlog.append(partial(steps, count=3), self.now)
            self.made[frame.seq] = frame.payload
            self.now += 1.0

    @rule(share=st.floats(0, 1))
    def send(self, share: float) -> None:
        goal = self.backlog.acked_seq + int(share * (self.backlog.last_seq - self.backlog.acked_seq))
        frames = self.backlog.frames_from(self.backlog.acked_seq + 1)
        self.sent = max((frame.last_seq for frame in frames if frame.last_seq <= goal), default=0)

    @rule(share=st.floats(0, 1))
    def ack(self, share: float) -> None:
        self.backlog.ack(int(share * self.sent))

    @rule(age=st.integers(0, 5))
    def persist(self, age: int) -> None:
        self.backlog.persist(self.now - age)

    @rule(share=st.floats(0, 1))
    def reject(self, share: float) -> None:
        self.backlog.reject(int(share * self.backlog.last_seq), "conflict")

    @rule()
    def trim(self) -> None:
        self.backlog.trim(max(self.sent, self.backlog.acked_seq))

    @rule(share=st.floats(0, 1))
    def forget(self, share: float) -> None:
        self.backlog.rewind(int(share * self.backlog.acked_seq) + 1)

    @invariant()
    def nothing_is_missing_or_changed(self) -> None:
        expected = self.backlog.acked_seq + 1
        for frame in self.backlog.frames_from(expected):
            assert frame.seq == expected
            if frame.kind == "steps":
                assert frame.payload == self.made[frame.seq]
            else:
                assert (gap_of(frame).seq, gap_of(frame).last_seq) == (frame.seq, frame.last_seq)
            expected = frame.last_seq + 1
        assert expected == self.backlog.last_seq + 1

    def teardown(self) -> None:
        self.spool.close()
        self.folder.cleanup()


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=150, stateful_step_count=40)
