"""Causes: which explanations fit an incident, how well, and what speaks for and against each. Pure.

Without a replay of the failing step the pattern speaks, the operations of the traced step, and the counts of
that row. A confidence above 0.9 means that a count or the replay proves it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from trainvitals_server.autopsy_causes import with_autopsy
from trainvitals_server.case import Case, Context, Guess
from trainvitals_server.choices import compatible
from trainvitals_server.detect.recurrence import counted
from trainvitals_server.detect.rows import Flags
from trainvitals_server.first_bad import NOTHING, first_bad_of
from trainvitals_server.incident import Cause, Incident
from trainvitals_server.layer_causes import dead, fading, silent_overflow
from trainvitals_server.remedies import fix_of, is_own_loop, snippet_of
from trainvitals_server.scaler_causes import misused, never_unscaled
from trainvitals_server.stuck_causes import STUCK_RULES
from trainvitals_server.suspects import LOSS, suspects_of
from trainvitals_server.updates import large_update

MAX_CAUSES = 4
TINY_EPSILON = 1e-7  # Keras' default; the trouble begins where sqrt(v) comes near it
ADAM_LIKE = ("Adam", "AdamW", "Nadam", "Adamax", "RMSprop", "Adagrad", "LAMB", "Lamb")
CLIPS = ("clipnorm", "global_clipnorm", "clipvalue")
RECURRENT = ("RNN", "LSTM", "GRU")
SMALLEST_HALF = 2.0**-25  # what is below is rounded to 0
RECENT_STEPS = 200  # a learning rate raised so shortly before the onset is part of the story


def open_case(incident: Incident, context: Context) -> Case:
    """Return the case of an incident: the first finding's facts lead, later ones add what it lacked."""
    facts: Flags = {}
    for finding in incident.findings:
        if finding.detected_step <= incident.detected_step or finding.kind == "loss_spike":
            facts = {**finding.facts, **facts}
    suspects = suspects_of(context.environment, context.layers)
    return Case(incident, context, facts, suspects, first_bad_of(incident))


def rank(case: Case) -> list[Guess]:
    """Return the explanations, the best first; only what needs none has none."""
    guesses = with_autopsy(case, [guess for rule in RULES for guess in rule(case)])
    guesses.sort(key=lambda guess: -guess.confidence)
    guesses = [guess for guess in guesses if guess.cause != "unknown" or guess is guesses[0]]
    if not guesses and case.incident.kind != "transient_overflow":
        return [Guess("unknown", 0.2)]
    return compatible(guesses)[:MAX_CAUSES]


def with_texts(case: Case, guess: Guess) -> Cause:
    """Return the cause with what to do about it in this case, in words and in code."""
    return Cause(
        cause=guess.cause, confidence=round(guess.confidence, 2), supports=guess.supports,
        against=guess.against, fix=fix_of(case, guess), snippet=snippet_of(case, guess),
    )  # fmt: skip


def _data(case: Case) -> Iterator[Guess]:
    for name, cause, word in (("input", "bad_input", "inputs"), ("label", "bad_label", "labels")):
        count = case.facts.get(f"{name}_nonfinite")
        if isinstance(count, float) and count > 0:
            entry = case.context.layers[0].name if case.context.layers and name == "input" else LOSS
            yield Guess(cause, 0.97, [_values_are_bad(count, word)], layer=entry)
        elif case.is_nonfinite and count is None and not case.suspects and not _is_seen(case):
            yield Guess(cause, 0.15, [_not_counted(case, word)])


def _is_seen(case: Case) -> bool:
    """Return whether a replay has looked at the batch, and found what went wrong."""
    return case.first_bad is not None and case.first_bad.found != NOTHING


def _not_counted(case: Case, word: str) -> str:
    how = ": in a loop `reporter.observe(..., batch=(x, y))` does that" if is_own_loop(case) else ""
    return f"the bad values among the {word} of this step were not counted{how}"


def _values_are_bad(count: float, word: str) -> str:
    values = "1 value" if count == 1 else f"{count:g} values"
    return f"this batch has NaN or infinite {word} ({values})"


