"""Remedies: what to do about a cause in this very run, with its optimizer, rates, steps and samples. Pure.

The catalogue has the texts that hold for every run; here is what a run's own numbers make of them.
"""

from __future__ import annotations

from collections.abc import Callable

from trainvitals_server import logarithms
from trainvitals_server.case import Case, Guess
from trainvitals_server.catalogue import CATALOGUE
from trainvitals_server.entry import Entry
from trainvitals_server.saved_weights import restart_line, weights_of

CLIPS = ("clipnorm", "global_clipnorm", "clipvalue")
DEFAULT_EPSILON = 1e-7  # Keras'
USUAL_RATES = {"SGD": "1e-2"}  # all others adapt their steps:
ADAPTIVE_RATE = "1e-3"
EVALUATE_AGAIN = (
    "Set `model.run_eagerly = True`, call `tf.debugging.enable_check_numerics()` and then `model.evaluate` "
    "on the validation data: it names the first operation whose result is not finite."
)
# The small constant that is not 0 in a type, and hardly changes a result.
CONSTANTS = {"float16": "1e-4 in float16, where 1e-8 is 0", "float32": "1e-7 in float32"}


REPLAY_IN_A_LOOP = (
    "Give the reporter your step and its batch, `Reporter(..., replay=lambda batch: train_step(*batch))` and "
    "`reporter.step(..., batch=(x, y))`: the next failing step is then run again, and its first operation "
    "with a bad result is named."
)
LOOP_SNIPPET = """\
with Reporter(url, replay=lambda batch: train_step(*batch)) as reporter:
    for x, y in data:
        loss, gradients = train_step(x, y)
        reporter.step(
            loss=loss, gradients=gradients, variables=model.trainable_variables, optimizer=optimizer,
            batch=(x, y),
        )
"""


def is_own_loop(case: Case) -> bool:
    """Return whether the run is a loop of the user's own: what only `fit` knows is not told."""
    known = case.context.environment
    return bool(known.versions) and known.steps_per_execution is None and known.run_eagerly is None


def lacks_replay(case: Case) -> bool:
    """Return whether it is a loop of the user's own whose failing step was not run again."""
    return is_own_loop(case) and case.first_bad is None


def snippet_of(case: Case, guess: Guess) -> str:
    """Return the code that does it."""
    if guess.cause == "unknown" and case.incident.kind != "validation_nonfinite" and lacks_replay(case):
        return LOOP_SNIPPET
    return _entry(case, guess).snippet


def fix_of(case: Case, guess: Guess) -> str:
    """Return what to do about this cause, in words."""
    rule = REMEDIES.get(guess.cause)
    return (rule(case) if rule else "") or _entry(case, guess).fix


def title_of(case: Case, guess: Guess) -> str:
    """Return what a cause is called in this case."""
    if case.incident.kind == "runaway_negative_loss":
        return IN_A_RUNAWAY.get(guess.cause, CATALOGUE[guess.cause].title)
    return _entry(case, guess).title


def _entry(case: Case, guess: Guess) -> Entry:
    usual = CATALOGUE[guess.cause]
    return logarithms.entry_of(case, guess, usual) if guess.cause == "log_of_zero" else usual


IN_A_RUNAWAY = {
    "bad_label": "labels outside the range that the loss is defined for",
    "bad_sample_weight": "negative sample weights or class weights",
    "unbounded_loss": "a term of the loss that can be made ever more negative, of `add_loss` or of your own",
}


def lower_rate(case: Case) -> str:
    """Return a lower learning rate in words, with its number where it is known."""
    rate = case.context.rates.last
    if not rate:
        return "a learning rate 3 to 10 times lower"
    return f"a learning rate of {rate / 10:.2g} to {rate / 3:.2g} (it was {rate:.3g})"


def _too_high(case: Case) -> str:
    weights = weights_of(case)
    if case.incident.kind in ("plateau", "oscillation") or weights.usable:
        return f"Train on with {lower_rate(case)}, or let a schedule lower it.{_clip(case)}"
    return f"{restart_line(weights)} Train with {lower_rate(case)}, or warm it up.{_clip(case)}"


def _clip(case: Case) -> str:
    is_set = any(case.context.environment.optimizer_config.get(name) for name in CLIPS)
    return "" if is_set else " Clip the gradients, too (`clipnorm=1.0`)."


def _too_low(case: Case) -> str:
    optimizer = case.context.environment.optimizer
    usual = USUAL_RATES.get(optimizer, ADAPTIVE_RATE)
    if not optimizer:
        return ""
    rate = case.facts.get("learning_rate")
    now = f" from {rate:.3g}" if isinstance(rate, float) else ""
    return (
        f"Raise the learning rate{now} to about {usual}, where one usually begins with {optimizer}, and look "
        f"at it again after a few hundred steps. Look for an exponent mistyped (1e-9 for 1e-3), a warm-up "
        f"that never ends, a decay that is too fast."
    )


