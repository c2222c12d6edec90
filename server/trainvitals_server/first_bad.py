"""First bad: the report of a replayed step, as its client sent it, and which incident it explains. Pure.

A report may come before the rows of its step or after; the same reports and findings make the same incident.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from trainvitals import wire
from trainvitals_server.finding import Finding
from trainvitals_server.incident import Incident

MAX_REPORTS = 16  # of one session; the first ones explain, a run that limps on brings no news
# A report is kept in each revision of its incident: longer texts and lists are cut.
MAX_TEXT_CHARS = 500
MAX_BUNDLE_CHARS = 4096  # a path is of no use without its end
MAX_NUMBERS = 32
MAX_ITEMS = 8  # operands, notes
MAX_UNREAD_BYTES = 4096  # of all fields that only a later version knows
NOTHING, WEIGHT = "nothing", "weight"
OF_LOSS = frozenset({"label", "sample_weight"})
# These go on in rows that nobody has folded yet: a report of a later step is of the same trouble.
LASTING_KINDS = frozenset({"loss_scale_collapse", "nonfinite_gradient", "nonfinite_weight"})
NORMAL_KIND = "transient_overflow"  # what a scaler does all the time

Reports = Sequence[Mapping[str, Any]]


class Operand(msgspec.Struct, frozen=True):
    """One tensor; `min` and `max` are those of its finite elements, where they are told."""

    name: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    min: float | None = None
    max: float | None = None
    n_nan: int = 0
    n_posinf: int = 0
    n_neginf: int = 0

    @property
    def is_half(self) -> bool:
        """Whether its numbers end at 65504."""
        return self.dtype == "float16"

    def holds(self, value: float) -> bool:
        """Whether `value` may be among its elements."""
        return self.min is not None and self.max is not None and self.min <= value <= self.max


class FirstBad(msgspec.Struct, frozen=True):
    """What a replay found first; the fields of the client's report that the diagnosis reads."""

    step: int
    found: str
    is_reproduced: bool = True
    met: str = ""  # what the replay met where it went another way than the training
    operation: str = ""
    gradient_of: str = ""
    is_unselected: bool = False
    direction: str = ""
    layer: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    code: str = ""
    inputs: tuple[Operand, ...] = ()
    output: Operand | None = None
    n_bad: int = 0
    feature: int | None = None
    samples: tuple[int, ...] = ()
    n_bad_samples: int = 0
    batch_size: int = 0
    weights_bad_since: int | None = None
    computed_from: tuple[str, ...] = ()
    weights_from: str = ""
    took_s: float = 0.0
    bundle: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_of_loss(self) -> bool:
        """Whether it is what only a loss takes, or an operation (or its gradient) outside of all layers."""
        is_forward = self.direction == "forward" or (self.direction == "backward" and bool(self.gradient_of))
        is_loss_s = self.found in OF_LOSS or (self.found == "operation" and is_forward)
        return is_loss_s and not self.layer

    @property
    def place(self) -> str:
        """Where it happened: file and line, without the folders."""
        name = self.file.replace("\\", "/").rpartition("/")[2]
        return f"{name}:{self.line}" if name and self.line else name


def first_bad_of(incident: Incident) -> FirstBad | None:
    """Return the report that the incident carries; None where there is none that can be read."""
    return None if incident.first_bad_operation is None else _read(incident.first_bad_operation)


def kept(reports: Reports, step: int, data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the reports with one more, unless it cannot be read or there are enough."""
    report = {**data, "step": step}
    known = [dict(one) for one in reports]
    if len(reports) >= MAX_REPORTS or _read(report) is None:
        return known
    return [*known, _short(report)]


def _short(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report within the limits; of what we do not read, what is short."""
    found, room = {}, MAX_UNREAD_BYTES
    for name, value in report.items():
        if name in FirstBad.__struct_fields__:
            found[name] = _cut(name, value)
        elif (size := len(msgspec.msgpack.encode(value))) <= room:
            room -= size
            found[name] = value
    return found


def _cut(name: str, value: Any) -> Any:  # noqa: ANN401 - checked, but still of builtins
    """Return a field of a report without what is beyond the limits."""
    if isinstance(value, str):
        limits = {"layer": wire.MAX_NAME_CHARS, "bundle": MAX_BUNDLE_CHARS}
        return wire.clip(value, limits.get(name, MAX_TEXT_CHARS))
    if isinstance(value, list | tuple):
        has_numbers = all(isinstance(item, int) for item in value[:MAX_NUMBERS])
        return type(value)(_cut(name, item) for item in value[: MAX_NUMBERS if has_numbers else MAX_ITEMS])
    if isinstance(value, dict):
        return {key: _cut(key, item) for key, item in value.items() if key in Operand.__struct_fields__}
    return value


def explained(incident: Incident, reports: Iterable[Mapping[str, Any]]) -> Incident:
    """Return the incident with the report of the earliest of its steps; the very same if that is no news.

    A replay that found something is worth more than one that stayed finite.
    """
    fitting = [report for report in reports if _explains(report, incident)]
    best = min(fitting, key=lambda report: (report["found"] == NOTHING, report["step"]), default=None)
    if best is None or best == incident.first_bad_operation:
        return incident
    return replace(incident, first_bad_operation=dict(best))


def _explains(report: Mapping[str, Any], incident: Incident) -> bool:
    step = report["step"]
    if incident.kind == NORMAL_KIND:
        return False
    if report["found"] == WEIGHT:
        return bool(step == incident.onset_step)  # later they are bad because of this very incident
    if step in _steps_of(incident.findings) or step == incident.nonfinite_step:
        return True
    return incident.kind in LASTING_KINDS and incident.state == "open" and step > incident.onset_step


def _steps_of(findings: Sequence[Finding]) -> set[int | None]:
    """Return the steps in which something was not finite."""
    steps: set[int | None] = set()
    for finding in findings:
        steps |= {finding.onset_step, finding.detected_step, finding.nonfinite_step}
    return steps


def _read(data: Mapping[str, Any]) -> FirstBad | None:
    try:
        return msgspec.convert(data, type=FirstBad)
    except msgspec.ValidationError:
        return None
