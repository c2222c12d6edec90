"""The first rows, before a run knows its noise: what one odd row may claim, and what no noise explains."""

from __future__ import annotations

import numpy as np
import pytest

from generators import healthy
from traces import NAN, batch_of
from trainvitals_server.batch import Batch
from trainvitals_server.detect.young import blown_up_since
from trainvitals_server.fold import scan

SEEDS = 400


def paged(batch: Batch) -> bool:
    return any(incident.severity == "critical" for incident in scan([batch]))


def one_sample_a_batch(seed: int) -> Batch:
    """Square the errors of single samples: one first row in a hundred is next to nothing."""
    rng = np.random.default_rng(seed)
    return batch_of({"loss": rng.normal(size=40) ** 2 * np.exp(-np.arange(40) / 200)})


def test_first_rows_that_scatter_by_orders_of_magnitude_page_nobody() -> None:
    assert len([seed for seed in range(SEEDS) if paged(one_sample_a_batch(seed))]) <= SEEDS / 200


@pytest.mark.parametrize(
    ("name", "seed"), [("tiny_batch", 764), ("tiny_batch", 770), ("class_imbalance", 785)]
)
def test_first_rows_that_happen_to_be_alike_page_nobody(name: str, seed: int) -> None:
    assert not paged(healthy(name, seed))


@pytest.mark.parametrize("rest", [[NAN], [4e5] * 20, [8e10], [3e5, 4e6]])
def test_a_jump_in_the_second_row_is_told_at_once_and_pages_once_it_is_sure(rest: list[float]) -> None:
    (warning,) = scan([batch_of({"loss": [3.5, 4e5]})])
    (incident,) = scan([batch_of({"loss": [3.5, 4e5, *rest]})])
    assert (warning.severity, incident.severity) == ("warning", "critical")
    assert (incident.id, incident.kind, incident.detected_step) == (warning.id, "immediate_blowup", 1)


def test_a_jump_in_the_second_row_beyond_all_measure_pages_at_once() -> None:
    (incident,) = scan([batch_of({"loss": [3.5, 4e13]})])
    assert (incident.kind, incident.severity) == ("immediate_blowup", "critical")


def test_a_jump_that_comes_back_is_withdrawn() -> None:
    (incident,) = scan([batch_of({"loss": [3.5, 4e5, 3.4, 3.5, 3.3, 3.4, 3.2]})])
    assert (incident.severity, incident.state) == ("warning", "withdrawn")


@pytest.mark.parametrize(
    ("values", "since"),
    [
        ([1.0, 4.0, 20.0, 90.0, 400.0], 1),
        ([1.0, 0.9, 4.0, 20.0, 90.0], None),  # three rows in ascending order are no rarity
        ([1.0, 1.1, 0.9, 2e4], 3),
    ],
)
def test_a_chain_takes_four_rows(values: list[float], since: int | None) -> None:
    assert blown_up_since(values) == since
