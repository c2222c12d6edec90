"""Advice with the numbers of the very run: its optimizer, its rates, its labels, its checkpoints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stuck import never_learning
from traces import batch_of, epsilon, gradual
from trainvitals.wire import Environment
from trainvitals_server.batch import Batch
from trainvitals_server.case import Context, Guess
from trainvitals_server.causes import open_case
from trainvitals_server.detect.rates import RateSummary
from trainvitals_server.first_bad import FirstBad
from trainvitals_server.fold import scan
from trainvitals_server.remedies import fix_of, snippet_of

ADAM = Context(Environment(optimizer="Adam", optimizer_config={"epsilon": 1e-16}))


def advice(batch: Batch, kind: str, cause: str, context: Context) -> str:
    (incident,) = [item for item in scan([batch], environment=context.environment) if item.kind == kind]
    return fix_of(open_case(incident, context), Guess(cause, 0.5))


@pytest.mark.parametrize(("optimizer", "rate"), [("Adam", "1e-3"), ("SGD", "1e-2"), ("Lion", "1e-3")])
def test_a_rate_to_begin_with_is_that_of_the_users_optimizer(optimizer: str, rate: str) -> None:
    context = Context(Environment(optimizer=optimizer))
    text = advice(never_learning(), "plateau", "learning_rate_too_low", context)
    assert text.startswith(
        f"Raise the learning rate from 1e-09 to about {rate}, where one usually begins with"
    )
    assert optimizer in text


def test_a_lower_rate_is_told_in_numbers_and_clipping_only_where_it_is_not_set() -> None:
    context = Context(rates=RateSummary(last=0.1), checkpoints=(200,))
    clipped = replace(context, environment=Environment(optimizer_config={"clipnorm": 1.0}))
    text = advice(gradual(), "gradual_divergence", "learning_rate_too_high", context)
    assert "checkpoint of step 200" in text
    assert "a learning rate of 0.01 to 0.033 (it was 0.1)" in text
    assert "clipnorm" in text
    assert "clipnorm" not in advice(gradual(), "gradual_divergence", "learning_rate_too_high", clipped)


def test_an_epsilon_is_told_against_the_users_own_and_kerass_default() -> None:
    text = advice(epsilon(), "optimizer_epsilon", "optimizer_epsilon", ADAM)
    assert text.startswith("Set epsilon to 1e-4 in place of 1e-16 (Keras's default is 1e-07).")


@pytest.mark.parametrize(
    ("loss", "said"), [("binary_crossentropy", "(y + 1) / 2"), ("SparseCategoricalCrossentropy", "class ids")]
)
def test_labels_are_checked_against_the_range_of_this_loss(loss: str, said: str) -> None:
    batch = batch_of({"loss": 0.5 - 0.01 * np.arange(120)})
    text = advice(batch, "runaway_negative_loss", "bad_label", Context(Environment(loss=loss)))
    assert said in text
    assert ("class ids" in text) is (loss != "binary_crossentropy")


def test_a_loop_of_ones_own_is_not_told_to_compile_its_model_again() -> None:
    of_fit = Context(
        Environment(versions={"keras": "3"}, optimizer="Adam", steps_per_execution=1, run_eagerly=False)
    )
    of_loop = Context(Environment(versions={"keras": "3"}, optimizer="Adam"))
    for context, name in ((of_fit, "run_eagerly"), (of_loop, "replay=")):
        (incident,) = [item for item in scan([gradual()]) if item.severity == "critical"]
        case, guess = open_case(incident, context), Guess("unknown", 0.2)
        assert name in fix_of(case, guess)
        assert name in snippet_of(case, guess)


def test_a_loop_whose_step_was_replayed_is_not_told_to_have_it_replayed() -> None:
    of_loop = Context(Environment(versions={"keras": "3"}, optimizer="Adam"))
    (incident,) = [item for item in scan([gradual()]) if item.severity == "critical"]
    replayed = replace(open_case(incident, of_loop), first_bad=FirstBad(step=3, found="nothing"))
    guess = Guess("unknown", 0.2)
    assert "replay=" not in fix_of(replayed, guess) + snippet_of(replayed, guess)
    assert "check_numerics" in fix_of(replayed, guess)


@pytest.mark.parametrize("is_loop", [True, False])
def test_a_batch_whose_bad_values_were_not_counted_is_told_how_to_have_them_counted(is_loop: bool) -> None:
    known = Environment(versions={"keras": "3"}, optimizer="Adam", run_eagerly=None if is_loop else False)
    loss = np.where(np.arange(60) >= 40, np.nan, 1.0 / (1 + np.arange(60)))
    (incident,) = scan([batch_of({"loss": loss})], environment=known)
    said = [text for cause in incident.causes if cause.cause == "bad_input" for text in cause.supports]
    assert len(said) == 1
    assert "were not counted" in said[0]
    assert ("reporter.observe(..., batch=(x, y))" in said[0]) is is_loop