def _class_ids(case: Case) -> Iterator[Guess]:
    """Class ids beyond the last class: an error on a CPU, but a silent NaN under XLA and on a GPU."""
    environment = case.context.environment
    sparse = environment.loss.lower().replace("_", "").startswith("sparsecategoricalcrossentropy")
    if case.is_nonfinite and case.is_loss_bad and sparse and case.facts.get("label_nonfinite") in (None, 0.0):
        silent = bool(environment.jit_compile) or environment.device.startswith("GPU")
        said = ["class ids out of range give NaN without an error under XLA and on a GPU"] if silent else []
        doubts = [] if silent else ["on a CPU without XLA they raise an error"]
        yield Guess("bad_label", 0.55 if silent else 0.15, said, doubts, LOSS)


def _half(case: Case) -> Iterator[Guess]:
    if not case.is_half or not (case.is_nonfinite or case.incident.kind == "loss_scale_collapse"):
        return
    clean = _inputs_are_clean(case)
    for suspect in case.of_kind("float16_limit_constant")[:1]:
        said = [f"the training step has a constant at the end of float16's range ({suspect.name})"]
        if case.is_loss_bad:
            said.append("the loss itself is not finite: that does not depend on the loss scale")
        after = [] if case.is_loss_bad else ["the loss is finite"]
        yield Guess(
            "float16_mask_overflow", 0.85 if case.is_loss_bad else 0.4, said + clean, after, suspect.layer
        )
    said = [f"the run computes in {case.context.environment.dtype_policy}"]
    yield Guess("float16_activation_overflow", 0.35 if case.is_loss_bad else 0.3, said)
    if not case.is_loss_bad:
        yield Guess("float16_overflow", 0.32, said)


def _undefined(case: Case) -> Iterator[Guess]:
    """Operations that are undefined somewhere, by whether the loss or only its gradient is bad."""
    if not case.is_nonfinite:
        return
    clean = _inputs_are_clean(case)
    if case.is_loss_bad:
        yield from _log(case, clean)
        yield from _named(case, ("RealDiv", "Reciprocal"), "division_by_zero", 0.4, clean)
        weight = 0.72 if _has_pair(case, "Exp", "RealDiv") else 0.45
        yield from _named(case, ("Exp",), "exp_overflow", weight, clean)
        low = ["the loss itself is not finite, but this one makes the gradient bad first"]
        yield from _named(case, ("Sqrt",), "sqrt_gradient_at_zero", 0.2, clean, low)
    else:
        first = ["the gradient is not finite while the loss is", *clean]
        yield from _named(case, ("Pow",), "pow_gradient_at_zero", 0.75, first)
        yield from _named(case, ("Sqrt", "Rsqrt"), "sqrt_gradient_at_zero", 0.7, first)
        yield from _named(case, ("Log", "RealDiv", "Reciprocal"), "where_gradient", 0.5, first)


def _log(case: Case, clean: list[str]) -> Iterator[Guess]:
    if case.facts.get("rows_before"):
        start, before = case.facts.get("start"), case.facts.get("previous_loss")
        low = isinstance(start, float) and isinstance(before, float) and abs(before) < 0.2 * abs(start)
        is_losss = [one.layer in (None, LOSS) for one in case.of_kind("Log")[:1]] == [True]
        near = "the loss had become small: the model's outputs are near 0 and 1"
        said = [near] if low and is_losss else []
        yield from _named(case, ("Log",), "log_of_zero", 0.75 if low else 0.6, said + clean)
    else:
        yield from _named(case, ("Log",), "log_of_negative", 0.6, ["it fails in the very first step", *clean])
        yield from _named(case, ("Log",), "log_of_zero", 0.4, clean)


