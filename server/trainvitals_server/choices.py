"""Choices: which explanations stand beside the best one, and how to tell two of them apart. Pure.

A user follows the advice that is shown: what contradicts the main advice is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainvitals_server.case import SURE, Case, Guess

STRONG = 0.8  # an explanation as strong as this stands beside a proven one
NEAR = 0.5  # confidences this close leave a choice
TIE = 0.1  # and this close there is no first
LEAST = 0.5
# What contradicts the advice or the facts of the first.
OPPOSED = {
    "optimizer_epsilon": {"learning_rate_too_high", "no_gradient_clipping"},
    "learning_rate_too_low": {"learning_rate_too_high", "constant_output", "dead_relu"},
    "learning_rate_too_high": {"learning_rate_too_low", "optimizer_epsilon"},
    "constant_output": {"learning_rate_too_low"},
    "float16_variables": {"initialisation"},
}
# The test that separates two explanations: {before} and {step} are filled in.
TESTS = {
    ("learning_rate_too_high", "data_outlier"): "How to tell: look at the batches of steps {before} and "
    "{step}. If their inputs or targets are unlike those of other batches, it is the data: drop or repair "
    "them, or use the Huber loss. If they look like the others, it is the learning rate.",
    ("loss_scale_not_applied", "gradients_unscaled_twice"): "How to tell: does your loop call "
    "`optimizer.scale_loss(loss)`? If not, that call is missing. If it does, look for a division by the "
    "scale before `apply` and take it out: `apply` divides by it itself.",
    ("bad_label", "bad_sample_weight"): "How to tell: if all labels are in range, look at the sample "
    "weights and class weights (none may be negative), then at the terms of `add_loss`.",
    ("dead_relu", "saturated_activation"): "How to tell: if this layer's activation is a ReLU, its units are "
    "dead; if it is a sigmoid or tanh, it is saturated: normalise its inputs, or start from smaller weights.",
}


def compatible(guesses: Sequence[Guess]) -> list[Guess]:
    """Return the guesses, which are in order, without what the first leaves no room for."""
    if not guesses:
        return []
    best, *others = guesses
    opposed = OPPOSED.get(best.cause, set())
    least = STRONG if best.confidence >= SURE else 0.0
    return [best, *(one for one in others if one.cause not in opposed and one.confidence >= least)]


def near_tie(guesses: Sequence[Guess]) -> Guess | None:
    """Return the second explanation where it is about as likely as the first, which nothing proves."""
    if len(guesses) < 2 or guesses[0].confidence >= SURE or guesses[1].confidence < LEAST:
        return None
    return guesses[1] if guesses[0].confidence - guesses[1].confidence <= TIE else None


def how_to_tell(case: Case, guesses: Sequence[Guess]) -> str:
    """Return the test that tells the first explanation from the next, where both are likely; "" if none."""
    if not guesses or guesses[0].confidence >= SURE or case.incident.severity == "info":
        return ""
    best = guesses[0]
    for other in guesses[1:]:
        pair = (best.cause, other.cause)
        text = TESTS.get(pair) or TESTS.get(pair[::-1])
        if text and best.confidence - other.confidence <= NEAR:
            step = case.incident.onset_step
            return text.format(before=max(step - 1, 0), step=step)
    return ""
