"""Bounds hold: whatever numbers within them are put in, what numpy computes is within those of the result."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainvitals.preflight import bounds as b
from trainvitals.preflight.bounds import POSITIVE, Bounds
from trainvitals.preflight.label_rules import Taken, fault_of
from trainvitals.preflight.node import Node
from trainvitals.preflight.rules import derived
from trainvitals.preflight.trace import bounds_of_data

ENDS = st.sampled_from([-math.inf, -30.0, -1.0, -0.5, 0.0, POSITIVE, 1e-7, 0.5, 1.0, 2.0, 30.0, math.inf])
SLACK = 1e-6


@st.composite
def ranges(draw: st.DrawFn) -> Bounds:
    low, high = sorted((draw(ENDS), draw(ENDS)))
    if low == math.inf or high == -math.inf:
        return Bounds()
    return Bounds(low, high, of_weights=True)


def within(one: Bounds, seed: int) -> float:
    """Return a number within bounds; often an end."""
    generator = np.random.default_rng(seed)
    low, high = max(one.low, -80.0), min(one.high, 80.0)
    return float(generator.choice([low, high, generator.uniform(low, high)]))


def holds(one: Bounds, number: float) -> bool:
    slack = SLACK * max(1.0, abs(number))
    return math.isnan(number) or one.low - slack <= number <= one.high + slack


def result(kind: str, *operands: Bounds) -> Bounds:
    nodes = {place: Node("leaf", one, (), (3,), "float32") for place, one in enumerate(operands)}
    return derived(nodes, kind, tuple(nodes), Node(kind, Bounds(), (), (3,), "float32"))


UNARY: dict[str, Callable[[float], float]] = {
    "Exp": np.exp,
    "Neg": lambda x: -x,
    "Abs": abs,
    "Square": lambda x: x * x,
    "Relu": lambda x: max(x, 0.0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "Softplus": lambda x: np.log1p(np.exp(x)),
    "Log": lambda x: np.log(x) if x > 0 else math.nan,
    "Sqrt": lambda x: np.sqrt(x) if x >= 0 else math.nan,
    "Reciprocal": lambda x: 1 / x if x else math.nan,
    "Expm1": np.expm1,
}
BINARY: dict[str, Callable[[float, float], float]] = {
    "AddV2": lambda x, y: x + y,
    "Sub": lambda x, y: x - y,
    "Mul": lambda x, y: x * y,
    "Maximum": max,
    "Minimum": min,
    "RealDiv": lambda x, y: x / y if y else math.nan,
}


@pytest.mark.parametrize("kind", UNARY)
@given(one=ranges(), seed=st.integers(0, 999))
@settings(max_examples=60)
def test_bounds_of_a_function_hold_what_numpy_computes(kind: str, one: Bounds, seed: int) -> None:
    assert holds(result(kind, one), float(UNARY[kind](within(one, seed))))


@pytest.mark.parametrize("kind", BINARY)
@given(one=ranges(), other=ranges(), seed=st.integers(0, 999))
@settings(max_examples=60)
def test_bounds_of_two_operands_hold_what_numpy_computes(
    kind: str, one: Bounds, other: Bounds, seed: int
) -> None:
    number = float(BINARY[kind](within(one, seed), within(other, seed + 1)))
    assert holds(result(kind, one, other), number)


def test_what_is_above_0_stays_above_0() -> None:
    positive = Bounds(POSITIVE, 1.0)
    assert b.multiplied(positive, positive).low > 0
    assert b.summed(positive, 3).low > 0
    assert result("Exp", Bounds()).low > 0
    assert result("AddV2", Bounds(0.0, 1.0), Bounds(1e-7, 1e-7)).low > 0


def test_an_epsilon_is_lost_where_float16_cannot_hold_it() -> None:
    nodes = {0: Node("leaf", Bounds(1e-8, 1 - 1e-8), (), (), "float32")}
    made = Node("Cast", Bounds(), (), (), "float16")
    assert derived(nodes, "Cast", (0,), made) == Bounds(0.0, 1.0)


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert not result("Cholesky", Bounds()).is_known
    assert result("Square", result("Cholesky", Bounds())).is_known


SPARSE = Taken("sparse_categorical_crossentropy", 3, (4, 3))


@pytest.mark.parametrize(
    ("labels", "loss", "code"),
    [
        ([0, 1, 2, 2], SPARSE, None),
        ([0.0, 1.0, 2.0, 2.0], SPARSE, None),
        ([0, 1, 2, 3], SPARSE, "labels_outside_domain"),
        ([0, 1, 2, 0.5], SPARSE, "labels_outside_domain"),
        ([0, 1, 2, 255], Taken("sparse_categorical_crossentropy", 3, (4, 3), 255), None),
        ([[0], [1], [2], [0]], SPARSE, None),
        ([[0.9, 0.05, 0.05]] * 4, Taken("categorical_crossentropy", 3, (4, 3)), None),
        ([[0, 0, 0]] * 4, Taken("categorical_crossentropy", 3, (4, 3)), None),
        ([[1], [2], [0], [0]], Taken("categorical_crossentropy", 3, (4, 3)), "labels_sparse_for_one_hot"),
        ([0.3, 0.7], Taken("binary_crossentropy", 1, (2, 1)), None),
        ([True, False], Taken("binary_crossentropy", 1, (2, 1)), None),
        ([-1, 1], Taken("hinge", 1, (2, 1)), None),
        ([0, 1], Taken("hinge", 1, (2, 1)), None),
        ([1, 2], Taken("hinge", 1, (2, 1)), "labels_outside_domain"),
        ([0, 3], Taken("poisson", 1, (2, 1)), None),
        ([-4, 3], Taken("mean_squared_error", 1, (2, 1)), None),
        ([0, 3], Taken("mean_absolute_percentage_error", 1, (2, 1)), "labels_outside_domain"),
        ([-4, 3], Taken("", 1, (2, 1)), None),
    ],
)
def test_labels_are_judged_by_what_their_loss_takes(
    labels: list[float], loss: Taken, code: str | None
) -> None:
    fault = fault_of(np.asarray(labels), loss)
    assert (None if fault is None else fault.code) == code


def test_a_part_of_the_batch_that_is_all_nan_has_no_bounds_and_warns_of_nothing() -> None:
    assert bounds_of_data(np.full((2, 2), np.nan)) == Bounds(of_data=True)
    assert bounds_of_data(np.array([np.nan, 0.5])) == Bounds(0.0, 1.0, of_data=True)
