"""From an incident and its context to words: verdict, why, next, ranked causes, usable weights. Pure."""

from __future__ import annotations

from dataclasses import replace as with_incident

from msgspec.structs import replace

from trainvitals_server.autopsy_words import autopsy_lines, autopsy_steps
from trainvitals_server.case import SURE, Case, Context, Guess
from trainvitals_server.catalogue import CATALOGUE
from trainvitals_server.causes import open_case, rank, with_texts
from trainvitals_server.choices import how_to_tell, near_tie
from trainvitals_server.detect.forecast import FORECAST
from trainvitals_server.detect.rows import Flags
from trainvitals_server.first_bad import NOTHING
from trainvitals_server.incident import Incident, Weights
from trainvitals_server.remedies import fix_of, title_of
from trainvitals_server.saved_weights import restart_line, weights_line, weights_of
from trainvitals_server.suspects import LOSS
from trainvitals_server.verdicts import is_in_headline, verdict_of

MAX_WHY = 8
MAX_BAD_LAYERS = 32


def tell(incident: Incident, context: Context) -> Incident:
    """Return the incident in words."""
    case = open_case(incident, context)
    guesses = rank(case)
    layers = _bad_layers(case.facts)
    layer = _first_bad_layer(case, guesses, layers)
    weights = weights_of(case)
    if weights.usable is False and incident.state == "resolved":
        incident = replace(incident, state="open")  # finite losses do not mend what is NaN
        case = with_incident(case, incident=incident)
    return replace(
        incident,
        layer=layer,
        verdict=verdict_of(case, guesses[0] if guesses else None, is_damaged=weights.usable is False),
        why=[
            *list(dict.fromkeys(_why(case, guesses, layers, layer)))[: MAX_WHY - 1],
            weights_line(case, guesses[0] if guesses else None, weights),
        ],
        next=list(dict.fromkeys(_next(case, guesses, weights))),
        weights=weights,
        causes=[with_texts(case, guess) for guess in guesses],
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


def _why(case: Case, guesses: list[Guess], layers: list[str], layer: str | None) -> list[str]:
    lines = _observed(case)[:3]
    tie = near_tie(guesses)
    if tie is not None and not is_in_headline(case, guesses[0]):
        first, second = (title_of(case, guess) for guess in (guesses[0], tie))
        lines.append(f"Two candidates, about as likely: {first}; or {second}.")
    for best in guesses[:1] if tie is None else ():
        if is_in_headline(case, best):
            break
        word = "" if best.confidence >= SURE or best.cause == "unknown" else "Likely: "
        title = f"{word}{title_of(case, best)}."
        lines.append(title[0].upper() + title[1:])
    lines += autopsy_lines(case.first_bad) if case.first_bad else []
    if case.first_bad is None or case.first_bad.found == NOTHING:
        lines += _about_layers(case, layers, layer)
    return lines + _about_scaler(case)


def _observed(case: Case) -> list[str]:
    """Return what was seen; an end that did not last is none, and forecasts are the verdict's to tell."""
    incident = case.incident
    gone = {
        item.text for finding in incident.findings if finding.phase == "resolve" for item in finding.evidence
    }
    texts = [_of_all(case, item.text) for item in incident.evidence if not item.text.startswith(FORECAST)]
    return [text for text in texts if incident.state != "open" or text not in gone] + _of_float16(case)


def _of_all(case: Case, text: str) -> str:
    """Return the evidence; a count of gradient elements with how many there are, where layers tell that."""
    total = sum(layer.parameters for layer in case.context.layers if layer.trainable)
    count, found, _ = text.partition(" gradient elements are not finite")
    if not (found and count.isdigit() and int(count) <= total):
        return text
    return f"all {text}" if int(count) == total else f"{count} of {total}{text[len(count) :]}"


def _of_float16(case: Case) -> list[str]:
    """Return the newest forecast of float16's end, while it lies ahead."""
    incident = case.incident
    if incident.state != "open" or incident.nonfinite_step is not None:
        return []
    told = [
        f"from step {finding.detected_step} on, {item.text}"
        for finding in incident.findings
        for item in finding.evidence
        if item.text.startswith(FORECAST) and "float16" in item.text
    ]
    return told[-1:]


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


def _next(case: Case, guesses: list[Guess], weights: Weights) -> list[str]:
    if not guesses:
        return ["Nothing: this is how a loss scaler finds its scale."]
    test, fix = how_to_tell(case, guesses), fix_of(case, guesses[0])
    lines = [
        *([test, f"Likelier: {_short(case, guesses[0])}. {fix}"] if test else [fix]),
        *(autopsy_steps(case.first_bad) if case.first_bad and not case.is_growing else []),
    ]
    if guesses[0].cause == "loss_scale_floor":
        lines += [fix_of(case, guess) for guess in guesses[1:2] if guess.confidence >= SURE]  # the reason
    if case.scaler and case.incident.kind != "loss_scale_collapse":
        lines.append(CATALOGUE["loss_scale_floor"].fix)
    if weights.usable is False:
        restart = restart_line(weights)
        lines.append(_stop(case) + ("" if any(restart in line for line in lines) else restart))
    is_seen = case.first_bad is not None and case.first_bad.found != NOTHING
    if case.is_nonfinite and guesses[0].confidence < SURE and not is_seen:
        lines.append(CATALOGUE["unknown"].fix)
    return [line.strip() for line in lines if line.strip()]


def _short(case: Case, guess: Guess) -> str:
    return title_of(case, guess).partition(": ")[0]


def _stop(case: Case) -> str:
    if case.incident.state != "open" or case.incident.severity != "critical":
        return ""
    if case.is_growing and case.incident.nonfinite_step is None:
        return "Stop the run, unless the loss comes back very soon. "
    return "Stop the run: no later step mends these weights. "
