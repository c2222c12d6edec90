"""Causes of what single layers show, and of half precision that overflows silently. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from trainvitals_server.case import Case, Guess
from trainvitals_server.output_causes import (
    dead_as_measured,
    is_measured,
    overflow_as_measured,
    saturated_as_measured,
)

BATCH_NORM = "BatchNormalization"
DEEP = 6  # layers over which a fading gradient is no surprise
NO_GRADIENT = "the gradient is exactly 0 while layers nearer to the loss still get one"
NO_ACTIVATIONS = "only the gradients show it; activations would prove it, and were not measured"


def dead(case: Case) -> Iterator[Guess]:
    """Explain gradients that are exactly 0, and units that never fire."""
    if case.incident.kind != "dead_units":
        return
    if is_measured(case):
        yield from dead_as_measured(case)
        return
    facts, rate = case.facts, case.context.rates
    said = [NO_GRADIENT]
    if facts.get("from_the_start"):
        yield Guess("dead_relu", 0.5, said, [NO_ACTIVATIONS, "it has never had a gradient"])
        yield Guess("saturated_activation", 0.4, said, [NO_ACTIVATIONS])
        yield Guess("initialisation", 0.35, ["it has been so since the first step"])
        return
    thrown = [f"the norm of its last gradient was {facts['last_norm']:.3g}"] if facts.get("last_norm") else []
    yield Guess("dead_relu", 0.8, [*said, *thrown], [NO_ACTIVATIONS])
    rates = [f"the learning rate was {rate.last:.3g}"] if rate.last is not None else []
    yield Guess("learning_rate_too_high", 0.55, ["one update threw the units out of their range", *rates])
    yield Guess(
        "saturated_activation",
        0.3,
        ["only if its activation is a sigmoid or tanh: at its very end that also gives exactly 0"],
    )


def fading(case: Case) -> Iterator[Guess]:
    """Explain gradients that fade on their way back."""
    kind, facts = case.incident.kind, case.facts
    if kind not in ("vanishing_gradient", "saturation"):
        return
    if "saturated_share" in facts:
        yield from saturated_as_measured(case)
        return
    share, top = facts.get("share"), facts.get("top_layer")
    said = [f"its gradient is {share:.2g} times that of {top}"] if isinstance(share, float) else []
    start = facts.get("from_the_start")
    normalised = any(layer.kind == BATCH_NORM for layer in case.context.layers)
    doubts = ["there is batch normalisation, which usually prevents it"] if normalised else []
    if kind == "vanishing_gradient":
        many = int(facts.get("layers") or 0)
        deep = [f"the gradient shrinks from layer to layer, over {many} layers"] if many >= DEEP else []
        yield Guess("vanishing_depth", 0.6 if normalised else 0.85, [*said, *deep], doubts)
        yield Guess("saturated_activation", 0.4, ["a saturated sigmoid or tanh shrinks it further"],
                    [NO_ACTIVATIONS])  # fmt: skip
    else:
        cut = "the gradient is lost at this one layer, not little by little"
        yield Guess("saturated_activation", 0.75, [*said, cut], [NO_ACTIVATIONS, *doubts])
        yield Guess("vanishing_depth", 0.25, said)
        if not start:
            yield Guess("learning_rate_too_high", 0.45, ["it happened within a few steps, not by itself"])
    if start:
        yield Guess("initialisation", 0.45, ["it has been so since the first step"])


def silent_overflow(case: Case) -> Iterator[Guess]:
    """Explain a loss that climbs back in float16 while the gradient shrinks."""
    if case.incident.kind != "activation_overflow":
        return
    if "largest_output" in case.facts:
        yield from overflow_as_measured(case)
        return
    said = [
        f"the run computes in {case.context.environment.dtype_policy}, whose numbers end at 65504",
        "the gradient shrinks while the loss rises: a learning rate that is too high makes it grow",
    ]
    norms = [suspect for suspect in case.of_kind("RealDiv", "Reciprocal", "Rsqrt") if not suspect.guarded]
    said += [f"a division can hide infinity (x / Inf is 0): {suspect.name}" for suspect in norms[:1]]
    yield Guess("float16_activation_overflow", 0.8 if norms else 0.6, said, [NO_ACTIVATIONS])
    yield Guess("data_outlier", 0.3, ["inputs that drift far from those learned from would look alike"])
    yield Guess("learning_rate_too_high", 0.2, [], ["the gradient does not grow"])
