"""What holds for the words of every incident: no false comfort, no advice against advice, no old forecast."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest

from failures import FAILING as PATTERNS
from failures import failing
from layered import FAILING_LAYERS
from scaled import forgets, not_applied, unscaled_twice
from stuck import STUCK
from traces import FAILING
from trainvitals.wire import Environment
from trainvitals_server.batch import Batch
from trainvitals_server.fold import scan
from trainvitals_server.incident import Incident

SEEDS = 2
SHARES = (0.6, 1.0)  # of a run: its incidents are looked at while they last, too
ENVIRONMENTS = {
    "adam": Environment(
        optimizer="Adam",
        optimizer_config={"epsilon": 1e-16},
        loss="binary_crossentropy",
        dtype_policy="float32",
    ),
    "sgd": Environment(
        optimizer="SGD", optimizer_config={"clipnorm": 1.0}, loss="mse", dtype_policy="float32"
    ),
    "half": Environment(optimizer="Adam", loss="mse", dtype_policy="mixed_float16", loss_scaling=True),
    "loop": Environment(optimizer="SGD"),
    "unknown": Environment(),
}


def in_an_odd_run(pattern: str) -> Callable[[int], Batch]:
    """Return what makes a failure inside of a healthy run that only looks odd."""
    return lambda seed: failing(pattern, seed).batch


MAKERS: dict[str, Callable[[int], Batch]] = {
    **FAILING,
    **{f"in_an_odd_run:{name}": in_an_odd_run(name) for name in PATTERNS},
    **{name: maker for name, (_, maker) in STUCK.items()},
    **FAILING_LAYERS,
    **{maker.__name__: maker for maker in (not_applied, unscaled_twice, forgets)},
}
A_WEIGHT = re.compile(r"[Ww]eights|layer")
BROKEN = re.compile(r"  | [.;,]|\{|\}|\bNone\b|mistake in trainvitals")


@cache
def incidents(environment: str) -> tuple[Incident, ...]:
    """Return what is told of all runs, whole and while they last."""
    found: list[Incident] = []
    for maker in MAKERS.values():
        for seed in range(SEEDS):
            batch = maker(seed)
            for share in SHARES:
                part = batch.slice(0, int(share * len(batch)))
                found += scan([part], environment=ENVIRONMENTS[environment], layers=batch.layers)
    return tuple(found)


def told(incident: Incident) -> list[str]:
    """Return all that a user reads of it."""
    return [incident.verdict, *incident.why, *incident.next, *(cause.fix for cause in incident.causes)]


pytestmark = pytest.mark.parametrize("environment", ENVIRONMENTS)


def test_every_incident_says_what_its_weights_are_good_for(environment: str) -> None:
    for incident in incidents(environment):
        assert A_WEIGHT.search(incident.why[-1]), incident.why
        assert not any("eights saved" in line for line in incident.why[:-1])


def test_what_lost_its_weights_is_never_over(environment: str) -> None:
    lost = [incident for incident in incidents(environment) if incident.weights.usable is False]
    assert lost
    for incident in lost:
        assert incident.state == "open"
        stops = any(line.startswith("Stop the run") for line in incident.next)
        assert stops is (incident.severity == "critical")
        assert any("tart again" in line or "Restart from" in line for line in incident.next)
        assert "passed" not in incident.verdict


def test_that_a_symptom_is_gone_is_not_told_as_a_cure(environment: str) -> None:
    over = [item for item in incidents(environment) if item.state == "resolved" and item.severity != "info"]
    assert over
    assert all("It has passed" in item.verdict and "cause" in item.verdict for item in over)


def test_the_end_is_not_forecast_once_it_is_there(environment: str) -> None:
    for incident in incidents(environment):
        if incident.nonfinite_step is not None or incident.state != "open":
            assert not any("if it goes on like this" in line for line in told(incident))


def test_no_advice_speaks_against_another(environment: str) -> None:
    for incident in incidents(environment):
        text = " ".join([*incident.next, *(cause.fix for cause in incident.causes)])
        assert not ("Raise the learning rate" in text and "lower" in text.replace("lower the loss", ""))
        assert not ("Clipping does not help" in text and re.search(r"clipnorm|Clip the", text))
        if incident.weights.usable:
            assert not any("start again" in line.lower() for line in incident.next)


def test_weights_that_are_good_need_no_restart_and_bad_ones_are_not_praised(environment: str) -> None:
    for incident in incidents(environment):
        if incident.weights.usable is False:
            assert not incident.why[-1].startswith("The weights are")
        since = incident.weights.bad_since
        assert since is None or f"from step {since} on" in incident.why[-1]


def test_a_proven_cause_stands_without_guesses(environment: str) -> None:
    for incident in incidents(environment):
        confidences = [cause.confidence for cause in incident.causes]
        assert not confidences or confidences[0] < 0.9 or min(confidences) >= 0.8


def test_sentences_are_whole(environment: str) -> None:
    for incident in incidents(environment):
        assert not [line for line in told(incident) if BROKEN.search(line)]
        assert all(line.endswith((".", "`")) or "trainvitals replay" in line for line in incident.next)
        assert len(incident.why) == len(set(incident.why))
