from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_rows import hello, steps, told
from trainvitals import wire
from trainvitals.backlog import Backlog, NoShelf
from trainvitals.courier import (
    FIRST_RETRY_S,
    LAST_RETRY_S,
    LONGEST_RETRY_S,
    RARE_RETRY_S,
    WINDOW_BYTES,
    Courier,
    Notice,
)
from trainvitals.transport import Link, LinkError, MemoryLink, MemoryTransport, Overloaded, Unauthorized
from wire_server import Store, end_of

TIMEOUT_S = 10.0


_talks: list[Talk] = []


@pytest.fixture(autouse=True)
def _hang_up() -> Iterator[None]:
    yield
    while _talks:
        _talks.pop().courier.close()


class Talk:
    """A courier, its backlog and a server in memory, on a clock that jumps to the next deadline."""

    def __init__(self, store: Store | None = None, *, random: Random | None = None) -> None:
        self.store = store or Store()
        self.backlog = Backlog(NoShelf())
        self.notices: list[Notice] = []
        self.now = 1000.0
        _talks.append(self)
        self.problem: LinkError | None = None
        self.opened_at: list[float] = []
        self._wake = threading.Event()
        self.courier = Courier(
            self.backlog,
            self,
            lambda: wire.encode(hello()),
            on_notice=self.notices.append,
            wake=self._wake.set,
            random=random or Random(1),
        )

    def link(self) -> Link:
        """Be the transport too: every link meets the present problem."""
        self.opened_at.append(self.now)
        if self.problem is not None:
            return Broken(self.problem)
        return MemoryTransport(self.store.handler()).link()

    def make(self, count: int) -> None:
        for _ in range(count):
            self.backlog.append(steps, self.now)

    def turn(self) -> None:
        """Let everything happen that is due, then move to the next deadline."""
        self._wake.clear()
        was_linked = self.courier.is_connected
        deadline = self.courier.step(self.now)
        if self.courier.is_linking or was_linked != self.courier.is_connected:
            self._wake.wait(0.2 if self.courier.is_connected else TIMEOUT_S)
        elif not self._wake.is_set() and deadline != float("inf"):
            self.now = max(deadline, self.now)

    def settle(self, turns: int = 3000) -> None:
        """Go on until everything is acknowledged."""
        for _ in range(turns):
            if self.backlog.is_empty:
                return
            self.turn()
        raise AssertionError(f"not done: {self.backlog.acked_seq} of {self.backlog.last_seq}")


class Broken:
    """A link that cannot be opened."""

    def __init__(self, problem: LinkError) -> None:
        self._problem = problem

    def run(self, hello: bytes, deliver: object) -> None:
        raise self._problem

    def send(self, frames: object) -> None:
        raise self._problem

    def close(self, *, abrupt: bool = False) -> None:
        pass


class Held(MemoryTransport):
    """A server whose answers to frames are given by hand."""

    def __init__(self) -> None:
        super().__init__(lambda data: [wire.encode(wire.Welcome(acked_seq=0))] if b"hello" in data else [])

    def link(self) -> Link:
        self.made = super().link()
        return self.made

    def answer(self, message: wire.ServerFrame) -> None:
        assert isinstance(self.made, MemoryLink)
        self.made._deliver(wire.encode(message))


def test_an_ack_wakes_nobody_who_has_nothing_to_do_with_it() -> None:
    server, backlog, woken = Held(), Backlog(NoShelf()), threading.Event()
    courier = Courier(
        backlog, server, lambda: wire.encode(hello()), on_notice=lambda _: None, wake=woken.set
    )  # fmt: skip
    courier.may_be_late = True
    backlog.append(steps, 0.0)
    while not courier.is_connected:
        courier.step(0.0)
        assert courier.is_connected or woken.wait(TIMEOUT_S)
    backlog.append(steps, 0.0)
    courier.step(0.0)
    woken.clear()
    server.answer(wire.Ack(acked_seq=1))
    assert not woken.is_set()
    server.answer(wire.Command(name="stop"))
    assert woken.is_set()
    courier.step(0.0)
    assert backlog.acked_seq == 1
    courier.may_be_late = False
    courier.step(0.0)
    woken.clear()
    server.answer(wire.Ack(acked_seq=2))
    assert woken.is_set()
    courier.close()


