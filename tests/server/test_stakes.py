"""What an incident can come to mean after it was told."""

from __future__ import annotations

from msgspec.structs import replace

from trainvitals_server.finding import Finding
from trainvitals_server.incident import Cause, Incident, Weights
from trainvitals_server.stakes import news_of, stakes_of

NAN = Finding(kind="sudden_nan", severity="critical", onset_step=12, detected_step=12, nonfinite_step=12)
SINKS = Finding(
    kind="loss_scale_collapse", severity="critical", onset_step=13, detected_step=40,
    facts={"loss_scale": 64.0, "steps_to_scale_zero": 93.4},
)  # fmt: skip
EMPTY = replace(SINKS, detected_step=140, phase="update", facts={"loss_scale": 0.0})
OVER = replace(SINKS, detected_step=90, phase="resolve", facts={})
FIRST = Incident(
    id="a", run_id="run", kind="sudden_nan", severity="critical", onset_step=12, detected_step=12,
    weights=Weights(usable=True), findings=[NAN],
)  # fmt: skip


def after(*findings: Finding, usable: bool | None = True, **fields: object) -> Incident:
    weights = Weights(usable=usable, bad_since=None if usable is not False else 140)
    return replace(FIRST, findings=[NAN, *findings], weights=weights, **fields)


def test_a_nan_whose_loss_scale_begins_to_sink_is_news() -> None:
    news = news_of(after(SINKS), stakes_of(FIRST))
    assert news == "the loss scale is sinking, and at this pace is 0 in about 93 steps"


def test_a_scale_that_goes_on_sinking_is_none() -> None:
    later = replace(
        SINKS, detected_step=80, phase="update", facts={"loss_scale": 1.0, "steps_to_scale_zero": 9.0}
    )
    assert news_of(after(SINKS, later), stakes_of(after(SINKS))) == ""


def test_a_scale_of_zero_and_the_weights_that_it_costs_are_one_sentence() -> None:
    news = news_of(after(SINKS, EMPTY, usable=False), stakes_of(after(SINKS)))
    assert news == (
        "the loss scale is 0: the next good step writes NaN into every weight; "
        "the weights are not usable any more since step 140"
    )


def test_weights_of_which_nobody_was_told_that_they_are_good_are_no_news_when_bad() -> None:
    assert news_of(after(usable=False), stakes_of(after(usable=None))) == ""
    assert news_of(after(usable=False), stakes_of(after(usable=True))) != ""


def test_weights_that_turn_out_good_are_no_reason_to_wake_anybody() -> None:
    assert news_of(after(usable=True), stakes_of(after(usable=None))) == ""


def test_a_scale_that_has_recovered_is_not_at_stake() -> None:
    assert "scale_sinks" in stakes_of(after(SINKS))
    assert "scale_sinks" not in stakes_of(after(SINKS, OVER))
    assert "scale_sinks" not in stakes_of(after(SINKS, state="resolved"))


def test_nothing_is_told_twice() -> None:
    worst = after(SINKS, EMPTY, usable=False)
    assert news_of(worst, stakes_of(FIRST)) != ""
    assert news_of(worst, stakes_of(FIRST).keys() | stakes_of(worst).keys()) == ""


def test_a_cause_that_the_replay_has_proven_is_news_and_a_likely_one_is_not() -> None:
    said = ["the logarithm of zero, in the loss at train.py:12"]
    proven = Cause(cause="log_of_zero", confidence=0.97, supports=said)
    operation = {"step": 12, "found": "operation", "operation": "Log"}
    news = news_of(after(causes=[proven], first_bad_operation=operation), stakes_of(FIRST))
    assert news == "its cause is found: the logarithm of zero, in the loss at train.py:12"
    likely = after(causes=[replace(proven, confidence=0.75)], first_bad_operation=operation)
    assert news_of(likely, stakes_of(FIRST)) == ""
    assert news_of(after(causes=[proven]), stakes_of(FIRST)) == ""  # counted in the row, told at once
