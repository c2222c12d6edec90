"""Causes of updates out of proportion to the loss scale. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from trainvitals_server.case import Case, Guess

HUGE_NORM = 100.0  # times the loss, in the first row: by itself no model has such a gradient
ORDINARY_RATE = 0.1  # below it a learning rate is not what blows up within two steps
INVARIANT = ("Adam", "AdamW", "Nadam", "Adamax", "RMSprop", "Adagrad", "Lamb", "Lion")


def misused(case: Case) -> Iterator[Guess]:
    """Explain updates that are too small by the factor of the scale."""
    if case.incident.kind != "scaler_misuse":
        return
    facts, optimizer = case.facts, case.context.environment.optimizer
    norm, scale = facts.get("norm"), facts.get("loss_scale")
    said = [
        f"times the scale of {scale:g} the gradient norm of {norm:.3g} would be about as large as the loss"
    ]
    doubts = (
        [f"{optimizer} steps as far with small gradients, up to its epsilon"]
        if optimizer in INVARIANT
        else []
    )
    seen = bool(facts.get("skips"))
    overflowed = ["an update was skipped: the gradients did carry the scale once"]
    none = ["no update was ever skipped: nothing shows that the gradients carried the scale"]
    yield Guess("loss_scale_not_applied", 0.3 if seen else 0.7, said + ([] if seen else none),
                doubts + (overflowed if seen else []))  # fmt: skip
    yield Guess(
        "gradients_unscaled_twice", 0.65 if seen else 0.45, said + (overflowed if seen else []), doubts
    )


def never_unscaled(case: Case) -> Iterator[Guess]:
    """Explain a blow-up in the first steps of a loop of the user's own."""
    context = case.context
    environment, first = context.environment, context.origin
    is_loop = bool(environment.optimizer) and not environment.loss and not environment.loss_scaling
    is_early = first.step is not None and first.step <= case.incident.detected_step
    if not (case.is_growing and is_loop and is_early) or environment.optimizer in INVARIANT:
        return
    if not case.facts.get("rows_before", 1) or not first.norm >= HUGE_NORM * abs(first.loss) > 0:
        return
    times = f"{first.norm / abs(first.loss):.0f} times the loss of {first.loss:.4g}"
    said = [f"in the first row the gradient norm is {first.norm:.4g}, {times}"]
    doubts = ["inputs that are not normalised give such a gradient, too"]
    rate = context.rates.first
    is_ordinary = rate is not None and rate <= ORDINARY_RATE
    if is_ordinary:
        said.append(f"the learning rate is an ordinary {rate:.3g}")
    said.append("the loop is your own: nothing divides by a loss scale of your own but your code")
    yield Guess("gradients_not_unscaled", 0.82 if is_ordinary else 0.5, said, doubts)
