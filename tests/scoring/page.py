"""Page: the scores as docs/detection.md tells them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scoring.programs import ProgramOutcome
from scoring.tally import (
    NOTHING,
    ClassTally,
    HealthyTally,
    by_class,
    confusion,
    healthy,
    quantile,
    wrong,
)
from scoring.traces import Outcome

PROGRAMS_HEADING = "## Small Keras programs"
CONFIDENCE_FACTOR = 3.0  # nothing among n: with 95 % confidence the true rate is below 3 / n

HEAD = """# How well it detects

`scripts/score FOLDER` measures this and writes this page. The material: {total} real training logs from
public repositories, of image models, language models, recommenders, speech and more, in TensorFlow,
PyTorch and JAX. None of them was made for this purpose, and none comes from `HealthReporter`: most hold
nothing but the loss, some the gradient norm, a few the loss scale.

## How they were labelled

*Healthy* never rests on the look of the curve: it is a tuned learning rate repeated with ten seeds, a
final validation metric within 2 % of the best, a submission that reached its target, or a value that a
project's own tests expect. Healthy runs can and do hold benign spikes. The classes with a NaN rest on a
fact, the first non-finite value: *immediate* within the first 5 rows; *sudden* when the row before was
still in the usual band; *fast* out of the band for at most 20 rows before; *gradual* for longer. A
*finite divergence* ends far above where it began and never becomes NaN. *Stuck* never gets better than
its start. Where a run left its band was found with hindsight, so the lead before the NaN is the honest
figure, not the delay after the onset. {unscored} logs whose label does not say clearly what should be
found count nowhere.

## How they are judged

Each log is read as `trainvitals check` reads it, row by row: what is told at a step uses nothing that was
logged after it. A failing run is *seen* if a critical incident is told at most 100 steps after the first
non-finite value (for stuck runs and spikes that recover a note is enough), *named* if the first such
incident is of a kind that fits the label, and *early* if it comes before the first non-finite value. A
healthy run is *paged* by a critical incident, also by one that is withdrawn later, and *noted* by a
warning. Mere notes on the page never count against it. Most immediate blow-ups are NaN by their second
row, where nothing can be early. Classes are never pooled.

A part of the logs lies in `tests/fixtures/traces`; `tests/server/test_real_traces.py` lets none of the
counts fall, there and on the whole material where it is at hand.
"""
LEADS = """## Warning time

Steps between the warning and the first non-finite value, of the runs that were warned. The share is the
lead as a part of what hindsight allows, over all runs of the class where there is any; more than 1 is
earlier than the onset in the label.

"""
PROGRAMS = """{heading}

{failing} programs that fail in ways people ask about, and {calm} that only look as if they did, trained
under the reporter with a real server. *Right* means: every step arrived, the first loud incident is of a
fitting kind, and there is no other; a healthy one has no critical incident. Right: {right_failing} of
{failing} failing, {right_calm} of {calm} healthy; onset {onset}, first bad layer {layer}, first cause
{cause}.

