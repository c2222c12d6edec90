"""Causes of runs that do not fail but do not learn, and of what goes wrong beside the training. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from trainvitals_server.case import Case, Guess
from trainvitals_server.piling import pile_of
from trainvitals_server.updates import large_update, tiny_update

ADAPTIVE = ("Adam", "AdamW", "Nadam", "Adamax", "RMSprop", "Adagrad", "Lamb", "Lion")
TOO_LITTLE = 0.1  # of the noise: nobody could see such a fall
LEAST_SHARE = 1e-3  # of the loss, where it has no noise
TYPICAL_PARAMETERS = 10_000  # where the model's size is not known
TINY_RATE = 1e-6
HIGH_RATE = 0.05


def plateau(case: Case) -> Iterator[Guess]:
    """Explain a loss that does not fall."""
    if case.incident.kind != "plateau":
        return
    if case.facts.get("typical_norm") == 0:
        yield from _without_gradient(case, "the gradient norm is exactly 0")
        return
    yield from _too_low(case)
    classes, rate = case.facts.get("classes"), case.context.rates.last
    if classes:
        yield Guess("constant_output", 0.75, [f"the loss is that of guessing among {classes} classes"])
    else:
        yield Guess(
            "constant_output", 0.35, ["a model that answers the same for all samples looks like this"]
        )
    if rate is not None and rate >= HIGH_RATE:
        said = [f"the learning rate is {rate:.3g}; one large step can throw a model off for good"]
        yield Guess("learning_rate_too_high", 0.7 if classes else 0.5, said)


def _too_low(case: Case) -> Iterator[Guess]:
    facts, rate = case.facts, case.facts.get("learning_rate")
    noise, level = facts.get("noise"), facts.get("level")
    if not isinstance(rate, float) or not isinstance(noise, float) or not isinstance(level, float):
        yield Guess("learning_rate_too_low", 0.4, [], ["the learning rate is not known"])
        return
    said = [f"the learning rate is {rate:.3g}", *tiny_update(case)]
    reach = _possible_fall(case, rate)
    if reach is None:
        yield Guess("learning_rate_too_low", 0.7 if rate < TINY_RATE else 0.3, said)
        return
    steps, norm = facts.get("span_steps"), facts.get("typical_norm")
    could = f"{steps} steps at this rate could lower the loss by {reach:.2g}"
    could = f"with gradient norms of about {norm:.2g}, {could}"
    if reach < TOO_LITTLE * max(noise, LEAST_SHARE * abs(level)):
        low = f"the learning rate of {rate:.3g} is so low that the weights hardly move"
        yield Guess(
            "learning_rate_too_low", 0.92, [low, f"{could}; it varies by {noise:.2g} anyway", *said[1:]]
        )
    else:
        yield Guess("learning_rate_too_low", 0.2, said, [f"{could}, and they did not"])


def _possible_fall(case: Case, rate: float) -> float | None:
    """Return how far the loss could have come down, to first order."""
    norm, steps = case.facts.get("typical_norm"), case.facts.get("span_steps")
    if not isinstance(norm, float) or not isinstance(steps, int):
        return None
    if case.context.environment.optimizer in ADAPTIVE:
        parameters = sum(layer.parameters for layer in case.context.layers) or TYPICAL_PARAMETERS
        return steps * rate * norm * math.sqrt(parameters)
    return steps * rate * norm * norm


def constant(case: Case) -> Iterator[Guess]:
    """Explain a model that stands still."""
    if case.incident.kind != "silent_constant":
        return
    if case.facts.get("how") == "zero_gradient":
        yield from _without_gradient(case, "no weight gets any gradient")
    else:
        said = ["a NaN that is printed as 0, or replaced by it, hides what happened"]
        yield Guess("unknown", 0.4, said)


def _without_gradient(case: Case, said: str) -> Iterator[Guess]:
    softmax = case.of_kind("Softmax")
    if softmax:
        where = f"the training step has a softmax ({softmax[0].name})"
        doubts = ["how many units it has is not known"]
        yield Guess("single_unit_softmax", 0.7, [said, where], doubts, softmax[0].layer)
    yield Guess("constant_output", 0.6, [said])
    yield Guess("dead_relu", 0.35, [said], ["then the last layer's bias would still get a gradient"])


def oscillation(case: Case) -> Iterator[Guess]:
    """Explain a loss that bounces."""
    if case.incident.kind != "oscillation":
        return
    rate = case.context.rates.last
    known = [f"the learning rate is {rate:.3g}"] if rate is not None else []
    known += large_update(case)
    if case.facts.get("alternates"):
        said = ["up in one row and down in the next is how steps overshoot a minimum"]
        yield Guess("learning_rate_too_high", 0.85, [*said, *known])
    else:
        said = ["it had learned with less noise and now jumps back and forth"]
        yield Guess("learning_rate_too_high", 0.7, [*said, *known])
        yield Guess("no_gradient_clipping", 0.35)
        yield Guess("data_outlier", 0.3, ["batches that differ much from each other look alike"])


def runaway(case: Case) -> Iterator[Guess]:
    """Explain a loss that falls without bound."""
    if case.incident.kind != "runaway_negative_loss":
        return
    if case.facts.get("impossible"):
        loss = case.context.environment.loss
        yield Guess("bad_label", 0.85, [f"{loss} is never negative while the labels are in its range"])
        yield Guess("bad_sample_weight", 0.4, ["a negative sample or class weight turns the sign of a loss"])
        yield Guess("unbounded_loss", 0.35, ["a negative term of `add_loss` is added to the loss"])
    else:
        yield Guess("bad_label", 0.75, ["labels outside the loss's range turn its minimum into an abyss"])
        yield Guess("unbounded_loss", 0.5, ["it falls as fast as ever, far below zero"])


def stuck_scale(case: Case) -> Iterator[Guess]:
    """Explain a loss scale that stays at the bottom."""
    if case.incident.kind != "loss_scale_stuck_low":
        return
    said = [f"even at a scale of {case.facts.get('stuck_scale'):g} updates are skipped"]
    yield Guess("float16_overflow", 0.6, said)
    yield Guess(
        "loss_scale_floor", 0.5, ["a lower scale does not heal it: the gradient itself is not finite"]
    )


def beside(case: Case) -> Iterator[Guess]:
    """Explain what goes wrong while the training itself goes on."""
    kind, facts = case.incident.kind, case.facts
    if kind == "overfitting":
        yield Guess("overfitting", 0.8, ["training and validation go apart since the best validation"])
    elif kind == "slow_steps":
        yield Guess("slow_input", 0.5, ["the model and its step are the same as before"])
    elif kind == "metric_nonfinite":
        said = [f"{facts.get('metric')} is not finite and the loss is: they see the same outputs"]
        yield Guess("metric_undefined", 0.7, said)


def not_reset(case: Case) -> Iterator[Guess]:
    """Explain growth in a loop of the user's own by gradients that pile up."""
    environment = case.context.environment
    is_loop = bool(environment.optimizer) and not environment.loss
    pile = pile_of(case.context.origin) if case.is_growing and is_loop else None
    if pile is None:
        return
    span = f"from step {pile.first_step} to {pile.last_step}"
    grew = f"{span} the gradient norm grew evenly to {pile.times:.2g} times the first, and the loss did not"
    said = [grew, "a sum of gradients that is never set back to 0 grows like this", "the loop is your own"]
    doubts = ["gradients can also grow while a loss falls where the last layer starts near 0"]
    yield Guess("gradient_accumulator_not_reset", 0.85, said, doubts)


STUCK_RULES = (plateau, constant, oscillation, runaway, stuck_scale, beside, not_reset)