def test_an_ack_wakes_who_has_more_to_send_than_may_be_under_way() -> None:
    server, backlog, woken = Held(), Backlog(NoShelf()), threading.Event()
    courier = Courier(
        backlog, server, lambda: wire.encode(hello()), on_notice=lambda _: None, wake=woken.set
    )  # fmt: skip
    courier.may_be_late = True
    for _ in range(3):
        backlog.append(lambda seq: steps(seq, seq * 20_000, 4000 * 4), 0.0)
    while not courier.is_connected:
        courier.step(0.0)
        assert courier.is_connected or woken.wait(TIMEOUT_S)
    assert courier.sent_seq < backlog.last_seq
    woken.clear()
    server.answer(wire.Ack(acked_seq=1))
    assert woken.is_set()
    courier.close()


def test_frames_arrive_once_and_in_order() -> None:
    talk = Talk()
    talk.make(200)
    talk.settle()
    assert told(talk.store.frames["s1"]) == list(range(1, 201))


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.floats(0.01, 0.5), st.integers(1, 60))
def test_under_random_faults_every_frame_is_stored_once_in_order_or_declared(
    seed: int, rate: float, count: int
) -> None:
    talk = Talk(Store(random=Random(seed), fault_rate=rate), random=Random(seed))
    for _ in range(3):
        talk.make(count)
        for _ in range(5):
            talk.turn()
    talk.store.stop_faults()
    talk.settle()
    assert told(talk.store.frames["s1"]) == list(range(1, 3 * count + 1))


def test_after_a_reconnect_only_what_is_not_committed_is_sent_again() -> None:
    talk = Talk()
    talk.make(5)
    talk.settle()
    talk.courier.close()
    sent = talk.courier.sent_frames
    talk.make(2)
    talk.settle()
    assert talk.courier.sent_frames - sent == 2


def test_a_server_that_lost_its_data_is_told_what_is_gone() -> None:
    talk = Talk()
    talk.make(3)
    talk.settle()
    talk.store.frames.clear()
    talk.make(1)
    talk.settle()
    gap, last = talk.store.frames["s1"]
    assert isinstance(gap, wire.Gap)
    assert (gap.seq, gap.last_seq, gap.reason, last.seq) == (1, 3, "not_kept", 4)


@pytest.mark.parametrize("code", ["malformed", "too_large", "series_cap", "conflict"])
def test_a_frame_that_will_never_be_taken_is_declared_and_the_rest_goes_on(code: str) -> None:
    talk = Talk()

    def refuse(frame: wire.ClientFrame) -> wire.Reject | None:
        if isinstance(frame, wire.Steps) and frame.seq in (2, 5):
            return wire.Reject(code=code, message="no", seq=frame.seq)  # type: ignore[arg-type]
        return None

    talk.store.refuse = refuse
    talk.make(8)
    talk.settle()
    kept = talk.store.frames["s1"]
    assert [(frame.seq, isinstance(frame, wire.Gap)) for frame in kept] == [
        (seq, seq in (2, 5)) for seq in range(1, 9)
    ]
    assert talk.backlog.dropped == {code: 2}


def test_back_off_grows_with_jitter_and_never_beyond_its_bound() -> None:
    talk = Talk()
    talk.problem = LinkError("refused")
    talk.make(1)
    while len(talk.opened_at) < 15:
        talk.turn()
    pauses = [after - before for before, after in zip(talk.opened_at, talk.opened_at[1:], strict=False)]
    assert all(0.1 <= pause <= LAST_RETRY_S for pause in pauses)
    assert all(pause >= LAST_RETRY_S / 2 for pause in pauses[9:])
    assert len(set(pauses)) == len(pauses)


@pytest.mark.parametrize(
    ("problem", "trouble", "at_least"),
    [
        (Unauthorized("401"), "unauthorized", RARE_RETRY_S / 2),
        (Overloaded("503", retry_after_s=7.0), "unreachable", 7.0),
        (LinkError("refused"), "unreachable", 0.1),
    ],
)
def test_how_soon_it_tries_again_depends_on_the_refusal(
    problem: LinkError, trouble: str, at_least: float
) -> None:
    talk = Talk()
    talk.problem = problem
    talk.make(1)
    while len(talk.opened_at) < 2:
        talk.turn()
    assert talk.courier.failure is not None
    assert talk.courier.failure.trouble == trouble
    assert talk.opened_at[1] - talk.opened_at[0] >= at_least
    talk.problem = None
    talk.settle()
    assert talk.courier.failure is None


def test_a_busy_server_is_asked_again_after_the_time_it_names() -> None:
    talk = Talk()
    answers = [wire.Reject(code="busy", message="", seq=1, retry_after_s=3.0)]
    talk.store.refuse = lambda frame: answers.pop() if isinstance(frame, wire.Steps) and answers else None
    talk.make(2)
    began = talk.now
    talk.settle()
    assert 3.0 <= talk.now - began < 4.0