"""


def render(
    outcomes: Sequence[Outcome], unscored: int, programs: Sequence[ProgramOutcome] | None, previous: str = ""
) -> str:
    """Return the page; what an earlier page said about programs stays where none were run."""
    classes = by_class(outcomes)
    parts = [
        HEAD.format(unscored=unscored, total=len(outcomes) + unscored),
        _healthy_section(healthy(outcomes)),
        _class_section(classes),
        _lead_section(classes),
        _confusion_section(outcomes),
        _wrong_section(wrong(outcomes)),
        _cost_section(outcomes),
        _programs_section(programs) if programs is not None else _kept(previous),
    ]
    return "\n".join(part for part in parts if part)


def _healthy_section(tally: HealthyTally) -> str:
    return (
        "## False alarms\n\n"
        + _table(
            ("healthy runs", "logged steps", "paged", "noted", "pages per 1,000 steps", "notes per 1,000"),
            [(tally.runs, f"{tally.rows:,}", _rate(tally.paged, tally.runs), _rate(tally.noted, tally.runs),
              _per_thousand(tally.pages, tally.rows), _per_thousand(tally.notes, tally.rows))],
        )
        + "".join(f"\nPaged: `{name}`." for name in tally.paged)
        + "".join(f"\nNoted: `{name}`." for name in tally.noted)
    )  # fmt: skip


def _class_section(classes: dict[str, ClassTally]) -> str:
    rows = [(f"`{label}`", item.runs, item.seen, item.named, item.early) for label, item in classes.items()]
    return "## Failing runs\n\n" + _table(("class", "runs", "seen", "named", "early"), rows)


def _lead_section(classes: dict[str, ClassTally]) -> str:
    rows = [
        (f"`{label}`", f"{len(item.leads)} of {item.runs}", *_middle_and_low(item.leads),
         *_middle_and_low(item.shares, 2))
        for label, item in classes.items() if item.leads
    ]  # fmt: skip
    heads = ("class", "warned before", "lead, median", "lead, p10", "share, median", "share, p10")
    return LEADS + _table(heads, rows)


def _confusion_section(outcomes: Sequence[Outcome]) -> str:
    table = confusion(outcomes)
    kinds = sorted(
        {kind for counts in table.values() for kind in counts}, key=lambda kind: (kind == NOTHING, kind)
    )
    rows = [
        (f"`{label}`", *(counts[kind] or "" for kind in kinds))
        for label, counts in sorted(table.items(), key=lambda item: -item[1].total())
    ]
    return (
        "## What was told first\n\nRows are labels, columns the kind of the first incident that counts.\n\n"
        + _table(("", *(kind.replace("_", " ") for kind in kinds)), rows)
    )


def _wrong_section(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return "## What was missed\n\nNothing.\n"
    rows = [
        (
            f"`{outcome.label.name}`",
            f"`{outcome.label.label}`",
            f"`{outcome.first}`" if outcome.first else "not seen",
        )
        for outcome in outcomes
    ]
    return "## What was missed or named otherwise\n\n" + _table(("log", "label", "told"), rows)


def _cost_section(outcomes: Sequence[Outcome]) -> str:
    rows = sum(outcome.rows for outcome in outcomes)
    judging = sum(outcome.judging_s for outcome in outcomes) / rows * 1e6
    reading = sum(outcome.reading_s for outcome in outcomes) / rows * 1e6
    long = [outcome.judging_s / outcome.rows * 1e6 for outcome in outcomes if outcome.rows >= 1000]
    worst = (
        f" (logs of 1,000 rows and more: median {np.median(long):.1f} µs, worst {max(long):.1f} µs)"
        if long
        else ""
    )
    return (
        f"## Cost\n\n{rows:,} rows in all. Detecting takes {judging:.1f} µs a row on one core{worst}, "
        f"reading the file {reading:.1f} µs.\n"
    )


def _programs_section(outcomes: Sequence[ProgramOutcome]) -> str:
    rows = [
        (f"`{item.name}`", f"`{item.label}`", "yes" if item.is_ok else "no", _mark(item.is_named),
         _mark(item.is_onset_right), _mark(item.is_layer_right), _mark(item.is_cause_right),
         _mark(item.is_single), ", ".join(f"`{kind}`" for kind in dict.fromkeys(item.told)))
        for item in outcomes
    ]  # fmt: skip
    failing = [item for item in outcomes if not item.is_healthy]
    calm = [item for item in outcomes if item.is_healthy]
    heads = ("program", "label", "right", "kind", "onset", "first layer", "cause", "one incident", "told")
    head = PROGRAMS.format(
        heading=PROGRAMS_HEADING, failing=len(failing), calm=len(calm),
        right_failing=sum(item.is_ok for item in failing), right_calm=sum(item.is_ok for item in calm),
        onset=_count(failing, "is_onset_right"), layer=_count(failing, "is_layer_right"),
        cause=_count(failing, "is_cause_right"),
    )  # fmt: skip
    return head + _table(heads, rows)


def _kept(previous: str) -> str:
    place = previous.find(PROGRAMS_HEADING)
    return previous[place:] if place >= 0 else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def _rate(names: Sequence[str], runs: int) -> str:
    if names or not runs:
        return f"{len(names)} ({100 * len(names) / max(runs, 1):.1f} %)"
    return f"0 (below {100 * CONFIDENCE_FACTOR / runs:.1f} % with 95 % confidence)"


def _per_thousand(count: int, rows: int) -> str:
    return f"{1000 * count / max(rows, 1):.3f}"


def _middle_and_low(values: Sequence[float], digits: int = 1) -> list[str]:
    found = (quantile(values, 0.5), quantile(values, 0.1))
    return ["" if value is None else f"{value:.{digits}f}" for value in found]


def _mark(claim: bool | None) -> str:
    return "" if claim is None else "yes" if claim else "no"


def _count(outcomes: Sequence[ProgramOutcome], field: str) -> str:
    claims = [getattr(item, field) for item in outcomes if getattr(item, field) is not None]
    return f"{sum(claims)} of {len(claims)}"
