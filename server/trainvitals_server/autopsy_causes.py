"""Causes that the replay of the failing step proves: from the operation that went wrong first. Pure.

What it proves speaks against every other explanation of numbers that came out of the blue. A divergence
keeps its own cause: that its end is a certain operation says little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from trainvitals_server.autopsy_words import made, part, where
from trainvitals_server.case import Case, Guess
from trainvitals_server.catalogue import CATALOGUE
from trainvitals_server.first_bad import FirstBad, Operand
from trainvitals_server.suspects import LOSS

PROVEN = 0.97
LIKELY = 0.8  # the operation is known, and what makes it go wrong is not
OPEN = 0.5
CONTRADICTED = 0.2  # the most that is left of an explanation that the replay speaks against
END_OF_A_DIVERGENCE = 0.5
MASK_LIMIT = -0.99 * 65504  # an addend beyond it is a mask

# Which input the logarithm is taken of, and where it ends.
LOGARITHMS = {"Log": (0, 0.0), "Log1p": (0, -1.0), "Xlogy": (1, 0.0), "Xlog1py": (1, -1.0)}
# Which input divides.
DIVISIONS = {"RealDiv": 1, "Div": 1, "Xdivy": 1, "FloorDiv": 1, "FloorMod": 1, "Reciprocal": 0, "Inv": 0}
EXPONENTIALS = frozenset({"Exp", "Expm1", "Sinh", "Cosh", "Softmax", "LogSoftmax", "Softplus", "Pow"})
SOFTMAXES = frozenset({"Softmax", "LogSoftmax"})
ROOTS = frozenset({"Sqrt", "Rsqrt", "SqrtGrad", "RsqrtGrad"})
# They add up many products: what overflows in one of them may come out as NaN.
SUMS = ("MatMul", "BatchMatMul", "Conv", "DepthwiseConv", "Einsum", "XlaDot", "Sum", "Mean", "FusedBatchNorm")
ADDITIONS = frozenset({"Add", "AddV2", "Sub", "BiasAdd", "AddN"})
SELECTIONS = frozenset({"Select", "SelectV2", "SelectGrad"})
LOOKUPS = frozenset({"GatherV2", "Gather", "ResourceGather", "GatherNd"})
CLASS_IDS = frozenset({"SparseSoftmaxCrossEntropyWithLogits", *LOOKUPS})
PARTS = {"input": "bad_input", "label": "bad_label", "sample_weight": "bad_sample_weight"}
# What the replay can tell apart: each says where a number stopped being finite.
EXCLUSIVE = frozenset({
    *PARTS.values(), "log_of_zero", "log_of_negative", "division_by_zero", "sqrt_gradient_at_zero",
    "root_of_negative", "pow_gradient_at_zero", "infinite_slope", "where_gradient", "exp_overflow",
    "fully_masked_row", "float16_mask_overflow", "float16_activation_overflow", "float16_overflow",
})  # fmt: skip
FLOOR = "loss_scale_floor"
OF_RANGE = frozenset(
    {"bad_input", "float16_mask_overflow", "float16_activation_overflow", "float16_overflow"}
)
DATA = ("bad_input", "bad_label")
CLEAN_BATCH = "run again, the batch and the weights were finite"
TINY = "the denominator is not 0, but so small that it overflows"
HIDDEN = "what comes after it, as a limit or a mask, hides it from the loss, but not from the gradient"
COUNTED = 0.95  # above it the values of the batch were counted


def with_autopsy(case: Case, guesses: Sequence[Guess]) -> list[Guess]:
    """Return the guesses as the replay leaves them, and what it proves itself."""
    report = case.first_bad
    if report is None:
        return list(guesses)
    proven = [_placed(guess, report) for guess in _proven(case, report)]
    if case.is_growing:
        ends = [one for one in proven if one.confidence >= LIKELY]
        ends = [replace(one, confidence=one.confidence * END_OF_A_DIVERGENCE) for one in ends]
        return _merged(ends, guesses)
    guesses = _merged(proven, [_doubted(guess, report, proven) for guess in guesses])
    return [_with_reason(guess, proven) if guess.cause == FLOOR else guess for guess in guesses]


def _with_reason(floor: Guess, proven: Sequence[Guess]) -> Guess:
    """Return why the scale sinks, where that has nothing to do with the range of float16."""
    reason = next((one for one in proven if one.confidence >= LIKELY and one.cause not in OF_RANGE), None)
    if reason is None or reason.cause == FLOOR or not reason.supports:
        return floor
    said = [f"the gradients are bad at any loss scale: {reason.supports[0]}", *floor.supports]
    return replace(floor, confidence=PROVEN + 0.01, supports=said, layer=reason.layer)


def _proven(case: Case, report: FirstBad) -> Iterator[Guess]:
    if report.found in PARTS:
        yield Guess(PARTS[report.found], PROVEN, [part(report)], [], _layer_of_part(case, report))
    elif report.found == "weight":
        yield from _weights(case, report)
    elif report.found == "operation":
        yield from RULES_OF[report.direction](case, report) if report.direction in RULES_OF else ()


def _forward(case: Case, report: FirstBad) -> Iterator[Guess]:
    kind, operand = report.operation, _operand(report, 0)
    if report.is_unselected:
        yield Guess("where_gradient", PROVEN)
    elif kind in LOGARITHMS:
        yield _logarithm(report, *LOGARITHMS[kind])
    elif kind == "Rsqrt" and _is_negative(report, operand):
        yield Guess("root_of_negative", PROVEN)
    elif kind in DIVISIONS or kind == "Rsqrt":
        yield from _division(report, _operand(report, DIVISIONS.get(kind, 0)))
    elif kind == "Sqrt" or (kind == "Pow" and report.output is not None and report.output.n_nan):
        yield Guess("root_of_negative", PROVEN)
    elif kind == "Pow" and operand is not None and operand.holds(0.0) and _is_below_zero(report, 1):
        yield Guess("division_by_zero", PROVEN)
    elif kind in SOFTMAXES and _is_masked(operand):
        yield Guess("fully_masked_row", PROVEN)
    elif kind == "Sub" and report.inputs and all(map(_is_masked, report.inputs)):  # by hand: x - max(x)
        yield Guess("fully_masked_row", LIKELY)
    elif kind in EXPONENTIALS:
        yield Guess("exp_overflow", PROVEN)
    elif kind in CLASS_IDS:
        yield from _class_ids(case, report)
    elif kind in ADDITIONS and _adds_a_mask(report):
        yield Guess("float16_mask_overflow", PROVEN)
    else:
        yield from _overflow(case, report)


def _backward(case: Case, report: FirstBad) -> Iterator[Guess]:
    kind, of = report.operation, report.gradient_of
    if report.is_unselected or kind in SELECTIONS or of in SELECTIONS:
        yield Guess("where_gradient", PROVEN if report.is_unselected else LIKELY)
    elif kind in ROOTS or of in ROOTS:
        yield Guess("sqrt_gradient_at_zero", PROVEN)
    elif kind in ("Pow", "PowGrad") or of == "Pow":
        yield Guess("pow_gradient_at_zero", PROVEN)
    elif of in LOGARITHMS:
        yield Guess("log_of_zero", _certainty(_operand(report, DIVISIONS.get(kind, 0))), [HIDDEN])
        yield Guess("where_gradient", OPEN)
    elif of in DIVISIONS or (kind in DIVISIONS and not of):
        denominator = _operand(report, DIVISIONS.get(kind, -1))
        said = [TINY if _is_away_from_zero(denominator) else HIDDEN]
        yield Guess("division_by_zero", _certainty(denominator), said if of else [])
        yield Guess("where_gradient", OPEN)
    elif kind in DIVISIONS and not (
        _is_half(report) and _is_away_from_zero(_operand(report, DIVISIONS[kind]))
    ):
        yield Guess("infinite_slope", PROVEN, [f"`{of}` itself is finite there, its slope is not"])
    elif _is_half(report):
        yield Guess("float16_overflow", PROVEN)
    else:
        yield Guess("no_gradient_clipping", OPEN, ["the gradient outgrew float32 on its way back"])
        yield Guess("learning_rate_too_high", OPEN - 0.1)


def _update(case: Case, report: FirstBad) -> Iterator[Guess]:
    if _half_variables(case) or _is_half(report):
        yield Guess("float16_variables", PROVEN)
    elif report.operation in ("Sqrt", *DIVISIONS) or report.operation.startswith("ResourceApply"):
        yield Guess("optimizer_epsilon", LIKELY, ["the gradients of that step were finite"])
    else:
        yield Guess("learning_rate_too_high", OPEN, ["the gradients of that step were finite"])
        yield Guess("optimizer_epsilon", OPEN - 0.1)


def _logarithm(report: FirstBad, place: int, end: float) -> Guess:
    operand = _operand(report, place)
    if _is_negative(report, operand, end):
        return Guess("log_of_negative", PROVEN)
    is_told = operand is not None and operand.min is not None
    minus_infinite = report.output is not None and report.output.n_neginf > 0
    return Guess("log_of_zero", PROVEN if is_told or minus_infinite else LIKELY)


def _division(report: FirstBad, denominator: Operand | None) -> Iterator[Guess]:
    if denominator is None or denominator.min is None or denominator.holds(0.0):
        yield Guess("division_by_zero", PROVEN if denominator and denominator.holds(0.0) else LIKELY)
    elif _is_half(report):
        yield Guess("float16_activation_overflow", PROVEN)
    else:
        yield Guess("division_by_zero", LIKELY, [TINY])


def _class_ids(case: Case, report: FirstBad) -> Iterator[Guess]:
    kinds = {layer.kind for layer in case.context.layers if layer.name == report.layer}
    if report.operation in LOOKUPS and "Embedding" in kinds:
        yield Guess("bad_input", LIKELY, ["an id beyond the table of the embedding"])
    else:
        yield Guess("bad_label", PROVEN)


def _overflow(case: Case, report: FirstBad) -> Iterator[Guess]:
    if not _can_overflow(report):
        return  # undefined there, for a reason of its own
    if _is_half(report):
        yield Guess("float16_activation_overflow", PROVEN)
    elif _is_first_step(case):
        yield Guess("initialisation", LIKELY, ["the numbers outgrow float32 in the first step"])
    else:
        yield Guess("learning_rate_too_high", OPEN, ["the numbers outgrow float32"])
        yield Guess("data_outlier", OPEN - 0.1, ["it may be this batch alone"])


def _weights(case: Case, report: FirstBad) -> Iterator[Guess]:
    if _is_first_step(case):
        name = f" (first `{report.layer}`)" if report.layer else ""
        yield Guess("bad_initial_weights", PROVEN, [f"the weights were NaN or infinite from the start{name}"])
    elif _half_variables(case):
        yield Guess("float16_variables", PROVEN)
    elif any(finding.facts.get("loss_scale") == 0.0 for finding in case.incident.findings):
        yield Guess(FLOOR, PROVEN)


def _is_first_step(case: Case) -> bool:
    return case.incident.kind == "immediate_blowup" and not case.facts.get("rows_before")


RULES_OF = {"forward": _forward, "backward": _backward, "update": _update}


def _can_overflow(report: FirstBad) -> bool:
    output = report.output
    is_infinite = output is None or output.n_posinf + output.n_neginf > 0
    return is_infinite or report.operation.startswith(SUMS)


def _certainty(operand: Operand | None) -> float:
    """How sure it is that a 0 did it: `operand` is what must not be 0, where that is told."""
    return PROVEN if operand is not None and operand.holds(0.0) else LIKELY


def _is_away_from_zero(operand: Operand | None) -> bool:
    return operand is not None and operand.min is not None and not operand.holds(0.0)


def _adds_a_mask(report: FirstBad) -> bool:
    lows = [operand.min for operand in report.inputs if operand.min is not None]
    is_masked = any(low <= MASK_LIMIT for low in lows) or (not lows and _minus_infinities(report))
    return _is_half(report) and is_masked


def _is_masked(scores: Operand | None) -> bool:
    return scores is not None and scores.n_neginf > 0 and not scores.n_nan + scores.n_posinf


def _minus_infinities(report: FirstBad) -> bool:
    return report.output is not None and report.output.n_neginf > 0


def _is_half(report: FirstBad) -> bool:
    return bool(report.output and report.output.is_half) or any(one.is_half for one in report.inputs)


def _is_negative(report: FirstBad, operand: Operand | None, end: float = 0.0) -> bool:
    if operand is not None and operand.min is not None:
        return operand.min < end
    return report.output is not None and report.output.n_nan > 0


def _is_below_zero(report: FirstBad, place: int) -> bool:
    operand = _operand(report, place)
    return operand is not None and operand.min is not None and operand.min < 0


def _operand(report: FirstBad, place: int) -> Operand | None:
    return report.inputs[place] if place < len(report.inputs) else None


def _half_variables(case: Case) -> bool:
    return any(layer.dtype == "float16" for layer in case.context.layers)


def _placed(guess: Guess, report: FirstBad) -> Guess:
    """Return the guess with its place, and what was seen there as the first of its reasons."""
    if report.found != "operation":
        return guess
    layer = report.layer or (LOSS if report.direction != "update" else None)
    title = CATALOGUE[guess.cause].title.partition(": ")[0]
    said = [f"{title}, {where(report)}", f"`{report.operation}`: {made(report)}", *guess.supports]
    return replace(guess, supports=said, layer=guess.layer or layer)


def _doubted(guess: Guess, report: FirstBad, proven: Sequence[Guess]) -> Guess:
    """Return a guess with what the replay says against it."""
    if any(one.cause == guess.cause for one in proven):
        return guess
    if report.found == "operation" and guess.cause in EXCLUSIVE:
        if guess.cause in DATA and guess.confidence > COUNTED:
            return guess  # those were counted, in the very step
        return _lowered(guess, CLEAN_BATCH if guess.cause in DATA else _instead(report))
    if report.found in PARTS and guess.cause in EXCLUSIVE:
        return _lowered(guess, part(report))
    if report.found == "weight" and guess.cause in EXCLUSIVE:
        return _lowered(guess, "the weights were NaN or infinite before the step already")
    return guess


def _instead(report: FirstBad) -> str:
    return f"run again, the step first goes wrong in `{report.operation}`, {where(report)}"


def _lowered(guess: Guess, doubt: str) -> Guess:
    return replace(guess, confidence=min(guess.confidence, CONTRADICTED), against=[*guess.against, doubt])


def _merged(proven: Sequence[Guess], others: Sequence[Guess]) -> list[Guess]:
    """Return both; of one cause the proof leads and keeps what else speaks for it."""
    found = {guess.cause: guess for guess in proven}
    rest = []
    for guess in others:
        known = found.get(guess.cause)
        if known is None:
            rest.append(guess)
            continue
        found[guess.cause] = replace(
            known,
            confidence=max(known.confidence, guess.confidence),
            supports=list(dict.fromkeys([*known.supports, *guess.supports])),
            layer=known.layer or guess.layer,
        )
    return [*found.values(), *rest]


def _layer_of_part(case: Case, report: FirstBad) -> str | None:
    layers = case.context.layers
    return layers[0].name if report.found == "input" and layers else LOSS
