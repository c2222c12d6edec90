"""The verdict on a run that goes on because its reporter leaves the bad updates out. Pure."""

from __future__ import annotations

from trainvitals_server.case import Case

KINDS = frozenset({"sudden_nan", "immediate_blowup", "nonfinite_gradient"})


def kept_out(case: Case) -> str:
    """Return how many updates were left out; "" where none was, or the usual verdict says it of the one."""
    facts = case.latest("kept_out")
    count = int(facts.get("kept_out") or 0)
    if case.incident.kind not in KINDS or not count:
        return ""
    if count > 1:
        return _many(case, count)
    if case.incident.kind != "nonfinite_gradient":
        return ""
    step = case.incident.onset_step
    return f"The gradients were not finite at step {step}, while the loss was. That update was left out."


def _many(case: Case, count: int) -> str:
    facts = case.latest("kept_out")
    losses = int(facts.get("bad_losses") or 0)
    what = "loss is" if losses == count else "loss or a gradient is" if losses else "gradient is"
    text = (
        f"The {what} not finite in {count} of {facts['kept_out_of']} steps since step "
        f"{facts['kept_out_since']}; each of these updates was left out, so that the weights stay good"
    )
    if case.incident.state != "open" or "lost_lately" not in facts:
        return f"{text}."
    share = f"{facts['lost_lately']} of the last {facts['of_latest']} updates were left out"
    return f"{text}, but hardly anything is learned: {share}."
