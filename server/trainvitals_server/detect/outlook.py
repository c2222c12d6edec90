"""Outlook: when an open divergence meets the end of its number formats, in words and in numbers."""

from __future__ import annotations

from trainvitals_server.detect.excursion import Excursion
from trainvitals_server.detect.forecast import FORECAST, HALF_LIMIT_LOG10, LIMIT_LOG10, steps_to_limit
from trainvitals_server.detect.rows import Flags, Row
from trainvitals_server.finding import Evidence

FAR_AHEAD = 100  # times what it took so far: beyond it nobody should plan with a forecast


def outlook(row: Row, out: Excursion, best: float) -> tuple[list[Evidence], Flags]:
    """Return when the number format ends if it goes on like this: float16, too, where it is in use."""
    told: list[Evidence] = []
    facts: Flags = {}
    rises = [value - best for value in out.values]
    formats = {"float32": LIMIT_LOG10}
    if row.loss_scale is not None:
        formats["float16"] = HALF_LIMIT_LOG10
    for name, limit in formats.items():
        ahead = steps_to_limit(out.steps, rises, limit)
        if ahead is not None and ahead.low <= FAR_AHEAD * (row.step - out.onset_step + 1):
            text = f"{FORECAST}, the loss overflows {name} {ahead.text}; it may turn NaN before"
            told.append(Evidence(text=text, series="loss", step=row.step, value=row.value))
            facts |= {f"steps_to_{name}_end": ahead.likely, f"steps_to_{name}_end_low": ahead.low,
                      f"steps_to_{name}_end_high": ahead.high}  # fmt: skip
    return told, facts
