"""Loss parts: columns with the losses of several outputs or networks, such as `out_a_loss` or `loss_2`. Pure.

Where a log has their total, that is what is trained on, and judged. Where it has none, as with a GAN's
two losses, each of them is judged by itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace as with_words

from trainvitals_server.batch import Batch
from trainvitals_server.finding import Evidence
from trainvitals_server.incident import Incident

PREFIX = "loss/"  # of the series: what follows is the column's own name
MAX_JUDGED = 16
MAX_NAMED = 8


def parts_of(series: Iterable[str]) -> list[str]:
    """Return the names of the columns that hold parts, in their order."""
    return sorted(name.removeprefix(PREFIX) for name in series if name.startswith(PREFIX))


def judged_of(series: Iterable[str]) -> list[str]:
    """Return the parts that are judged by themselves: none where there is a total."""
    known = set(series)
    return [] if "loss" in known else parts_of(known)[:MAX_JUDGED]


def note_on(series: Iterable[str]) -> str:
    """Return what became of the parts; "" where there are none."""
    known = set(series)
    parts, judged = parts_of(known), judged_of(known)
    if judged:
        return f"no column `loss`: judged each by itself: {_listed(judged)}"
    return f"parts of `loss`, not judged by themselves: {_listed(parts)}" if parts else ""


def as_loss(batch: Batch, part: str) -> Batch:
    """Return the rows with one part in place of the loss, and nothing else."""
    series = batch.columns.get(PREFIX + part)
    return Batch(batch.steps, {} if series is None else {"loss": series})


def of_part(incident: Incident, part: str) -> Incident:
    """Return an incident of one part, which says so."""
    return with_words(
        incident,
        id=f"{incident.id}/{part}",
        verdict=f"`{part}`: {incident.verdict}",
        evidence=[_of_part(item, part) for item in incident.evidence],
    )


def _of_part(item: Evidence, part: str) -> Evidence:
    return with_words(item, series=part) if item.series == "loss" else item


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{', '.join(names[:MAX_NAMED])}{more}"
