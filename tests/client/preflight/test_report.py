"""A report reads well in a terminal and in a notebook, and the documents name everything that it may say."""

from __future__ import annotations

import re
from pathlib import Path

from trainvitals.preflight.finding import CODES, Finding
from trainvitals.preflight.report import PreflightReport

FINDING = Finding(
    code="unbounded_log",
    severity="warning",
    what="the logarithm of <b>p</b> is bad.",
    advice="Clip it.",
    snippet="first\nsecond",
    layer="encoder/attention",
    file="/home/someone/model.py",
    line=42,
    source="ops.log(p)",
    part="x",
    feature=3,
    samples=tuple(range(12)),
)
ERROR = Finding(code="data_not_finite", severity="error", what="NaN.", advice="Drop it.", samples=(4,))


def test_a_finding_says_what_where_and_what_to_do() -> None:
    assert str(FINDING).splitlines() == [
        "warning unbounded_log: the logarithm of <b>p</b> is bad.",
        "  where: layer encoder/attention, model.py:42, x, feature 3, samples 0, 1, 2, 3, 4, 5, 6, 7, ...",
        "  line:  ops.log(p)",
        "  do:    Clip it.",
        "           first",
        "           second",
    ]


def test_a_report_without_errors_is_true() -> None:
    assert PreflightReport()
    assert PreflightReport((FINDING,)).ok
    assert not PreflightReport((ERROR, FINDING))


def test_the_first_line_counts() -> None:
    assert str(PreflightReport()) == "preflight: nothing found"
    assert PreflightReport((ERROR, FINDING)).headline == "preflight: 1 error and 1 warning"
    assert PreflightReport((ERROR, ERROR)).headline == "preflight: 2 errors"


def test_notes_come_last() -> None:
    assert str(PreflightReport((ERROR,), ("it is so",))).splitlines()[-1] == "note: it is so"


def test_a_notebook_shows_the_same_and_takes_no_markup_from_the_program() -> None:
    shown = PreflightReport((FINDING,), ("a < b",))._repr_html_()
    assert "<b>p</b>" not in shown
    assert "&lt;b&gt;p&lt;/b&gt;" in shown
    assert "model.py:42" in shown
    assert "a &lt; b" in shown


def test_every_code_is_explained_in_the_documents() -> None:
    text = (Path(__file__).parents[3] / "docs" / "preflight.md").read_text()
    assert set(re.findall(r"^\| `([a-z0-9_]+)` \|", text, re.MULTILINE)) == set(CODES)
