"""Line: a report in one line for the user's terminal."""

from __future__ import annotations

from pathlib import PurePath

from trainvitals.autopsy.report import Operand, Report

SYMBOLS = {"AddV2": "+", "Add": "+", "Sub": "-", "Mul": "*", "RealDiv": "/", "Div": "/", "Pow": "**"}
PARTS = {"input": "input", "label": "label", "sample_weight": "sample weight"}
MAX_SHOWN_SAMPLES = 8


def line_of(report: Report) -> str:
    """Return what the report found, in one line."""
    if report.found == "operation":
        return f"first bad operation at step {report.step}: {_operation(report)}"
    if report.found in PARTS:
        return f"bad {PARTS[report.found]} at step {report.step}: {_part(report)}"
    if report.found == "weight":
        since = _since(report.weights_bad_since)
        return f"weights were not finite before step {report.step}: {report.layer or 'some'}{since}"
    note = f": {report.notes[0]}" if report.notes else ""
    if report.met:
        return f"step {report.step} was replayed and not reproduced, so that no cause is named{note}"
    return f"step {report.step} was replayed and stayed finite{note}"


def _since(step: int | None) -> str:
    if step is None:
        return ""
    return f", since step {step}" if step >= 0 else ", from the first step that was seen"


def _operation(report: Report) -> str:
    where = f" in {report.layer}" if report.layer else ""
    source = f" ({PurePath(report.file).name}:{report.line})" if report.file else ""
    made = _made(report)
    return f"{report.operation}{where}{source}" + (f": {made}" if made else "")


def _made(report: Report) -> str:
    if not report.inputs or report.output is None:
        return ""
    ranges = [_range(operand) for operand in report.inputs]
    symbol = SYMBOLS.get(report.operation)
    if symbol is not None and len(ranges) == 2:
        made = f" {symbol} ".join(ranges)
    else:
        made = f"{report.operation}({', '.join(ranges)})"
    return f"{made} -> {_kinds(report.output)}"


def _part(report: Report) -> str:
    operand = report.inputs[0] if report.inputs else None
    name = operand.name if operand is not None else report.found
    what = _kinds(operand) if operand is not None else ""
    feature = "" if report.feature is None else f", feature {report.feature}"
    shown = ", ".join(str(sample) for sample in report.samples[:MAX_SHOWN_SAMPLES])
    more = ", ..." if report.n_bad_samples > MAX_SHOWN_SAMPLES else ""
    samples = f", samples {shown}{more} of the batch" if shown else ""
    found = f"{report.n_bad} {what}" if what else f"{report.n_bad} out of range"
    return f"{name} has {found}{feature}{samples}"


def _range(operand: Operand) -> str:
    if operand.min is None or operand.max is None:
        return _kinds(operand) or operand.dtype
    same = operand.min == operand.max
    return f"{operand.min:.6g}" if same else f"[{operand.min:.6g}, {operand.max:.6g}]"


def _kinds(operand: Operand) -> str:
    counts = {"NaN": operand.n_nan, "Inf": operand.n_posinf, "-Inf": operand.n_neginf}
    return ", ".join(name for name, count in counts.items() if count)
