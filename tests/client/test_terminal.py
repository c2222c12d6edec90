"""What a training with the reporter shows in the terminal, with a real server."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import keras
import pytest

from server_process import ServerProcess, running_server
from training import batch, small_model
from trainvitals import HealthReporter, Reporter

pytestmark = pytest.mark.tensorflow

TIMEOUT_S = 30.0


def ask_to_stop(server: ServerProcess, run_id: str, reason: str) -> None:
    """Do what the button on the run's page does."""
    request = urllib.request.Request(
        f"{server.url}/api/v1/runs/{run_id}/stop",
        json.dumps({"reason": reason}).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=TIMEOUT_S).close()


@pytest.mark.parametrize("is_on", [True, False])
def test_the_first_fit_says_where_the_run_is_and_later_ones_do_not(
    is_on: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = small_model()
    model.compile("sgd", "mse")
    x, y = batch(64)
    with running_server(tmp_path / "data") as server:
        reporter = HealthReporter(server.url, name="lr 3e-4", spool_dir=tmp_path / "spool", console=is_on)
        for _ in range(2):
            model.fit(x, y, verbose=0, callbacks=[reporter])
        assert reporter._session.sender.flush(TIMEOUT_S)
        lines = capsys.readouterr().err.splitlines()
    assert reporter.dashboard_url == f"{server.url}/runs/{reporter.run_id}"
    assert lines == ([f"trainvitals: lr 3e-4 -> {reporter.dashboard_url}"] if is_on else [])


def test_a_program_that_ends_with_the_nan_says_the_incident_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = small_model()
    model.compile("sgd", "mse")
    x, y = batch(320)
    y[200] = float("nan")
    with running_server(tmp_path / "data") as server:
        reporter = HealthReporter(server.url, spool_dir=tmp_path / "spool", autopsy=False)
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[reporter, keras.callbacks.TerminateOnNaN()])
        reporter._session.sender.close(TIMEOUT_S)
    said = capsys.readouterr().err
    assert f"{reporter.dashboard_url}?incident=" in said


def test_a_stop_from_the_page_is_said_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_server(tmp_path / "data") as server:
        reporter = Reporter(server.url, run_id="r", spool_dir=tmp_path / "spool")
        with reporter:
            reporter.step(loss=1.0)
            assert reporter._session.sender.flush(TIMEOUT_S)
            ask_to_stop(server, "r", "it\nburns")
            while not reporter.stop_requested:
                reporter.step(loss=1.0)
        assert capsys.readouterr().err.splitlines() == [
            f"trainvitals: run r -> {server.url}/runs/r",
            "trainvitals: stopped from the page (it burns)",
        ]
