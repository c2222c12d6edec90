"""Causes where the outputs of layers were measured: what they prove and what they refute. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from trainvitals_server.case import Case, Guess
from trainvitals_server.detect.output_proof import ALL_DEAD, SATURATED
from trainvitals_server.detect.outputs import FLOAT16_END, ONE_SIDED, SATURATED_ALONE, limit_text, silent_text

PROVEN = 0.96
REFUTED = 0.05
UNKNOWN = 0.2
FAR_FROM_END = FLOAT16_END / 100
START = "it has been so since the first step"


def is_measured(case: Case) -> bool:
    """Return whether the outputs of the layers in question were measured while they were in question."""
    return "dead_share" in case.facts or "saturated_share" in case.facts


def dead_as_measured(case: Case) -> Iterator[Guess]:
    """Explain layers without a gradient, or with units that never fire, by what they gave out."""
    facts = case.facts
    dead, saturated = _share(case, "dead_share"), _share(case, "saturated_share")
    silent = dead is not None and (dead >= ALL_DEAD or bool(facts.get("by_outputs")))
    if silent:
        yield _silent(case, dead)
    elif dead is not None:
        many = f"a share of {1 - dead:.2g} of the units of {facts.get('dead_layer')}"
        fire = f"{many} fired in step {facts.get('output_step')}"
        yield Guess("dead_relu", REFUTED, [], [fire])
        yield Guess("unknown", UNKNOWN, [f"{fire}: something else stops the gradient"])
    if saturated is not None:
        yield _saturated(case, saturated, PROVEN if saturated >= SATURATED and not silent else REFUTED)
    if facts.get("from_the_start"):
        yield Guess("initialisation", 0.5 if silent else 0.35, [START])
    elif silent:
        yield Guess(
            "learning_rate_too_high", 0.8, ["one update threw the units out of their range", *_rate(case)]
        )


def saturated_as_measured(case: Case) -> Iterator[Guess]:
    """Explain gradients that fade, or outputs at their limits, by what the layer gave out."""
    facts, share = case.facts, _share(case, "saturated_share") or 0.0
    is_so = share >= (SATURATED_ALONE if facts.get("by_outputs") else SATURATED)
    yield _saturated(case, share, PROVEN if is_so else REFUTED)
    depth = ["the gradient shrinks on its way back"] if case.incident.kind == "vanishing_gradient" else []
    if not facts.get("by_outputs"):
        yield Guess("vanishing_depth", 0.4 if is_so else 0.85, depth)
    if facts.get("from_the_start"):
        yield Guess("initialisation", 0.8, [START])
    elif is_so:
        said = "it was not so before: updates have made the inputs of the activation that large"
        yield Guess("learning_rate_too_high", 0.5, [said, *_rate(case)])


def overflow_as_measured(case: Case) -> Iterator[Guess]:
    """Explain a half-precision run by how large its layers' outputs were."""
    facts = case.facts
    size, name = facts.get("largest_output"), facts.get("output_layer")
    largest = float(size) if isinstance(size, int | float) else 0.0
    said = [f"the largest output of a float16 layer was {largest:.4g}, of {name}; float16 ends at 65504"]
    if largest >= FLOAT16_END / 10:
        yield Guess("float16_activation_overflow", PROVEN, said)
        yield Guess("learning_rate_too_high", 0.3, ["outputs that grow from step to step can come from it"])
        return
    yield Guess("float16_activation_overflow", REFUTED if largest < FAR_FROM_END else 0.3, [], said)
    yield Guess("data_outlier", 0.3, ["inputs that drift far from those learned from would look alike"])


def _silent(case: Case, share: float | None) -> Guess:
    facts = case.facts
    activation = str(facts.get("activation") or "")
    known = activation in ONE_SIDED or not activation
    text = silent_text(str(facts.get("dead_layer")), share or 0.0, int(facts.get("output_step") or 0))
    doubts = [] if known else [f"its activation is {activation}, which is seldom exactly 0"]
    return Guess("dead_relu", PROVEN if known else 0.4, [text], doubts)


def _saturated(case: Case, share: float, confidence: float) -> Guess:
    facts = case.facts
    name, step = str(facts.get("saturated_layer")), int(facts.get("output_step") or 0)
    text = limit_text(name, str(facts.get("activation") or "activation"), share, step)
    is_so = confidence == PROVEN
    return Guess("saturated_activation", confidence, [text] if is_so else [], [] if is_so else [text])


def _rate(case: Case) -> list[str]:
    rate = case.context.rates.last
    return [f"the learning rate was {rate:.3g}"] if rate is not None else []


def _share(case: Case, name: str) -> float | None:
    share = case.facts.get(name)
    return float(share) if isinstance(share, int | float) else None