@pytest.mark.parametrize(
    ("asked", "waited"),
    [(1e300, LONGEST_RETRY_S), (math.inf, LONGEST_RETRY_S), (-5.0, 0.0), (math.nan, FIRST_RETRY_S / 2)],
)
def test_a_time_that_makes_no_sense_is_bounded(asked: float, waited: float) -> None:
    talk = Talk()
    talk.make(2)
    hello, rows = (wire.Reject(code="busy", message="", retry_after_s=asked) for _ in range(2))
    answers: list[tuple[type, wire.Reject]] = [(wire.Steps, rows), (wire.Hello, hello)]
    talk.store.refuse = lambda frame: (
        answers.pop()[1] if answers and isinstance(frame, answers[-1][0]) else None
    )
    began = talk.now
    talk.settle()
    assert 2 * waited <= talk.now - began <= 2 * waited + 2.0


def test_a_proxy_that_asks_for_an_age_is_asked_again_within_minutes() -> None:
    talk = Talk()
    talk.problem = Overloaded("503", retry_after_s=1e23)
    talk.make(1)
    while len(talk.opened_at) < 2:
        talk.turn()
    assert talk.opened_at[1] - talk.opened_at[0] == LONGEST_RETRY_S


def test_what_a_server_says_reaches_the_log_without_control_characters_and_bounded() -> None:
    talk = Talk()
    talk.problem = LinkError("\x1b[2J" + "x" * 5000)
    talk.make(1)
    while talk.courier.failure is None:
        talk.turn()
    assert "\x1b" not in talk.courier.failure.message
    assert len(talk.courier.failure.message) <= 300


def test_a_server_that_says_nothing_is_left_and_tried_again() -> None:
    talk = Talk()
    silent = [True]
    answer = talk.store.answer

    def mute(session_id: str, frame: wire.ClientFrame) -> list[wire.ServerFrame]:
        answers = answer(session_id, frame)
        return [] if silent and not isinstance(frame, wire.Hello) else answers

    talk.store.answer = mute  # type: ignore[method-assign]
    talk.make(1)
    while len(talk.opened_at) < 2:
        talk.turn()
    silent.clear()
    talk.settle()
    assert len(talk.store.frames["s1"]) == 1


def test_a_frame_that_was_lost_on_the_way_is_sent_again_at_once() -> None:
    talk = Talk(Store(fault_rate=1.0, faults=["lose"]))
    talk.make(1)
    while not talk.courier.sent_frames:
        talk.turn()
    talk.store.stop_faults()
    began = talk.now
    talk.make(1)
    talk.settle()
    assert talk.now - began < 1.0
    assert len(talk.opened_at) == 1


def test_no_more_than_a_window_is_under_way() -> None:
    talk = Talk()
    taken: list[int] = []
    answer = talk.store.answer

    def hold(session_id: str, frame: wire.ClientFrame) -> list[wire.ServerFrame]:
        if isinstance(frame, wire.Steps):
            taken.append(len(wire.encode(frame)))
            return []
        return answer(session_id, frame)

    talk.store.answer = hold  # type: ignore[method-assign]
    for _ in range(20):
        talk.backlog.append(partial(steps, count=4000), talk.now)
    while not taken:
        talk.turn()
    assert WINDOW_BYTES - max(taken) < sum(taken) <= WINDOW_BYTES


def test_commands_and_incidents_reach_whoever_listens() -> None:
    talk = Talk()
    answer = talk.store.answer

    def chatty(session_id: str, frame: wire.ClientFrame) -> list[wire.ServerFrame]:
        return [*answer(session_id, frame), wire.Command(name="stop", reason="enough")]

    talk.store.answer = chatty  # type: ignore[method-assign]
    talk.make(1)
    talk.settle()
    talk.turn()
    assert talk.notices
    assert set(talk.notices) == {wire.Command(name="stop", reason="enough")}


def test_only_the_latest_heartbeat_is_sent() -> None:
    talk = Talk()
    for seconds in (1.0, 2.0):
        talk.courier.heartbeat(wire.encode(wire.Heartbeat(next_within_s=seconds)))
    while not talk.store.heartbeats:
        talk.turn()
    assert [beat.next_within_s for beat in talk.store.heartbeats] == [2.0]


def test_a_gap_ends_at_its_last_seq() -> None:
    assert end_of(wire.Gap(seq=1, last_seq=4, reason="x")) == 4
