"""What changes nothing about a run changes nothing about what is told of it: real traces, seen otherwise."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from robustness.__main__ import Told, changed_log, told_of
from robustness.changes import CHANGES, Named
from scoring.traces import SUFFIX, Label, read_labels
from trainvitals_server.logfile import Log, read_log

FIXTURES = Path(__file__).parents[2] / "fixtures/traces"
MAX_ROWS = 1000  # longer traces are for `python -m robustness`
PLAIN = CHANGES[0]
SAME_KIND = ("steps x 100", "begins at step 50,000", "without learning rate", "the first 60 %")
SAME_VERDICT = ("loss x 7", "1 % noise", "3 digits", "a third of the losses missing")
# What guessing among so many classes costs is known by its very value.
OTHERWISE = {("loss x 7", "stuck_high_lr"), ("3 digits", "stuck_high_lr")}


def named(name: str) -> Named:
    return next(change for change in CHANGES if change.name == name)


@cache
def logs() -> list[tuple[Label, Log, Told]]:
    found = [(label, read_log(FIXTURES / (label.name + SUFFIX))) for label in read_labels(FIXTURES)]
    short = [(label, log) for label, log in found if label.is_scored and log.rows <= MAX_ROWS]
    return [(label, log, told_of(label, log, PLAIN)) for label, log in short]


def pairs(change: Named) -> list[tuple[Told, Told]]:
    found = []
    for label, log, plain in logs():
        seen = changed_log(label, log, change, plain)
        if seen is not None:
            found.append((plain, told_of(change.label(label), seen, change)))
    return found


@pytest.mark.parametrize("name", SAME_KIND)
def test_the_same_kind_is_told_at_the_same_row(name: str) -> None:
    told = pairs(named(name))
    assert len(told) > 10
    assert [after.label.name for before, after in told if before.first != after.first] == []


@pytest.mark.parametrize("name", SAME_VERDICT)
def test_what_was_rightly_told_is_rightly_told(name: str) -> None:
    told = [(before, after) for before, after in pairs(named(name)) if before.is_good]
    assert len(told) > 10
    wrong = [after.label for _, after in told if not after.is_good]
    assert [label.name for label in wrong if (name, label.label) not in OTHERWISE] == []
