"""A failure of ours is one line in the log; what others raise on purpose goes through."""

from __future__ import annotations

import logging

import pytest

from training import batch, reporting, small_model
from trainvitals.effort import Effort
from trainvitals.guard import Guard


def test_a_failure_of_ours_does_not_leave_the_guard() -> None:
    guard = Guard()

    with guard:
        raise ValueError("ours")

    assert guard.is_off


def test_only_the_first_failure_is_told(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard()

    for _ in range(3):
        with caplog.at_level(logging.WARNING), guard:
            raise ValueError("ours")

    told = [(record.getMessage(), record.exc_info and record.exc_info[0]) for record in caplog.records]
    assert told == [("trainvitals failed and is off for this run; your training goes on", ValueError)]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_on_purpose_passes_through(kind: type[BaseException]) -> None:
    guard = Guard()

    with pytest.raises(kind), guard:
        raise kind

    assert not guard.is_off


def test_success_leaves_the_reporter_on() -> None:
    guard = Guard()

    with guard:
        pass

    assert not guard.is_off


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["before", "after", "drop"])
def test_measuring_around_a_step_that_fails_never_reaches_the_training(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("of ours")

    monkeypatch.setattr(Effort, name, fail)
    model, (x, y) = small_model(), batch(32)
    model.compile("sgd", "mse")
    reporter, _ = reporting()
    if name != "drop":
        assert len(model.fit(x, y, batch_size=8, verbose=0, callbacks=[reporter]).history["loss"]) == 1
        return
    with pytest.raises(Exception, match=r"(?i)shape|compatible|dimension"):
        model.fit(x[:, :-1], y, batch_size=8, verbose=0, callbacks=[reporter])