def _epsilon(case: Case) -> str:
    epsilon = case.context.environment.optimizer_config.get("epsilon")
    low = case.facts.get("norm_before")
    size = f" The gradients came down to {low:.2g}:" if isinstance(low, float) else ""
    if not isinstance(epsilon, float | int):
        return ""
    first = (
        f"Set epsilon to 1e-4 in place of {epsilon:g} (Keras's default is {DEFAULT_EPSILON:g})."
        if epsilon < DEFAULT_EPSILON
        else f"Raise epsilon from {epsilon:g} to 1e-4."
    )
    reason = f"{size} at that size the default is hardly enough." if size else ""
    return (
        f"{first}{reason} Or stop once the loss is this low. Clipping does not help: the optimizer divides "
        "the clipped gradients by their size just the same."
    )


def _label(case: Case) -> str:
    count = case.facts.get("label_nonfinite")
    if isinstance(count, float) and count > 0:
        values = (
            "1 label value of this batch is" if count == 1 else f"{count:g} label values of this batch are"
        )
        return f"{values} NaN/Inf: find them with np.flatnonzero(~np.isfinite(y))."
    loss = case.context.environment.loss.lower().replace("_", "")
    if loss.startswith("sparse"):
        return "Print `y.min()` and `y.max()`: class ids must run from 0 to the number of classes - 1."
    if loss.startswith("binary"):
        return (
            "Print `y.min()` and `y.max()`: labels must lie between 0 and 1. Of -1 and 1 make (y + 1) / 2, "
            "of 1 and 2 make y - 1, of 0 to 255 make y / 255."
        )
    return ""


def _sample_weight(case: Case) -> str:
    if case.incident.kind != "runaway_negative_loss":
        return ""
    return "Print the smallest `sample_weight` and the `class_weight` given to `fit`: none may be negative."


def _unbounded(case: Case) -> str:
    if case.incident.kind != "runaway_negative_loss" or not case.facts.get("impossible"):
        return ""
    return "Print what `model.losses` holds, and look at each term that is subtracted: bound it from below."


def _division(case: Case) -> str:
    report = case.first_bad
    if report is None or report.found != "operation" or report.direction != "forward":
        return ""
    constant = CONSTANTS.get(report.inputs[-1].dtype if report.inputs else "", "1e-7")
    text = (
        f"Add a small constant to the denominator ({constant}), or use `keras.ops.divide_no_nan`; in a "
        "ratio of sums (Dice) add it above and below: (2 * overlap + c) / (sum + c)."
    )
    if report.samples and report.n_bad_samples < report.batch_size:
        return f"{text} The sample named here makes it 0: an empty mask, or nothing but zeros."
    return f"{text} Look for what makes it 0: an empty mask, a class without samples, a batch of zeros."


def _root(case: Case) -> str:
    report = case.first_bad
    if report is None or not report.inputs:
        return ""
    half = report.inputs[0].dtype == "float16"
    constant = "1e-6, as 1e-12 is 0 in float16," if half else "1e-12 (in float16 1e-6, as 1e-12 is 0 there)"
    return (
        f"Add {constant} under the root: the value hardly changes, and the gradient becomes finite. It "
        "happens where a distance or a norm is exactly 0: pairs of equal samples, vectors of zeros."
    )


def _dead(case: Case) -> str:
    start = "Start again" if case.facts.get("from_the_start") else restart_line(weights_of(case)).rstrip(".")
    rate = (
        "" if case.facts.get("from_the_start") else f" with {lower_rate(case)} and clipping (`clipnorm=1.0`)"
    )
    return (
        f"{start},{rate or ' with smaller first weights'}: dead units seldom come back by themselves. Scale "
        "targets and inputs to about 1, or use leaky_relu, which always passes a little."
    )


def _not_known(case: Case) -> str:
    """Return how to find out: a validation is looked at by hand, a loop hands over what a replay needs."""
    if case.incident.kind == "validation_nonfinite":
        return EVALUATE_AGAIN
    return REPLAY_IN_A_LOOP if lacks_replay(case) else ""


REMEDIES: dict[str, Callable[[Case], str]] = {
    "learning_rate_too_high": _too_high,
    "learning_rate_too_low": _too_low,
    "optimizer_epsilon": _epsilon,
    "bad_label": _label,
    "bad_sample_weight": _sample_weight,
    "unbounded_loss": _unbounded,
    "division_by_zero": _division,
    "sqrt_gradient_at_zero": _root,
    "dead_relu": _dead,
    "unknown": _not_known,
}
