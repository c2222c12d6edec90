"""What `loss` says, with its evidence and the numbers that a diagnosis needs. Judges nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from trainvitals_server.detect.excursion import Excursion
from trainvitals_server.detect.forecast import rows_to_limit
from trainvitals_server.detect.outlook import outlook
from trainvitals_server.detect.recurrence import counted
from trainvitals_server.detect.rows import Flags, Row
from trainvitals_server.detect.stats import LossBand
from trainvitals_server.detect.trail import Creep
from trainvitals_server.finding import Evidence, Finding, Kind, Severity

TOLD_VALUES = 8


def divergence(
    row: Row, out: Excursion, band: LossBand, rows: int, severity: Severity, kind: Kind
) -> Finding:
    """Return that the loss has left its band for good, and when its number format ends."""
    began = f"the run began at {band.start:.4g}, its best level was {band.best:.4g}"
    story = ", ".join(f"{value:.4g}" for value in out.values[-TOLD_VALUES:])
    ahead, numbers = outlook(row, out, band.best)
    return Finding(
        kind=kind, severity=severity, onset_step=out.onset_step, detected_step=row.step,
        evidence=(
            Evidence(text=f"the loss is {row.value:.4g} at step {row.step}; {began}",
                     series="loss", step=row.step, value=row.value),
            Evidence(text=f"the last losses: {story}", series="loss", step=out.steps[0],
                     value=out.values[0]),
            *ahead,
        ),
        facts={**row.flags, **band_facts(band, rows), **numbers, "height": out.heights[-1],
               "excursion_rows": out.rows, "rows_to_limit": rows_left(out, band), "loss": row.value},
    )  # fmt: skip


def rows_left(out: Excursion, band: LossBand) -> float:
    """Return how many rows are left at the pace of the latest ones."""
    return rows_to_limit([band.range, *(value - band.best for value in out.values)])


def creeps(row: Row, creep: Creep, band: LossBand, rows: int) -> Finding:
    """Return that the loss rises, ever faster, below the edge of its band."""
    text = (
        f"the loss has risen from {creep.floor:.4g} to {creep.level:.4g} since step {creep.onset_step}, "
        f"ever faster; it is still below where the run began, at {band.start:.4g}"
    )
    return Finding(
        kind="gradual_divergence", severity="warning", onset_step=creep.onset_step, detected_step=row.step,
        evidence=(Evidence(text=text, series="loss", step=row.step, value=row.value),),
        facts={**row.flags, **band_facts(band, rows), "height": band.height(creep.level),
               "loss": creep.level, "is_creeping": True},
    )  # fmt: skip


def left_behind(row: Row, values: Sequence[float], steps: Sequence[int]) -> Finding:
    """Return that all rows but the first are of another size: it blew up, or the first one is another sum."""
    low, high = min(values[1:]), max(values[1:])
    text = (
        f"the loss was {values[0]:.4g} in the first row, at step {steps[0]}, and {low:.4g} to {high:.4g} "
        f"in the {len(values) - 1} rows since; unless that first row was added up otherwise, it blew up"
    )
    return Finding(
        kind="immediate_blowup", severity="warning", onset_step=steps[1], detected_step=row.step,
        evidence=(Evidence(text=text, series="loss", step=steps[0], value=values[0]),),
        facts={**row.flags, "best": values[0], "start": values[0], "rows_before": 1,
               "height": low / values[0], "excursion_rows": len(values) - 1, "loss": row.value},
    )  # fmt: skip


def over(row: Row, onset: int, text: str, kind: Kind | None = None) -> Finding:
    """Return that a divergence which was told was none."""
    return Finding(
        kind=kind or "gradual_divergence", severity="critical", phase="withdraw", onset_step=onset,
        detected_step=row.step,
        evidence=(Evidence(text=text, series="loss", step=row.step, value=row.value),),
    )  # fmt: skip


def spike(
    row: Row, out: Excursion, band: LossBand, rows: int, outcome: Literal["recovered", "persisted"]
) -> Finding:
    """Return that the loss has jumped, and what became of it."""
    text = (
        f"the loss was {out.peak_value:.4g} at step {out.peak_step} and spent "
        f"{counted(out.rows - out.inside, 'step')} outside its usual range; "
        f"its best level was {band.best:.4g}"
    )
    return Finding(
        kind="loss_spike", severity="info" if outcome == "recovered" else "warning",
        phase="resolve" if outcome == "recovered" else "open",
        onset_step=out.onset_step, detected_step=row.step,
        evidence=(Evidence(text=text, series="loss", step=out.peak_step, value=out.peak_value),),
        facts={**band_facts(band, rows), "outcome": outcome, "height": out.peak, "peak": out.peak_value,
               "peak_step": out.peak_step, "excursion_rows": out.rows},
    )  # fmt: skip


def band_facts(band: LossBand, rows: int) -> Flags:
    """Return where the loss has been; {} before its first row."""
    if not band.rows:
        return {}
    return {"best": band.best, "start": band.start, "noise": band.noise, "rows_before": rows}


def spelled(value: float) -> str:
    """Return a non-finite value as people write it."""
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
