"""Logarithms: what to do about the logarithm of zero, by what it is taken of. Pure.

A loss over probabilities can work on logits instead. The logarithm of a label, of a feature or of anything
within a layer cannot: there its argument is to be kept above zero.
"""

from __future__ import annotations

from trainvitals_server.case import Case, Guess
from trainvitals_server.entry import Entry
from trainvitals_server.first_bad import FirstBad
from trainvitals_server.snippets import SAFE_LOG
from trainvitals_server.suspects import LOSS

LOGITS = "`from_logits=True`, no sigmoid or softmax at the end"
CLIPPED = "Keep the argument above 0: clip it from below by an epsilon that its dtype holds (1e-7 in float32)"
PLAIN_TITLE = "the logarithm of zero"
# Which input the logarithm is taken of.
LOGARITHMS = {"Log": 0, "Log1p": 0, "Xlogy": 1, "Xlog1py": 1}
INVERSES = ("Reciprocal", "Inv")  # the gradient of a logarithm: they take its argument
ROUNDING = 1e-3  # a clipped or smoothed probability may be this far beyond 1


def is_of_probabilities(case: Case, guess: Guess) -> bool | None:
    """Return whether it belongs to a loss over probabilities of the model's; None where it may be so."""
    report = _report(case)
    if report is None:
        return None if guess.layer in (None, LOSS) else False
    if report.layer or report.computed_from:
        return False
    argument = _argument(report)
    if argument is None:
        return None
    return argument[0] >= 0 and argument[1] <= 1 + ROUNDING


def entry_of(case: Case, guess: Guess, usual: Entry) -> Entry:
    """Return the texts for this logarithm; `usual` are those of a loss over probabilities."""
    is_usual = is_of_probabilities(case, guess)
    if is_usual:
        return usual
    if is_usual is None:
        fix = f"{CLIPPED}. Where it is the loss over a probability, let the loss work on logits ({LOGITS})."
        return Entry(usual.title, fix, usual.snippet)
    report = _report(case)
    if report is not None and report.computed_from:
        names = " and ".join(f"`{name}`" for name in report.computed_from)
        fix = (
            f"It is taken of {names} alone, so that nothing in the model can help: look at what is 0 there. "
            "Of counts and amounts take `log1p`; else clip from below, or leave these samples out."
        )
        return Entry(f"{PLAIN_TITLE}: {names} of this batch reached 0 there", fix, SAFE_LOG)
    return Entry(PLAIN_TITLE, f"{CLIPPED}, or of numbers from 0 on take `log1p`.", SAFE_LOG)


def _report(case: Case) -> FirstBad | None:
    """Return what the replay saw of the logarithm; None where it saw none."""
    report = case.first_bad
    if report is None or report.found != "operation":
        return None
    return report if any(one in LOGARITHMS for one in (report.operation, report.gradient_of)) else None


def _argument(report: FirstBad) -> tuple[float, float] | None:
    """Return the range of what the logarithm is taken of; None where it is not told."""
    place = LOGARITHMS.get(report.operation, 0)
    if report.operation not in (*LOGARITHMS, *INVERSES) or place >= len(report.inputs):
        return None
    operand = report.inputs[place]
    return None if operand.min is None or operand.max is None else (operand.min, operand.max)
