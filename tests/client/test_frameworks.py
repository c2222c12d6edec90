"""Which reporting goes with which Keras, and what the package needs to be imported at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import keras
import numpy as np
import pytest

from server_process import running_server
from training import batch, reporting, small_model
from trainvitals import HealthReporter, Reporter
from trainvitals.fit import Fit
from trainvitals.frameworks import callback_class, training_for, way_of
from trainvitals.metrics_fit import MetricsFit, RunningMean
from trainvitals.probe.adapter import probe_for
from trainvitals.probe.keras2 import OldProbe
from trainvitals.probe.keras3 import Probe
from trainvitals.probe.kinds import family_of, is_a, scaling_of, takes_unscaled
from trainvitals.probe.late import LateProbe
from trainvitals.response import Response

pytestmark = pytest.mark.tensorflow

ROOT = Path(__file__).parents[2]
TRAINING_TIMEOUT_S = 100
# What another system has not: the module, and how a process is forked.
OTHER_SYSTEM = """
import os, sys
sys.modules["fcntl"] = sys.modules["pwd"] = sys.modules["resource"] = None
for name in ("fork", "forkpty", "register_at_fork", "getuid", "geteuid", "sysconf"):
    if hasattr(os, name):
        delattr(os, name)
"""
LOOP = """
import numpy as np
from trainvitals import Reporter
gradients, variables = [np.ones(3, np.float32)], [np.zeros(3, np.float32)]
with Reporter(project="elsewhere", console=False) as reporter:
    for step in range(20):
        reporter.step(loss=np.float32(step), gradients=gradients, variables=variables)
assert reporter._session.sender.flush(30.0)
print(reporter.run_id)
"""
WITHOUT = """
import sys
for name in ("tensorflow", "keras", "tf_keras"):
    sys.modules[name] = None
import trainvitals
from trainvitals import wire
try:
    trainvitals.HealthReporter
except ImportError as error:
    print(error)
"""


def run(code: str, **environ: str) -> str:
    whole = {**os.environ, **environ}
    done = subprocess.run(
        [sys.executable, "-c", code], env=whole, capture_output=True, text=True, timeout=TRAINING_TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Foreign:
    """Has the shape of nothing in particular."""


def of_tf_keras(name: str, **members: object) -> object:
    """Return an instance of a class that seems to be of tf_keras, which is not installed here."""
    return type(name, (), {"__module__": "tf_keras.src.somewhere", **members})()


def test_a_thing_is_of_the_keras_that_its_classes_come_from() -> None:
    assert family_of(small_model()) == "keras"
    assert family_of(of_tf_keras("Model")) == "tf_keras"
    assert family_of(Foreign()) == ""
    assert is_a(keras.optimizers.SGD(), "Optimizer")
    assert not is_a(type("Optimizer", (), {})(), "Optimizer"), "a class of the user's of the same name"


def test_each_keras_says_of_its_scalers_what_they_do() -> None:
    assert scaling_of(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())) == "dynamic"
    assert scaling_of(keras.optimizers.SGD(loss_scale_factor=8.0)) == "static"
    assert scaling_of(keras.optimizers.SGD()) == ""
    assert scaling_of(of_tf_keras("BaseLossScaleOptimizer", dynamic=True)) == "dynamic"
    assert scaling_of(of_tf_keras("BaseLossScaleOptimizer", dynamic=False)) == "static"
    assert not takes_unscaled(keras.optimizers.SGD())
    assert takes_unscaled(of_tf_keras("SGD"))


def test_the_reporter_is_a_callback_of_keras() -> None:
    assert callback_class() is keras.callbacks.Callback
    assert isinstance(HealthReporter(), keras.callbacks.Callback)


def test_the_model_chooses_what_reports_its_fit() -> None:
    session = HealthReporter()._session
    response = Response("continue", True, False, False)
    assert way_of(small_model()) == "keras"
    assert way_of(of_tf_keras("Model")) == "tf_keras"
    assert isinstance(training_for("keras", session, response, lambda: None), Fit)
    assert isinstance(training_for("metrics", session, response, lambda: None), MetricsFit)
    assert probe_for("keras") is Probe
    assert probe_for("tf_keras") is OldProbe


def test_the_way_into_older_keras_measures_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for probe in (Probe, LateProbe):
        monkeypatch.setattr("trainvitals.probe.adapter.probe_for", lambda way, probe=probe: probe)
        model = small_model()
        model.compile(keras.optimizers.SGD(0.02), "mse")
        reporter, sent = reporting()
        model.fit(*batch(), batch_size=10, shuffle=False, verbose=0, callbacks=[reporter])
        assert sent.steps == list(range(7))
        assert "train_step" not in vars(model)
        found.append((sent.values("loss"), sent.values("grad_norm"), model.get_weights()))
    for ours, theirs in zip(found[0], found[1], strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


def test_single_losses_are_worked_out_of_running_means_where_they_can_be() -> None:
    losses = [1.0, 1.0, 100.0, 1.0, float("nan"), 2.0]
    mean = RunningMean()
    means = [float(np.mean(losses[: count + 1])) for count in range(len(losses))]
    found = [mean.take(count + 1, one, is_last=False) for count, one in enumerate(means)]
    assert found[:4] == pytest.approx(losses[:4])
    assert np.isnan(found[4] or 0.0)
    assert found[5] is None, "what follows a NaN cannot be told"
    mean = RunningMean()
    assert mean.take(1, 1.0, is_last=False) == 1.0
    assert mean.take(2, 1.5, is_last=True) is None, "the last batch may be a short one"
    assert RunningMean().take(1, "much", is_last=False) is None


def test_a_loop_reports_where_no_process_can_be_forked(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        run_id = run(
            OTHER_SYSTEM + LOOP, TRAINVITALS_URL=server.url, TRAINVITALS_SPOOL=str(tmp_path / "spool")
        )
        address = f"{server.url}/api/v1/runs/{run_id}/export.jsonl"
        with urllib.request.urlopen(address, timeout=TRAINING_TIMEOUT_S) as answer:
            rows = [json.loads(line) for line in answer]
    assert [row["loss"] for row in rows] == list(range(20))
    np.testing.assert_allclose([row["grad_norm"] for row in rows], 3**0.5)


def test_without_keras_the_package_can_be_imported_and_says_what_is_missing() -> None:
    assert "HealthReporter needs Keras" in run(WITHOUT)


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str | None] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name == "href"]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("kind", [HealthReporter, Reporter])
def test_a_notebook_shows_the_name_and_the_link(kind: type[HealthReporter]) -> None:
    reporter = kind("http://127.0.0.1:1", name='<script>alert("1")</script>', project="a & b")
    page = Links()
    page.feed(reporter._repr_html_())
    assert page.tags == ["div", "a"], "nothing of the user's text is a tag"
    assert page.links == [reporter.dashboard_url]
    assert page.text == 'trainvitals: <script>alert("1")</script> in a & b'
