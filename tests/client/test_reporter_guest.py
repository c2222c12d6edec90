"""The reporter is a guest: it changes no number, disturbs no other callback, and leaves nothing behind."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from training import batch, recorded, reporting, small_model
from trainvitals import HealthReporter, wire
from trainvitals.identity import flat_scalars
from trainvitals.probe.types import Value

# Keras's own saving meets a numpy that is newer than it knows.
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


@pytest.mark.parametrize("is_first", [True, False])
def test_the_failing_step_arrives_beside_other_callbacks(is_first: bool, tmp_path: Path) -> None:
    model = small_model()
    model.compile("adam", "mse")
    x, y = batch(64)
    y[45] = np.nan
    reporter, sent = reporting()
    others = [
        keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_freq=2),
        keras.callbacks.EarlyStopping("loss"),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.BackupAndRestore(tmp_path / "backup"),
        keras.callbacks.TensorBoard(tmp_path / "board", update_freq="batch"),
    ]
    callbacks = [reporter, *others] if is_first else [*others, reporter]
    model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    assert sent.steps == [0, 1, 2, 3, 4, 5]
    assert np.isnan(sent.series("loss")[5])
    assert sent.series("label_nonfinite") == {5: 1.0}
    loads = (
        "import sys; sys.modules['trainvitals'] = None\n"
        "import keras; model = keras.models.load_model(sys.argv[1])\n"
        "print(len(model.variables), len(model.optimizer.variables))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", loads, str(tmp_path / "best.keras")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split()[-2:] == [str(len(model.variables)), str(len(model.optimizer.variables))]


def ours(target: object) -> set[str]:
    """Return the attributes of `target` that come from trainvitals."""
    return {
        name
        for name, value in vars(target).items()
        if "trainvitals" in str(getattr(value, "__module__", "")) + type(value).__module__
    }


def test_a_model_is_saved_copied_and_cloned_in_mid_fit(tmp_path: Path) -> None:
    model = small_model()
    model.compile("adam", "mse")
    x, y = batch()
    reporter, sent = reporting()

    class Saving(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Value = None) -> None:
            if batch != 3:
                return
            assert (ours(model), ours(model.optimizer)) == ({"train_function"}, set())
            self.copies = [
                copy.deepcopy(model),
                pickle.loads(pickle.dumps(model)),
                keras.models.clone_model(model),
            ]
            model.save(tmp_path / "model.keras")
            model.save_weights(tmp_path / "model.weights.h5")
            model.export(tmp_path / "exported", verbose=False)

    saving = Saving()
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[reporter, saving])
    assert sent.steps == list(range(8))
    for twin in saving.copies[:2]:
        twin.fit(x, y, batch_size=8, verbose=0)
    assert sent.steps == list(range(8))
    assert len(keras.models.load_model(tmp_path / "model.keras").variables) == len(model.variables)


def test_a_copied_reporter_is_another_run() -> None:
    reporter = HealthReporter("http://127.0.0.1:1", project="search", run_id="first")
    sent = recorded(reporter)
    model = small_model()
    model.compile("sgd", "mse")
    model.fit(*batch(16), verbose=0, callbacks=[reporter])
    for twin in (copy.deepcopy(reporter), pickle.loads(pickle.dumps(reporter)), copy.copy(reporter)):
        assert twin.run_id not in ("first", "")
        assert twin.dashboard_url.startswith("http://127.0.0.1:1/runs/")
        other = recorded(twin)
        model.fit(*batch(16), verbose=0, callbacks=[twin])
        assert other.steps == [0]
    assert sent.steps == [0]


def test_bad_options_fail_where_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="must look like"):
        HealthReporter("localhost:8765")
    with pytest.raises(TypeError, match="list of strings"):
        HealthReporter(tags="a")
    with pytest.raises(ValueError, match="rank"):
        HealthReporter(rank=-1)
    for rank in (2**40, 10**5000):
        with pytest.raises(ValueError, match="rank must be from 0 to 2147483646"):
            HealthReporter(rank=rank)
    with pytest.raises(TypeError, match="rank must be a whole number, not True"):
        HealthReporter(rank=True)
    for url in ("http://x:99999", "http://x:0", "http://[::1", "http://x\x00", "http://x y"):
        with pytest.raises(ValueError, match="url must look like"):
            HealthReporter(url)
    with pytest.raises(TypeError, match=r"config must be a dict, not \[1\]"):
        HealthReporter(config=[1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="callable"):
        HealthReporter(on_incident="mail me")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty"):
        HealthReporter(project=" ")
    with pytest.raises(ValueError, match="it may hold no"):
        HealthReporter(run_id="a/b")
    monkeypatch.setenv("TRAINVITALS_URL", "http://elsewhere:1/")
    assert HealthReporter(run_id="a b").dashboard_url == "http://elsewhere:1/runs/a%20b"


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return our own lines of the log; TensorFlow has its own."""
    return [record.getMessage() for record in caplog.records if record.name == "trainvitals"]


