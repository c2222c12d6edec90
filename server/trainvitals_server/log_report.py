"""Log report: what `trainvitals check` says about one log to a person. Colours where rich is there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from typing import Literal, NamedTuple, TextIO

from trainvitals_server.batch import Batch
from trainvitals_server.detect.needs import HALF, LIVE, Skipped, coverage
from trainvitals_server.incident import Incident
from trainvitals_server.logfile import Log
from trainvitals_server.readers import printable
from trainvitals_server.text_chart import Curve, draw

MARKS = {"critical": "!!", "warning": " !", "info": "  "}
CHARTED = ("loss", "grad_norm", "loss_scale", "val_loss", "learning_rate")  # the first one there is drawn
CHART_WIDTH = 78
MAX_REASONS, MAX_NEXT = 3, 2
MAX_SERIES = 4  # named in the line that says what was not looked for
_SERIES = re.compile(r"no (?:series )?(\w+)")  # of alternatives the first one

Style = Literal["head", "good", "critical", "warning", "info", "chart", "quiet", "plain"]
COLOURS: dict[Style, str] = {
    "head": "bold", "good": "bold green", "critical": "bold red", "warning": "bold yellow", "info": "cyan",
    "chart": "blue", "quiet": "dim", "plain": "",
}  # fmt: skip


class Line(NamedTuple):
    """A line of the report and how it looks."""

    style: Style
    text: str


def report(
    log: Log, incidents: Sequence[Incident], *, width: int, is_plain: bool, is_verbose: bool = False
) -> list[Line]:
    """Return the lines about one log; `is_plain` for a terminal that shows ASCII only."""
    first, last = (
        min(int(branch.steps[0]) for branch in log.branches),
        max(int(branch.steps[-1]) for branch in log.branches),
    )
    loud = [incident for incident in incidents if incident.severity != "info"]
    lines = [
        Line(
            "head" if loud else "good",
            f"{printable(str(log.path))}: {log.rows} rows, {log.unit}s {first} to {last}: {_summary(loud)}",
        )
    ]
    marks = [incident.onset_step for incident in incidents]
    lines += [Line("chart", text) for text in _chart(log, marks, width, is_plain)]
    lines += [Line("plain", f"   note: {note}") for note in log.notes]
    for incident in incidents:
        lines += _incident_lines(incident)
    return lines + _coverage_lines(log, is_verbose=is_verbose)


def show(lines: Sequence[Line], stream: TextIO) -> None:
    """Write the lines; in colours where the stream is a terminal and rich is installed."""
    encoding = stream.encoding or "utf-8"
    lines = [Line(style, text.encode(encoding, "replace").decode(encoding)) for style, text in lines]
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        stream.write("".join(f"{line.text}\n" for line in lines))
        return
    console = Console(file=stream, highlight=False, soft_wrap=True)
    for line in lines:
        console.print(Text(line.text, style=COLOURS[line.style]), soft_wrap=True)


def chart_width() -> int:
    """Return how wide a chart may be in this terminal."""
    return min(shutil.get_terminal_size().columns - 1, CHART_WIDTH)


def _summary(loud: Sequence[Incident]) -> str:
    return "healthy" if not loud else "1 incident" if len(loud) == 1 else f"{len(loud)} incidents"


def _chart(log: Log, marks: Sequence[int], width: int, is_plain: bool) -> list[str]:
    name = next((name for name in CHARTED if name in log.series), None)
    if name is None:
        return []
    longest: Batch = max(log.branches, key=len)
    series = longest.columns.get(name)
    if series is None:
        return []
    curve = Curve(name, longest.steps, series.values, series.present, marks)
    return [line for text in draw(curve, width, is_plain=is_plain) for line in text.split("\n")]


def _incident_lines(incident: Incident) -> list[Line]:
    lines = [Line(incident.severity, f"{MARKS[incident.severity]} {incident.kind}: {incident.verdict}")]
    if incident.severity != "info":
        lines += [Line("plain", f"     why:  {line}") for line in incident.why[:MAX_REASONS]]
        lines += [Line("plain", f"     next: {line}") for line in incident.next[:MAX_NEXT]]
    return lines


def _coverage_lines(log: Log, *, is_verbose: bool) -> list[Line]:
    ran, skipped = coverage(log.counts)
    if not is_verbose:
        return [Line("quiet", f"   looked for {_kinds(len(ran))}{_left_out(skipped)}")]
    reasons: dict[str, list[str]] = {}
    for item in skipped:
        reasons.setdefault(item.reason, []).append(item.kind)
    lines = [Line("quiet", f"   looked for: {', '.join(ran)}")]
    return lines + [
        Line("quiet", f"   not looked for ({reason}): {', '.join(kinds)}")
        for reason, kinds in reasons.items()
    ]


def _left_out(skipped: Sequence[Skipped]) -> str:
    """Return in a few words why kinds were not looked for."""
    if not skipped:
        return ""
    reasons = [item.reason for item in skipped]
    series = dict.fromkeys(
        name for reason in reasons if reason.startswith("no series") for name in _SERIES.findall(reason)
    )
    lacks = [f"columns ({', '.join([*series][:MAX_SERIES])}{', ...' * (len(series) > MAX_SERIES)})"] * bool(
        series
    )
    lacks += ["more rows"] * any(reason[0].isdigit() for reason in reasons)
    lacks += ["a run that reports"] * any(f"no {one}" in reasons for one in (HALF, LIVE))
    *firsts, last = lacks
    told = f"{', '.join(firsts)} or {last}" if firsts else last
    return f"; {len(skipped)} more take {told} (--verbose says which)"


def _kinds(number: int) -> str:
    return "1 kind of trouble" if number == 1 else f"{number} kinds of trouble"
