"""The whole path, nothing in it replaced: a real fit, the real server, the page, the export, the webhook."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import keras
import numpy as np
import pytest
import tensorflow as tf
from playwright.sync_api import Page, expect
from standardwebhooks import Webhook
from websockets.sync.client import connect

from alert_receiver import Received, receiver
from server_process import ServerProcess, running_server
from trainvitals import HealthReporter
from trainvitals_server.codec import decode_column

pytestmark = [pytest.mark.browser, pytest.mark.tensorflow, pytest.mark.timeout(300)]
Column = dict[str, str]
OpenPage = Callable[..., Page]

STEPS = 60
ODD = {25: "NaN", 35: "Infinity", 45: "-Infinity", 50: "missing"}
TIMEOUT_S = 30.0
ALERT_LIMIT_S = 10.0  # from the end of the failing step to a verified alert; the measured time is printed


class SkippedStep(keras.Model):  # type: ignore[misc]
    """Adds the second column of its labels to the loss, and computes none at all where that is 1."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, **rest: Any) -> tf.Tensor:  # noqa: ANN401
        return tf.reduce_mean(tf.square(y[:, :1] - y_pred)) + y[0, 1]

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        x, y = data

        def learn() -> None:
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)

        tf.cond(tf.equal(y[0, 1], 1.0), lambda: None, learn)
        return {"answer": tf.constant(42.0)}


def reporter_of(server: ServerProcess, name: str, tmp_path: Path) -> HealthReporter:
    return HealthReporter(server.url, project="odd", name=name, spool_dir=tmp_path / name)


def train(reporter: HealthReporter, odd: dict[int, str]) -> HealthReporter:
    """Fit a model whose true loss is what `odd` says in those steps; its gradients stay finite throughout."""
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(STEPS * 8, 3)).astype("float32")
    y = np.zeros((STEPS * 8, 2), "float32")
    y[:, 0] = x.sum(axis=1)
    for step, word in odd.items():
        y[step * 8 : step * 8 + 8, 1] = 1.0 if word == "missing" else float(word)
    inputs = keras.Input((3,))
    model = SkippedStep(inputs, keras.layers.Dense(1, name="head")(inputs))
    model.compile(keras.optimizers.SGD(0.01))
    model.fit(x, y, batch_size=8, shuffle=False, epochs=1, verbose=0, callbacks=[reporter])
    return reporter


