"""From an incident and its context to words: verdict, why, next, ranked causes, usable weights. Pure."""

from __future__ import annotations

import math

from msgspec.structs import replace

from trainvitals_server.autopsy_words import autopsy_lines, autopsy_steps
from trainvitals_server.case import SURE, Case, Context, Guess
from trainvitals_server.catalogue import CATALOGUE
from trainvitals_server.causes import open_case, rank, with_texts
from trainvitals_server.detect.rows import Flags
from trainvitals_server.finding import Finding
from trainvitals_server.first_bad import NOTHING
from trainvitals_server.incident import Incident, Weights
from trainvitals_server.suspects import LOSS
from trainvitals_server.verdicts import is_in_headline, verdict_of

MAX_WHY = 8
MAX_BAD_LAYERS = 32
EVALUATE_AGAIN = (
    "Set `model.run_eagerly = True`, call `tf.debugging.enable_check_numerics()` and then `model.evaluate` "
    "on the validation data: it names the first operation whose result is not finite."
)
APPLYING = ("sudden_nan", "nonfinite_gradient", "immediate_blowup", "nonfinite_weight")
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
        verdict=verdict_of(case, guesses[0] if guesses else None, is_damaged=weights.usable is False),
        why=list(dict.fromkeys(_why(case, guesses, layers, layer, weights)))[:MAX_WHY],
        next=list(dict.fromkeys(_next(case, guesses, weights))),
        weights=weights,
        causes=[with_texts(guess) for guess in guesses],
        first_bad_layers=_named_first(layers, layer)[:MAX_BAD_LAYERS],
    )


def _bad_layers(facts: Flags) -> list[str]:
    """Return the layers with non-finite gradients in the first bad row, where the trouble entered first.

    The backward pass runs from the loss to the input: among some bad layers the last in the model's order is
    where it began.
    """
    text = facts.get("bad_layers")
    names = text.split("\n") if isinstance(text, str) and text else []
    return names[::-1]


def _named_first(layers: list[str], layer: str | None) -> list[str]:
    """All that turned in one step did so in an order that nobody can know; the suspect goes first."""
    return [layer, *(name for name in layers if name != layer)] if layer in layers and layer else layers


def _first_bad_layer(case: Case, guesses: list[Guess], layers: list[str]) -> str | None:
    replayed = None if case.is_growing else case.first_bad
    if replayed is not None and replayed.layer:
        return _of_model(case, replayed.layer)
    if replayed is not None and replayed.is_of_loss:
        return LOSS  # however few gradients it has spoilt
    if layers and len(layers) < int(case.facts.get("layers") or 0):
        return layers[0]
    suspect = guesses[0].layer if guesses else None
    largest = case.facts.get("largest_layer") if case.is_growing else None
    return suspect or (str(largest) if largest else None) or case.incident.layer


def _of_model(case: Case, path: str) -> str:
    """Return the layer that a path, which may be a variable's, lies in."""
    known = [layer.name for layer in case.context.layers if path.startswith(f"{layer.name}/")]
    return max(known, key=len, default=path)


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
    counted = [item.detected_step - 1 for item in incident.findings if item.facts.get("weights_nonfinite")]
    written = [item.onset_step for item in incident.findings if _was_applied(item)]
    # The weights of a row are counted before its update. No guard of Keras keeps a bad gradient out.
    if case.first_bad is not None and case.first_bad.found == "weight":
        since = case.first_bad.weights_bad_since
        return False, max(case.first_bad.step - 1, 0) if since is None else since
    if counted or (written and case.context.environment.loss and not case.is_growing):
        return False, max(min(written + counted), 0)
    if case.scaler.get("loss_scale") == 0.0:
        return False, next(
            item.detected_step for item in incident.findings
            if item.kind == "loss_scale_collapse" and item.facts.get("loss_scale") == 0.0
        )  # fmt: skip
    survived = any(finding.facts.get("weights_survived") for finding in incident.findings)
    recovered = facts.get("outcome") == "recovered" or incident.state == "withdrawn"
    if survived or recovered or incident.kind in HARMLESS or _was_skipped(case):
        return True, None
    spoiled = case.is_nonfinite and (facts.get("grad_nonfinite") or facts.get("gradient_nonfinite"))
    if spoiled or case.is_growing:
        return False, incident.onset_step
    return None, None


def _was_applied(finding: Finding) -> bool:
    """Whether the optimizer applied a gradient that is not finite in the row of `finding`."""
    facts = finding.facts
    norm = facts.get("grad_norm")
    is_nan = isinstance(norm, float) and math.isnan(norm)
    is_bad = bool(facts.get("grad_nonfinite") or facts.get("gradient_nonfinite") or is_nan)
    return is_bad and not facts.get("skipped") and finding.kind in APPLYING


