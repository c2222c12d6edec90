"""What is advised about the logarithm of zero depends on what it is taken of: logits only where they help."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from traces import NAN, batch_of, learning
from trainvitals.wire import Environment, Event, Hello, Layer
from trainvitals_server.catalogue import CATALOGUE
from trainvitals_server.fold import RunFold, scan
from trainvitals_server.incident import Cause, Incident

NAN_STEP = 200
LAYERS = (Layer(name="encoder", kind="Dense"), Layer(name="head", kind="Dense"))


def rows() -> Any:  # noqa: ANN401 - a batch
    bad = np.arange(230) >= NAN_STEP
    return batch_of({"loss": np.where(bad, NAN, learning(230))})


def replayed(low: float | None, high: float | None, **more: object) -> Cause:
    """Return the first cause where a replay saw the logarithm of numbers from `low` to `high`."""
    fold = RunFold("run")
    fold.hello(Hello(run_id="run", session_id="s"))
    fold.rows(0, "s", rows())
    operand = {"name": "0", "dtype": "float32", "shape": [4], "min": low, "max": high}
    output = {"name": "", "dtype": "float32", "shape": [4], "n_neginf": 1}
    data = {"step": NAN_STEP, "found": "operation", "operation": "Log", "direction": "forward",
            "inputs": [operand], "output": output, **more}  # fmt: skip
    fold.event(0, "s", Event(seq=2, step=NAN_STEP, kind="autopsy", data=data))
    return told(fold.incidents())


def told(incidents: list[Incident]) -> Cause:
    (incident,) = [item for item in incidents if item.severity == "critical"]
    (cause,) = [cause for cause in incident.causes if cause.cause == "log_of_zero"]
    return cause


def traced(name: str) -> Cause:
    """Return the cause where only the graph of the step was seen."""
    environment = Environment(operations={"Log": [name]}, loss="own")
    return told(scan([rows()], environment=environment, layers=LAYERS))


def test_a_loss_over_a_probability_is_advised_to_work_on_logits() -> None:
    assert replayed(0.0, 0.98).fix == CATALOGUE["log_of_zero"].fix
    assert "from_logits=True" in replayed(0.0, 0.98).fix


def test_the_log_of_a_label_is_not() -> None:
    cause = replayed(0.0, 0.98, computed_from=["y"])
    assert "`y` alone" in cause.fix
    assert "from_logits" not in cause.fix + cause.snippet


@pytest.mark.parametrize(
    ("low", "high", "layer"), [(0.0, 0.98, "encoder"), (0.0, 57.0, ""), (0.0, 57.0, "encoder")]
)
def test_a_log_that_is_taken_of_no_probability_or_in_a_layer_is_kept_above_zero(
    low: float, high: float, layer: str
) -> None:
    cause = replayed(low, high, layer=layer)
    assert cause.fix.startswith("Keep the argument above 0")
    assert "from_logits" not in cause.fix + cause.snippet


def test_where_the_range_is_not_told_logits_are_advised_on_a_condition() -> None:
    assert "Where it is the loss over a probability" in replayed(None, None).fix


def test_of_the_graph_alone_only_the_log_of_a_loss_may_be_one_over_a_probability() -> None:
    assert "Where it is the loss over a probability" in traced("compile_loss/own/Log").fix
    in_a_layer = traced("functional_1/encoder_1/Log")
    assert "from_logits" not in in_a_layer.fix + in_a_layer.snippet
    assert not any("outputs are near 0 and 1" in line for line in in_a_layer.supports)
