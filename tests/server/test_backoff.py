from __future__ import annotations

from trainvitals_server.backoff import Backoff


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def pauses(backoff: Backoff, clock: Clock, failures: int) -> list[float]:
    """Return how long `a` rests after each failure, to a quarter of a second."""
    found = []
    for _ in range(failures):
        backoff.failed("a")
        began_at = clock.now
        while backoff.is_resting("a"):
            clock.now += 0.25
        found.append(clock.now - began_at)
    return found


def test_the_pause_doubles_up_to_the_longest_and_begins_anew_after_a_success() -> None:
    clock = Clock()
    backoff = Backoff(0.5, 3.0, clock)
    assert pauses(backoff, clock, 5) == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.forget("a")
    assert pauses(backoff, clock, 2) == [0.5, 1.0]


def test_what_has_not_failed_does_not_rest() -> None:
    backoff = Backoff(0.5, 3.0, Clock())
    backoff.failed("a")
    assert (backoff.is_resting("a"), backoff.is_resting("b")) == (True, False)
