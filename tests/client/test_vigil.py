"""How long everything is measured near trouble, and how often that may come."""

from __future__ import annotations

from trainvitals.vigil import CALM_STEPS, LENGTHS, Vigil

LENGTH = LENGTHS["failure"]


def test_a_reason_has_everything_measured_for_a_while() -> None:
    vigil = Vigil()
    assert not vigil.counts_everything(0)
    vigil.note("incident", 100)
    assert vigil.counts_everything(100)
    assert vigil.counts_everything(100 + LENGTH - 1)
    assert not vigil.counts_everything(100 + LENGTH)


def test_a_run_in_trouble_for_ever_is_watched_less_and_less() -> None:
    vigil, watched = Vigil(), 0
    steps = 200_000
    for step in range(steps):
        vigil.note("failure", step)
        watched += vigil.counts_everything(step)
    assert watched <= 10 * LENGTH
    assert watched >= 5 * LENGTH


def test_trouble_after_a_long_calm_is_new() -> None:
    vigil = Vigil()
    for step in range(5 * LENGTH):
        vigil.note("failure", step)
    again = 6 * LENGTH + CALM_STEPS
    vigil.note("failure", again)
    assert vigil.counts_everything(again)


def test_a_rest_from_one_reason_is_none_from_another() -> None:
    vigil = Vigil()
    vigil.note("failure", 0)
    vigil.note("failure", LENGTH)
    assert not vigil.counts_everything(LENGTH)
    vigil.note("incident", LENGTH)
    assert vigil.counts_everything(LENGTH)


def test_a_skip_of_the_loss_scaler_has_only_the_gradients_measured() -> None:
    vigil = Vigil()
    vigil.note("skip", 10)
    assert vigil.counts_gradients(10 + LENGTHS["skip"] - 1)
    assert not vigil.counts_gradients(10 + LENGTHS["skip"])
    assert not vigil.counts_everything(10)