def _was_skipped(case: Case) -> bool:
    """Whether the scaler kept the bad gradient out of the weights."""
    facts = case.facts
    if case.incident.kind == "loss_scale_collapse":
        return facts.get("loss_scale") != 0.0
    return case.is_nonfinite and bool(facts.get("skipped"))


def _why(
    case: Case, guesses: list[Guess], layers: list[str], layer: str | None, weights: Weights
) -> list[str]:
    lines = _observed(case)[:3]
    for best in guesses[:1]:
        if is_in_headline(case, best):
            break
        word = "" if best.confidence >= SURE or best.cause == "unknown" else "Likely: "
        title = f"{word}{CATALOGUE[best.cause].title}."
        lines.append(title[0].upper() + title[1:])
    lines += autopsy_lines(case.first_bad) if case.first_bad else []
    if case.first_bad is None or case.first_bad.found == NOTHING:
        lines += _about_layers(case, layers, layer)
    lines += _about_scaler(case)
    lines += _about_weights(case, weights)
    return lines


def _observed(case: Case) -> list[str]:
    """Return what was seen; an end that did not last is none."""
    incident = case.incident
    gone = {
        item.text for finding in incident.findings if finding.phase == "resolve" for item in finding.evidence
    }
    return [item.text for item in incident.evidence if incident.state != "open" or item.text not in gone]


def _about_scaler(case: Case) -> list[str]:
    if "sink_rows" not in case.scaler:
        return []
    told = [item for item in case.incident.findings if item.kind == "loss_scale_collapse"][-1]
    small = "In float16 the scaled gradients round to 0 long before: the layers then get no update."
    return [*(f"{item.text[0].upper()}{item.text[1:]}." for item in told.evidence), small]


def _about_layers(case: Case, layers: list[str], layer: str | None) -> list[str]:
    total = int(case.facts.get("layers") or 0)
    if not layers:
        return []
    if len(layers) < total:
        verb = "has" if len(layers) == 1 else "have"
        first = f"`{layers[0]}` is the first layer with a non-finite gradient"
        many = f"{len(layers)} of {total} layers {verb} non-finite gradients"
        return [f"{many}; following backpropagation from the loss, {first}."]
    if total == 1:
        return []
    all_of = "Both layers'" if total == 2 else f"All {total} layers'"
    place = "the loss function" if layer == LOSS else f"`{layer}`"
    suspect = f"the graph points at {place}" if layer else "the gradients alone cannot name the layer"
    text = f"{all_of} gradients became non-finite in the same step, so the NaN arose in the forward pass or"
    return [f"{text} the loss; {suspect}."]


def _about_weights(case: Case, weights: Weights) -> list[str]:
    if weights.usable is None:
        return []
    if weights.usable:
        return [
            "The weights are still good, but only until the scale is 0: save them now."
            if case.scaler
            else "The weights are still good."
        ]
    return [f"Weights saved {_since(weights)} are unusable."]


def _since(weights: Weights) -> str:
    return f"from step {weights.bad_since} on"


def _fix(case: Case, best: Guess) -> str:
    count = case.facts.get("label_nonfinite")
    if best.cause == "bad_label" and isinstance(count, float) and count > 0:
        values = (
            "1 label value of this batch is" if count == 1 else f"{count:g} label values of this batch are"
        )
        return f"{values} NaN/Inf: find them with np.flatnonzero(~np.isfinite(y))."
    if best.cause == "unknown" and case.incident.kind == "validation_nonfinite":
        return EVALUATE_AGAIN
    return CATALOGUE[best.cause].fix


def _next(case: Case, guesses: list[Guess], weights: Weights) -> list[str]:
    if not guesses:
        return ["Nothing: this is how a loss scaler finds its scale."]
    lines = [
        _fix(case, guesses[0]),
        *(autopsy_steps(case.first_bad) if case.first_bad and not case.is_growing else []),
    ]
    if guesses[0].cause == "loss_scale_floor":
        lines += [_fix(case, guess) for guess in guesses[1:2] if guess.confidence >= SURE]  # the reason
    if case.scaler and case.incident.kind != "loss_scale_collapse":
        lines.append(CATALOGUE["loss_scale_floor"].fix)
    if weights.usable is False:
        if weights.last_checkpoint_step is not None:
            lines.append(
                f"Restart from the checkpoint of step {weights.last_checkpoint_step}: it is "
                f"older than the onset."
            )
        else:
            lines.append(f"Do not use weights saved {_since(weights)}.")
    is_seen = case.first_bad is not None and case.first_bad.found != NOTHING
    if case.is_nonfinite and guesses[0].confidence < SURE and not is_seen:
        lines.append(CATALOGUE["unknown"].fix)
    return lines
