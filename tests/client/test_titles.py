"""What an incident's kind is called, in the terminal, in messages and on the page."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from trainvitals.titles import TITLES, title_of
from trainvitals_server.finding import KINDS

FORMAT = Path(__file__).parents[2] / "web/format.js"


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        ("sudden_nan", "Sudden NaN"),
        ("nonfinite_gradient", "Non-finite gradient"),
        ("metric_nonfinite", "Metric non-finite"),
        ("optimizer_epsilon", "Optimizer epsilon too small"),
    ],
)
def test_a_kind_has_a_title(kind: str, title: str) -> None:
    assert title_of(kind) == title


def test_titles_are_of_kinds_that_there_are() -> None:
    assert set(TITLES) <= set(KINDS)


def test_the_page_calls_every_kind_the_same() -> None:
    program = (
        f"import {{ words }} from {json.dumps(FORMAT.as_uri())};"
        f"console.log(JSON.stringify({json.dumps(KINDS)}.map(words)));"
    )
    done = subprocess.run(
        ["node", "--input-type=module", "-e", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == [title_of(kind) for kind in KINDS]