def wait_for_rows(server: ServerProcess, run_id: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        answer = httpx.get(f"{server.url}/api/v1/runs/{run_id}", trust_env=False)
        if answer.status_code == 200 and answer.json()["last_step"] == STEPS - 1:
            return
    raise AssertionError("the rows did not arrive")


def spelled(value: float, present: bool) -> str:
    if not present:
        return "missing"
    if math.isnan(value):
        return "NaN"
    return "finite" if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def odd_ones(steps: Column, column: Column) -> dict[int, str]:
    values, present = decode_column(column)
    numbers, _ = decode_column(steps)
    words = {int(s): spelled(float(v), bool(p)) for s, v, p in zip(numbers, values, present, strict=True)}
    return {step: word for step, word in words.items() if word != "finite"}


@contextlib.contextmanager
def live_rows(server: ServerProcess, run_id: str) -> Iterator[Callable[[], dict[int, str]]]:
    """Follow a run before it begins; the function returns what of its loss is odd, once all came."""
    address = server.url.replace("http://", "ws://") + "/api/v1/live"
    with connect(address, proxy=None) as socket:
        socket.send(json.dumps({"subscribe": {"run_id": run_id, "series": ["loss"], "cursor": None}}))
        assert json.loads(socket.recv(timeout=TIMEOUT_S))["t"] == "hello"

        def take() -> dict[int, str]:
            found: dict[int, str] = {}
            last = -1
            while last < STEPS - 1:
                frame = json.loads(socket.recv(timeout=TIMEOUT_S))
                if frame["t"] == "rows" and frame["run_id"] == run_id:
                    found |= odd_ones(frame["steps"], frame["columns"]["loss"])
                    last = int(decode_column(frame["steps"])[0][-1])
            return found

        yield take


def test_nan_infinities_and_missing_stay_four_things_from_fit_to_page_and_export(
    server: ServerProcess, open_page: OpenPage, tmp_path: Path
) -> None:
    reporter = reporter_of(server, "four values", tmp_path)
    with live_rows(server, reporter.run_id) as take:
        train(reporter, ODD)
        assert take() == ODD
    wait_for_rows(server, reporter.run_id)
    api = f"{server.url}/api/v1/runs/{reporter.run_id}"

    loss = httpx.get(f"{api}/series?names=loss", trust_env=False).json()["series"]["loss"]
    assert odd_ones(loss["step"], loss["value"]) == ODD

    table = csv.DictReader(io.StringIO(httpx.get(f"{api}/export.csv", trust_env=False).text))
    cells = {int(row["step"]): row["loss"] or "missing" for row in table}
    assert {step: cell for step, cell in cells.items() if cell in (*ODD.values(), "")} == ODD
    assert all(math.isfinite(float(cell)) for step, cell in cells.items() if step not in ODD)

    page = open_page(reporter.dashboard_url)
    chips = page.locator('[data-series="loss"] .chip')
    expect(chips).to_have_count(4)
    counts = {chip.get_attribute("data-kind"): chip.get_attribute("data-count") for chip in chips.all()}
    assert counts == {"nan": "1", "posinf": "1", "neginf": "1", "missing": "1"}


def alerts_of(received: queue.Queue[Received], secret: str, run_id: str) -> Iterator[dict[str, Any]]:
    while True:
        post = received.get(timeout=TIMEOUT_S)
        body = Webhook(secret).verify(post.body, post.headers)
        if body["data"]["run"]["run_id"] == run_id:
            yield body


def test_a_verified_webhook_tells_each_value_as_what_it_is(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server, receiver() as target:
        body = {"url": target.url, "format": "generic"}
        secret = httpx.post(f"{server.url}/api/v1/webhooks", json=body, trust_env=False).json()["secret"]
        said = {}
        for word in ("NaN", "Infinity", "-Infinity"):
            reporter = train(reporter_of(server, word, tmp_path), {20: "missing", 30: word})
            alert = next(alerts_of(target.received, secret, reporter.run_id))
            incident = alert["data"]["incident"]
            assert (incident["onset_step"], incident["nonfinite_step"]) == (30, 30)
            values = [seen["value"] for seen in incident["evidence"] if seen.get("step") == 30]
            assert word in values
            said[word] = {value for value in values if isinstance(value, str)}
        assert said == {word: {word} for word in ("NaN", "Infinity", "-Infinity")}


class StampStep(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes when the step ended whose running loss is first not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.at: float | None = None

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        if self.at is None and logs and not math.isfinite(float(logs["loss"])):
            self.at = time.time()


def test_the_alert_is_there_seconds_after_the_failing_step_ended(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server, receiver() as target:
        body = {"url": target.url, "format": "generic"}
        secret = httpx.post(f"{server.url}/api/v1/webhooks", json=body, trust_env=False).json()["secret"]
        rng = np.random.default_rng(2)
        x = rng.normal(size=(640, 4)).astype("float32")
        x[400, 2] = np.nan
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="head")])
        model.compile(keras.optimizers.SGD(0.01), loss="mse")
        stamp = StampStep()
        reporter = HealthReporter(server.url, name="late", spool_dir=tmp_path / "spool")
        arrived: list[float] = []

        def wait() -> None:
            next(alerts_of(target.received, secret, reporter.run_id))
            arrived.append(time.time())

        waiting = threading.Thread(target=wait)
        waiting.start()
        model.fit(x, x[:, :1], batch_size=8, shuffle=False, verbose=0, callbacks=[stamp, reporter])
        waiting.join(TIMEOUT_S)
        assert arrived
        assert stamp.at is not None
        delay = arrived[0] - stamp.at
        print(f"from the end of the failing step to the verified alert: {delay * 1e3:.0f} ms")  # noqa: T201
        assert delay < ALERT_LIMIT_S