class Unspeakable:
    """A setting that cannot even be shown."""

    def __repr__(self) -> str:
        raise ZeroDivisionError


def test_settings_of_any_kind_are_shown_as_well_as_they_can_be() -> None:
    endless: dict[str, Any] = {"a": 10**5000, "b": Unspeakable(), "c": {"d": 1}, "e": 2**64}
    endless["f"] = endless
    told = flat_scalars(endless)
    assert told["a"] == "a value of type int"
    assert told["b"] == "a value of type Unspeakable"
    assert (told["c.d"], told["e"], told["f.c.d"]) == (1, str(2**64), 1)
    assert len(told) <= wire.MAX_CONFIG_ITEMS


def test_of_two_reporters_in_one_fit_one_gets_the_rows_and_the_log_says_which(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = HealthReporter(run_id="first"), HealthReporter(run_id="second")
    sent_first, sent_second = recorded(first), recorded(second)
    model = small_model()
    model.compile("sgd", "mse")
    model.fit(*batch(16), epochs=2, verbose=0, callbacks=[first, second])
    assert sent_second.steps == [0, 1]
    assert (sent_first.steps, sent_first.events, sent_first.byes) == ([], [], [])
    assert said(caplog) == ["two reporters in one fit: run second gets the rows, run first gets none"]
    model.fit(*batch(16), verbose=0, callbacks=[first])
    assert len(sent_first.steps) == 1
    assert len(said(caplog)) == 1


def test_a_reporter_in_two_fits_at_once_is_said(caplog: pytest.LogCaptureFixture) -> None:
    reporter = HealthReporter()
    recorded(reporter)
    models = [small_model(), small_model()]

    class Inner(keras.callbacks.Callback):  # type: ignore[misc]
        """Trains another model in another thread, in mid-fit."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ANN401 - Keras's signature
            thread = threading.Thread(
                target=lambda: models[1].fit(*batch(16), verbose=0, callbacks=[reporter])
            )
            thread.start()
            thread.join()

    for model in models:
        model.compile("sgd", "mse")
    models[0].fit(*batch(16), verbose=0, callbacks=[reporter, Inner()])
    assert said(caplog) == [
        "one HealthReporter is in two fits at once; give each thread a reporter of its own"
    ]


def test_odd_logs_of_other_callbacks_do_not_turn_it_off(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(keras.callbacks.Callback):  # type: ignore[misc]
        """Puts what is no metric into the logs."""

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ANN401 - Keras's signature
            logs |= {5: 1.0, "text": "nan", "huge": 10**400, ("a", 1): object(), "fine": 2.0}

    reporter, sent = reporting()
    model = small_model()
    model.compile("sgd", "mse")
    model.fit(*batch(16), epochs=2, verbose=0, callbacks=[Odd(), reporter])
    assert sent.steps == [0, 1]
    epochs = [data for kind, _, data in sent.events if kind == "epoch"]
    assert [data.keys() for data in epochs] == [{"epoch", "loss_running", "5_running", "fine_running"}] * 2
    assert said(caplog) == []


def test_the_package_itself_imports_no_keras() -> None:
    code = "import sys, trainvitals; print('keras' in sys.modules, 'tensorflow' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "False"]