def _validation(case: Case) -> Iterator[Guess]:
    """Operations that stay finite in training, and need not with other data or with `training=False`."""
    if case.incident.kind != "validation_nonfinite":
        return
    said = ["training is finite: only the data and `training=False` (averages kept from training) differ"]
    doubts = ["the validation itself was not looked into"]
    own = [suspect for suspect in case.suspects if suspect.layer != LOSS and not suspect.guarded]
    for kinds, cause in ((("RealDiv", "Reciprocal", "Rsqrt"), "division_by_zero"), (("Log",), "log_of_zero")):
        for suspect in [one for one in own if one.kind in kinds][:1]:
            where = f"the training step has the operation `{suspect.kind}` ({suspect.name})"
            yield Guess(cause, 0.4, [where, *said], doubts, suspect.layer)


def _named(
    case: Case, kinds: tuple[str, ...], cause: str, confidence: float, said: list[str],
    against: list[str] | None = None,
) -> Iterator[Guess]:  # fmt: skip
    for suspect in case.of_kind(*kinds)[:1]:
        weight = confidence * (0.25 if suspect.guarded else 1.0)
        where = f"the training step has the operation `{suspect.kind}` ({suspect.name})"
        doubts = [*(against or []), *(["Keras guards this one against it"] if suspect.guarded else [])]
        yield Guess(cause, weight, [where, *said], doubts, suspect.layer)


def _has_pair(case: Case, one: str, other: str) -> bool:
    scopes = {suspect.name.rpartition("/")[0] for suspect in case.of_kind(one) if not suspect.guarded}
    return any(suspect.name.rpartition("/")[0] in scopes for suspect in case.of_kind(other))


def _inputs_are_clean(case: Case) -> list[str]:
    return ["the inputs of this batch are finite"] if case.facts.get("input_nonfinite") == 0.0 else []


def _first_step(case: Case) -> Iterator[Guess]:
    if case.incident.kind == "immediate_blowup" and not case.is_growing:
        before = case.facts.get("rows_before")
        if before:
            rate = case.context.rates.last
            said = [
                f"it fails after {counted(int(before), 'update')}, and the loss was finite before the first"
            ]
            said += [f"the learning rate was {rate:.3g}"] if rate is not None else []
            said += large_update(case)
            yield Guess("learning_rate_too_high", 0.6, said)
            yield Guess("initialisation", 0.3, ["it fails in the first steps"], ["the first loss was finite"])
        elif case.context.is_by_step:
            yield Guess("initialisation", 0.45, ["it fails in the very first step"])
        else:
            said = ["the first row is not finite already; which step of it failed first is not known"]
            yield Guess("learning_rate_too_high", 0.15, said)
            yield Guess("initialisation", 0.15, said)


def _growth(case: Case) -> Iterator[Guess]:
    if not case.is_growing:
        return
    environment = case.context.environment
    rate = case.context.rates
    said, doubts = ["the loss grows from finite values, out of its usual range"], []
    if case.incident.kind == "exploding_gradient":
        said = ["the gradient norm left its range by orders of magnitude"]
    if rate.last is not None:
        said.append(f"the learning rate was {rate.last:.3g}")
    if rate.raised_step is not None and 0 <= case.incident.onset_step - rate.raised_step <= RECENT_STEPS:
        said.append(f"it was raised from {rate.raised_from:.3g} at step {rate.raised_step}")
    said += large_update(case)
    if rate.last is not None and rate.highest is not None and rate.last < rate.highest / 10:
        doubts.append(f"the rate has been higher before ({rate.highest:.3g})")
    if case.rose_at_once:
        high = f"the loss of step {case.incident.onset_step} is far out of its range at once"
        early = (
            "a loss is taken before its step's update: this batch did it, or the update of the step before"
        )
        yield Guess("data_outlier", 0.65, [high, early])
        doubts.append(
            "it begins in a single step; with a rate that is too high a loss mostly climbs over several"
        )
    yield Guess("learning_rate_too_high", 0.7 if doubts else 0.8, said, doubts)
    clipped = [name for name in CLIPS if environment.optimizer_config.get(name)]
    if clipped:
        return
    unsure = [] if environment.optimizer_config else ["the optimizer's settings are not known"]
    recurrent = [layer.name for layer in case.context.layers if any(word in layer.kind for word in RECURRENT)]
    said = ["no clipnorm, clipvalue or global_clipnorm is set"] if not unsure else []
    if recurrent:
        said.append(f"{recurrent[0]} is recurrent: its gradient is a product over time steps")
    yield Guess("no_gradient_clipping", 0.7 if recurrent else 0.45 if not unsure else 0.3, said, unsure)


