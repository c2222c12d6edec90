"""Batches, labels and outputs with one planted fault: a preflight names it, and the feature or samples."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

from planted import dense, net, only
from sound import ids, normal
from trainvitals.preflight import preflight

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("default_policy")]


# The batch


def test_a_missing_value_is_named_with_feature_and_sample() -> None:
    x = normal(16, 5)
    x[9, 3] = np.nan
    found = only(net(dense(4, "relu"), dense(1)), x, normal(16, 1))
    assert (found.code, found.severity) == ("data_not_finite", "error")
    assert (found.part, found.feature, found.samples) == ("x", 3, (9,))


def test_an_infinite_label_is_named() -> None:
    y = normal(16, 1)
    y[[2, 5]] = np.inf
    found = only(net(dense(4, "relu"), dense(1)), normal(16, 5), y)
    assert (found.code, found.part, found.samples) == ("data_not_finite", "y", (2, 5))
    assert "2 Infinity" in found.what


def test_pixels_of_0_to_255_are_not_normalised() -> None:
    images = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 1)).astype("uint8")
    model = net(layers.Conv2D(4, 3, name="first"), layers.Flatten(), dense(1))
    found = only(model, images, normal(8, 1))
    assert (found.code, found.severity, found.layer) == ("input_not_normalised", "warning", "first")
    assert "Rescaling(1 / 255)" in found.snippet


def test_one_raw_feature_among_normalised_ones_is_named() -> None:
    x = normal(32, 4)
    x[:, 2] = 2015 + 5 * x[:, 2]
    found = only(net(dense(8, "tanh"), dense(1)), x, normal(32, 1))
    assert (found.code, found.part, found.feature) == ("input_not_normalised", "x", 2)


def test_inputs_that_float16_cannot_hold_are_named() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    x = normal(16, 4)
    x[3, 1] = 1e5
    report = preflight(net(layers.BatchNormalization(), dense(1)), (x, normal(16, 1)))
    assert [(one.code, one.feature, one.samples) for one in report.errors] == [
        ("input_beyond_float16", 1, (3,))
    ]


# Labels


def test_class_ids_that_begin_with_1_are_outside_of_the_loss() -> None:
    y = ids(3, 16) + 1
    found = only(net(dense(3, "softmax"), loss="sparse_categorical_crossentropy"), normal(16, 4), y)
    assert (found.code, found.snippet) == ("labels_outside_domain", "y = y - 1")
    assert found.samples == tuple(np.flatnonzero(y == 3))


def test_a_negative_class_id_is_outside_of_the_loss() -> None:
    y = ids(3, 16)
    y[4] = -1
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = only(net(dense(3), loss=loss), normal(16, 4), y)
    assert (found.code, found.samples) == ("labels_outside_domain", (4,))


def test_one_hot_labels_for_a_loss_over_class_ids_are_told_apart() -> None:
    model = net(dense(3, "softmax"), loss="sparse_categorical_crossentropy")
    assert only(model, normal(16, 4), np.eye(3)[ids(3, 16)]).code == "labels_one_hot_for_sparse"


def test_class_ids_for_a_loss_over_one_hot_labels_are_told_apart() -> None:
    model = net(dense(3, "softmax"), loss="categorical_crossentropy")
    assert only(model, normal(16, 4), ids(3, 16)).code == "labels_sparse_for_one_hot"


@pytest.mark.parametrize(
    ("labels", "advice"), [([-1, 1], "y = (y + 1) / 2"), ([0, 255], "/ 255"), ([1, 2], "y = y - 1")]
)
def test_labels_of_a_binary_loss_outside_of_0_to_1_are_told(labels: list[int], advice: str) -> None:
    y = np.asarray(labels)[ids(2, 16, 1)].astype("float32")
    found = only(net(dense(1, "sigmoid"), loss="binary_crossentropy"), normal(16, 4), y)
    assert found.code == "labels_outside_domain"
    assert advice in found.snippet


def test_labels_of_several_classes_do_not_fit_a_loss_over_exactly_one() -> None:
    y = np.eye(4, dtype="float32")[ids(4, 16)]
    y[3] = 1
    found = only(net(dense(4, "softmax"), loss="categorical_crossentropy"), normal(16, 4), y)
    assert (found.code, found.severity, found.samples) == ("labels_not_one_class", "warning", (3,))


def test_negative_counts_do_not_fit_poisson() -> None:
    found = only(net(dense(1, "softplus"), loss="poisson"), normal(16, 4), normal(16, 1))
    assert found.code == "labels_outside_domain"


def test_three_labels_do_not_fit_a_hinge() -> None:
    found = only(net(dense(1, "tanh"), loss="hinge"), normal(16, 4), ids(3, 16, 1))
    assert found.code == "labels_outside_domain"


# Between outputs and loss


def test_a_softmax_before_a_loss_of_logits_is_one_too_many() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = only(net(dense(8, "relu"), dense(3, "softmax", "probs"), loss=loss), normal(16, 4), ids(3, 16))
    assert (found.code, found.severity) == ("activation_before_logits_loss", "error")
    assert found.layer == "probs"


def test_a_sigmoid_that_keras_looks_behind_is_a_warning() -> None:
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    found = only(net(dense(1, "sigmoid"), loss=loss), normal(16, 4), ids(2, 16, 1))
    assert (found.code, found.severity) == ("activation_before_logits_loss", "warning")


@pytest.mark.parametrize(
    ("units", "loss"), [(1, "binary_crossentropy"), (3, "sparse_categorical_crossentropy")]
)
def test_logits_before_a_loss_of_probabilities_lack_an_activation(units: int, loss: str) -> None:
    found = only(net(dense(8, "relu"), dense(units, None, "head"), loss=loss), normal(16, 4), ids(units, 16))
    assert (found.code, found.severity, found.layer) == ("logits_without_activation", "error", "head")


def test_a_linear_output_does_not_fit_poisson() -> None:
    codes = [
        one.code for one in preflight(net(dense(1), loss="poisson"), (normal(16, 4), ids(9, 16, 1))).errors
    ]
    assert "outputs_outside_domain" in codes


def test_a_softmax_over_one_unit_learns_nothing() -> None:
    model = net(dense(8, "relu"), dense(1, "softmax", "one"), loss="binary_crossentropy")
    found = preflight(model, (normal(16, 4), ids(2, 16, 1))).findings[0]
    assert (found.code, found.severity, found.layer) == ("single_unit_softmax", "error", "one")


def test_a_softmax_over_one_unit_inside_is_found_too() -> None:
    given = keras.Input((6, 4))
    weights = layers.Dense(1, activation="softmax", name="attention")(given)
    model = keras.Model(given, dense(1)(layers.Flatten()(given * weights)))
    model.compile("adam", "mse")
    found = preflight(model, (normal(8, 6, 4), normal(8, 1)))
    assert ("single_unit_softmax", "attention") in [(one.code, one.layer) for one in found.findings]


def test_labels_that_are_not_as_many_as_the_inputs_are_told() -> None:
    found = only(net(dense(3), dense(1)), normal(32, 4), normal(5, 1))
    assert (found.code, found.part) == ("labels_of_other_count", "y")
    assert "32 samples in x, and 5 labels" in found.what


def test_a_model_with_nothing_to_train_gets_a_note() -> None:
    model = net(dense(3), dense(1))
    model.build((None, 4))
    model.trainable = False
    model.compile("adam", "mse")
    (note,) = preflight(model, (normal(32, 4), normal(32, 1))).notes
    assert "no weight of the model is trainable" in note
