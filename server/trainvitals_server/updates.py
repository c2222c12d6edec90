"""Updates: what the measured size of an update says for a cause. Evidence only: no confidence hangs on it."""

from __future__ import annotations

from trainvitals_server.case import Case

LARGE = 0.1  # of a layer's weights in one step; a thousandth is usual
TINY = 1e-7  # float32 rounds such an update away for most weights


def large_update(case: Case) -> list[str]:
    """Return what speaks for steps that are too large."""
    rates = case.context.rates
    if rates.update is None or rates.update < LARGE:
        return []
    changed = f"changed the weights of `{rates.update_layer}` by {rates.update:.2g} of their norm"
    return [f"the update of step {rates.update_step} {changed}"]


def tiny_update(case: Case) -> list[str]:
    """Return what speaks for steps that are too small."""
    rates = case.context.rates
    if rates.update is None or rates.update >= TINY:
        return []
    if rates.update == 0:
        return [f"the update of step {rates.update_step} changed no weight at all"]
    return [
        f"the update of step {rates.update_step} changed no layer by more than {rates.update:.1e} of its norm"
    ]