def _epsilon(case: Case) -> Iterator[Guess]:
    kind, environment = case.incident.kind, case.context.environment
    if kind != "optimizer_epsilon":
        return
    before = case.facts.get("norm_before")
    said = [f"the gradient norm had decayed to {before:.3g}"] if isinstance(before, float) else []
    doubts: list[str] = []
    confidence = 0.7
    epsilon = environment.optimizer_config.get("epsilon")
    if isinstance(epsilon, float | int):
        if epsilon <= TINY_EPSILON:
            confidence = 0.9
            small = f"{environment.optimizer or 'the optimizer'} has an epsilon of {epsilon:g}"
            said = [f"{small}, too small for gradients of {before:.2g}" if said else small, *said]
        else:
            confidence = 0.4
            doubts.append(f"epsilon is {epsilon:g}")
    if environment.optimizer and environment.optimizer not in ADAM_LIKE:
        confidence = 0.1
        doubts.append(f"{environment.optimizer} has no such epsilon")
    yield Guess("optimizer_epsilon", confidence, said, doubts)
    yield Guess("learning_rate_too_high", 0.25, ["a jump out of a flat region"])


def _spike(case: Case) -> Iterator[Guess]:
    if case.incident.kind == "loss_spike":
        recovered = case.facts.get("outcome") == "recovered"
        said = ["one batch, then the loss came back"] if recovered else []
        yield Guess("data_outlier", 0.6 if recovered else 0.35, said)
        yield Guess(
            "learning_rate_too_high", 0.3 if recovered else 0.5, [] if recovered else ["the loss stays high"]
        )


def _scaler(case: Case) -> Iterator[Guess]:
    if case.incident.kind != "loss_scale_collapse":
        return
    said = ["skipping and halving did not help: the gradient is not finite at any scale"]
    if case.facts.get("settled") is False:
        said.append("no update was applied since the start")
    yield Guess("loss_scale_floor", 0.7, said)
    nan = isinstance(case.facts.get("grad_norm"), float) and math.isnan(float(case.facts["grad_norm"] or 0))
    if nan:
        first = ["the gradient is NaN, not infinite: a lower scale cannot heal that"]
        yield from _named(case, ("Log", "Sqrt", "Pow", "RealDiv"), "where_gradient", 0.5, first)


def _variables(case: Case) -> Iterator[Guess]:
    half = [layer.name for layer in case.context.layers if layer.dtype == "float16"]
    if half and (case.is_nonfinite or case.is_growing):
        environment = case.context.environment
        epsilon = environment.optimizer_config.get("epsilon")
        said = [f"the variables of {half[0]} are float16"]
        if isinstance(epsilon, float) and epsilon < SMALLEST_HALF:
            whose = f"{environment.optimizer}'s" if environment.optimizer else "the optimizer's"
            said = [f"{said[0]}, and there {whose} epsilon of {epsilon:g} is 0: the update divides by 0"]
        yield Guess("float16_variables", 0.8, said, [], half[0])


def _unknown(case: Case) -> Iterator[Guess]:
    if case.is_nonfinite or case.incident.kind in ("validation_nonfinite", "metric_nonfinite"):
        yield Guess("unknown", 0.2, [])


Rule = Callable[[Case], Iterator[Guess]]
RULES: tuple[Rule, ...] = (
    _data, _class_ids, _half, _undefined, _validation, _first_step, _growth, _epsilon, _spike, _scaler,
    _variables, dead, fading, silent_overflow, misused, never_unscaled, *STUCK_RULES,
    _unknown,
)  # fmt: skip
