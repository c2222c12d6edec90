"""The sender against the real server, which is killed while frames are under way."""

from __future__ import annotations

import csv
import urllib.request
from pathlib import Path

import numpy as np

from client_rows import hello, rows
from server_process import running_server
from trainvitals import wire
from trainvitals.rows import Rows
from trainvitals.sender import Sender

TIMEOUT_S = 30.0
ROUNDS = 3


def exported(url: str, *names: str) -> list[tuple[str, ...]]:
    """Return columns of the run's CSV, as they are spelled."""
    with urllib.request.urlopen(f"{url}/api/v1/runs/run/export.csv", timeout=TIMEOUT_S) as answer:
        table = csv.DictReader(answer.read().decode().splitlines())
    return [tuple(row[name] for name in names) for row in table]


def test_a_server_killed_again_and_again_has_every_row_once(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        sender = Sender(hello(), url=server.url, spool_dir=tmp_path / "spool", console=False)
        sender.layout([wire.Layer(name="dense")], None)
        step = 0
        for _ in range(ROUNDS):
            for _ in range(40):
                sender.rows(rows(step, step + 5))
                step += 5
            assert sender.flush(TIMEOUT_S)
            for _ in range(40):
                sender.rows(rows(step, step + 5))
                step += 5
            server.kill()
            server.start()
        sender.bye("finished", step - 1)
        assert sender.flush(TIMEOUT_S)
        sender.close()
        found = exported(server.url, "step", "loss")
    assert found == [(str(number), repr(number * 0.5)) for number in range(step)]
    assert sender.dropped == {}


def test_the_four_kinds_of_number_arrive_as_four(tmp_path: Path) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1.0, 2.0])
    present = np.array([True, True, True, False, True])
    with running_server(tmp_path / "data") as server:
        sender = Sender(hello(), url=server.url, spool_dir=tmp_path / "spool", console=False)
        sender.rows(Rows(np.arange(5), np.arange(5.0), {"loss": (values, present)}))
        assert sender.flush(TIMEOUT_S)
        sender.close()
        found = exported(server.url, "loss")
    assert found == [("NaN",), ("Infinity",), ("-Infinity",), ("",), ("2.0",)]
