"""From an incident and its context to words: verdict, why, next, ranked causes, usable weights. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from trainvitals_server.case import Case, Context, Guess
from trainvitals_server.catalogue import CATALOGUE
from trainvitals_server.causes import open_case, rank, with_texts
from trainvitals_server.detect.rows import Flags
from trainvitals_server.incident import Incident, Weights
from trainvitals_server.verdicts import verdict_of

SURE = 0.9  # above it a cause is stated, below it is "likely"
MAX_WHY = 8
MAX_BAD_LAYERS = 32
HARMLESS = ("validation_nonfinite", "metric_nonfinite", "transient_overflow", "slow_steps")


def tell(incident: Incident, context: Context) -> Incident:
    """Return the incident in words."""
    case = open_case(incident, context)
    guesses = rank(case)
    layers = _bad_layers(case.facts)
    layer = _first_bad_layer(case, guesses, layers)
    weights = _weights(case)
    return replace(
        incident,
        layer=layer,
        verdict=verdict_of(case),
        why=_why(case, guesses, layers, layer, weights)[:MAX_WHY],
        next=_next(case, guesses, weights),
        weights=weights,
        causes=[with_texts(guess) for guess in guesses],
        first_bad_layers=layers[:MAX_BAD_LAYERS],
    )


def _bad_layers(facts: Flags) -> list[str]:
    """Return the layers with non-finite gradients in the first bad row, where the trouble entered first.

    The backward pass runs from the loss to the input: among some bad layers the last in the model's order is
    where it began.
    """
    text = facts.get("bad_layers")
    names = text.split("\n") if isinstance(text, str) and text else []
    return names[::-1]


def _first_bad_layer(case: Case, guesses: list[Guess], layers: list[str]) -> str | None:
    if layers and len(layers) < int(case.facts.get("layers") or 0):
        return layers[0]
    suspect = guesses[0].layer if guesses else None
    largest = case.facts.get("largest_layer") if case.is_growing else None
    return suspect or (str(largest) if largest else None) or case.incident.layer


def _weights(case: Case) -> Weights:
    incident = case.incident
    usable, since = _usable(case)
    if usable is False and case.is_growing:
        since = incident.onset_step
    before = [step for step in case.context.checkpoints if step < incident.onset_step]
    return Weights(usable=usable, bad_since=since, last_checkpoint_step=max(before, default=None))


def _usable(case: Case) -> tuple[bool | None, int | None]:
    """Return whether the weights are usable, None if these signals cannot tell, and since when not."""
    incident, facts = case.incident, case.facts
    bad = [finding.onset_step for finding in incident.findings if finding.facts.get("weights_nonfinite")]
    if bad:
        return False, bad[0]
    survived = any(finding.facts.get("weights_survived") for finding in incident.findings)
    recovered = facts.get("outcome") == "recovered" or incident.state == "withdrawn"
    if survived or recovered or incident.kind in HARMLESS or _was_skipped(case):
        return True, None
    spoiled = case.is_nonfinite and (facts.get("grad_nonfinite") or facts.get("gradient_nonfinite"))
    if spoiled or case.is_growing:
        return False, incident.onset_step
    return None, None


def _was_skipped(case: Case) -> bool:
    """Whether the scaler kept the bad gradient out of the weights."""
    facts = case.facts
    if case.incident.kind == "loss_scale_collapse":
        return facts.get("loss_scale") != 0.0
    return case.is_nonfinite and bool(facts.get("skipped"))


def _why(
    case: Case, guesses: list[Guess], layers: list[str], layer: str | None, weights: Weights
) -> list[str]:
    lines = [evidence.text for evidence in case.incident.evidence[:3]]
    for best in guesses[:1]:
        word = "" if best.confidence >= SURE else "Likely: "
        lines.append(f"{word}{CATALOGUE[best.cause].title}.")
        lines += best.supports[:3]
    lines += _about_layers(case, layers, layer)
    lines += _about_weights(weights)
    return lines


def _about_layers(case: Case, layers: list[str], layer: str | None) -> list[str]:
    total = int(case.facts.get("layers") or 0)
    if not layers:
        return []
    if len(layers) < total:
        first = f"going back from the loss, {layers[0]} is first"
        return [f"{len(layers)} of {total} layers have non-finite gradients; {first}."]
    origin = "it came from the forward pass or the loss, and the gradients alone cannot name the layer"
    suspect = f"; the operations of the step point at {layer}" if layer else ""
    return [f"All {total} layers have non-finite gradients at once: {origin}{suspect}."]


def _about_weights(weights: Weights) -> list[str]:
    if weights.usable is None:
        return []
    if weights.usable:
        return ["The weights are still good."]
    return [f"The weights are bad since step {weights.bad_since}."]


def _next(case: Case, guesses: list[Guess], weights: Weights) -> list[str]:
    if not guesses:
        return ["Nothing: this is how a loss scaler finds its scale."]
    lines = [CATALOGUE[guesses[0].cause].fix]
    if weights.usable is False:
        if weights.last_checkpoint_step is not None:
            lines.append(
                f"Restart from the checkpoint of step {weights.last_checkpoint_step}: it is "
                f"older than the onset."
            )
        else:
            lines.append(f"Do not use weights saved at or after step {weights.bad_since}.")
    if case.is_nonfinite and guesses[0].confidence < SURE:
        lines.append(CATALOGUE["unknown"].fix)
    return lines
