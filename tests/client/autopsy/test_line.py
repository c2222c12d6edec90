"""The line in the user's terminal."""

from __future__ import annotations

import pytest

from trainvitals.autopsy.line import line_of
from trainvitals.autopsy.report import Operand, Report

MASK = Report(
    step=437,
    found="operation",
    is_reproduced=True,
    operation="AddV2",
    layer="attention",
    file="/home/me/model.py",
    line=42,
    inputs=(
        Operand(name="0", dtype="float16", shape=(4, 8), min=-356.0, max=258.0),
        Operand(name="1", dtype="float16", shape=(4, 8), min=-65504.0, max=0.0),
    ),
    output=Operand(name="", dtype="float16", shape=(4, 8), min=-356.0, max=258.0, n_neginf=3),
)
LOG = Report(
    step=3,
    found="operation",
    is_reproduced=True,
    operation="Log",
    inputs=(Operand(name="0", dtype="float32", shape=(4,), min=0.0, max=0.0),),
    output=Operand(name="", dtype="float32", shape=(4,), n_neginf=4),
)
LABEL = Report(
    step=5,
    found="label",
    is_reproduced=True,
    inputs=(Operand(name="y", dtype="float32", shape=(8, 1), min=0.0, max=1.0, n_nan=2),),
    n_bad=2,
    samples=(1, 6),
    n_bad_samples=2,
)
WEIGHT = Report(step=9, found="weight", is_reproduced=True, layer="dense/kernel", weights_bad_since=8)
CAME_SO = Report(step=0, found="weight", is_reproduced=True, layer="d/kernel", weights_bad_since=-1)
MET = Report(step=9, found="nothing", is_reproduced=False, met="loss", notes=("the loss was finite",))
NOTHING = Report(step=9, found="nothing", is_reproduced=False, notes=("it depends on chance",))


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (
            MASK,
            (
                "first bad operation at step 437: AddV2 in attention (model.py:42): "
                "[-356, 258] + [-65504, 0] -> -Inf"
            ),
        ),
        (LOG, "first bad operation at step 3: Log: Log(0) -> -Inf"),
        (LABEL, "bad label at step 5: y has 2 NaN, samples 1, 6 of the batch"),
        (WEIGHT, "weights were not finite before step 9: dense/kernel, since step 8"),
        (CAME_SO, "weights were not finite before step 0: d/kernel, from the first step that was seen"),
        (MET, "step 9 was replayed and not reproduced, so that no cause is named: the loss was finite"),
        (NOTHING, "step 9 was replayed and stayed finite: it depends on chance"),
    ],
    ids=["operation", "without a line", "label", "weight", "weight from the start", "another way", "nothing"],
)
def test_a_report_in_one_line(report: Report, line: str) -> None:
    assert line_of(report) == line
