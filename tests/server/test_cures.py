"""The code that goes with a cause, as it is shown, applied to a program that fails: the failure is gone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from trainvitals_server.catalogue import CATALOGUE

keras = pytest.importorskip("keras")
from failing_programs import half, learning, operations  # noqa: E402
from failing_programs.run import NORMAL, Program  # noqa: E402

# Keras itself reads its variables in this way.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    # Keras warns of one of the programs, too.
    pytest.mark.filterwarnings(r"ignore:(?s).*You are using a softmax over axis:UserWarning"),
]
PROGRAMS = {one.cause: one for one in (*operations.PROGRAMS, *half.PROGRAMS, *learning.PROGRAMS)}
SHARE = 5  # of a run: its first and last fifth are compared


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    keras.backend.clear_session()


def level(losses: list[float]) -> tuple[float, float]:
    """Return the median loss at the beginning of a run and at its end."""
    part = len(losses) // SHARE
    return float(np.median(losses[:part])), float(np.median(losses[-part:]))


def test_there_are_programs_for_most_causes() -> None:
    assert len(PROGRAMS) >= 20


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_shown_code_cures_the_program(program: Program) -> None:
    failed = program.run()
    told = failed.first
    causes = [cause.cause for cause in told.causes]
    assert told.kind in program.kinds
    assert program.cause in (causes[:1] if program.is_first else causes)
    (cause,) = [cause for cause in told.causes if cause.cause == program.cause]
    cured = program.run(cause.snippet)
    assert {incident.kind for incident in cured.incidents if incident.severity != "info"} == set()
    left = {incident.kind for incident in cured.incidents} - {NORMAL}
    assert left <= program.leaves
    before, after = level(cured.losses)
    assert np.isfinite(cured.losses[-1])
    assert after < before
    assert cured.weights_are_finite


def test_the_callback_for_a_sinking_scale_saves_the_weights() -> None:
    """What makes the gradient bad is another matter; the weights are good when the training stops."""
    failed = half.FLOOR.run()
    assert failed.first.causes[0].cause in ("loss_scale_floor", "where_gradient")
    assert not failed.weights_are_finite
    cured = half.FLOOR.run(CATALOGUE["loss_scale_floor"].snippet)
    assert cured.weights_are_finite
    assert len(cured.losses) < len(failed.losses)
