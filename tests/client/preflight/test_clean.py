"""Sound programs of every usual shape: a preflight has nothing to say of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from trainvitals.preflight import preflight
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow
Program = Callable[[], tuple[Value, Value]]


def normal(*shape: int) -> Value:
    return np.random.default_rng(len(shape) + sum(shape)).normal(size=shape).astype("float32")


def ids(classes: int, *shape: int) -> Value:
    return np.random.default_rng(7).integers(0, classes, shape)


def compiled(model: Value, loss: Value = None, optimizer: Value = "adam", **options: Value) -> Value:
    model.compile(optimizer=optimizer, loss=loss, **options)
    return model


def perceptron() -> tuple[Value, Value]:
    net = [layers.Dense(16, activation="relu"), layers.Dropout(0.2), layers.Dense(3, activation="softmax")]
    model = compiled(keras.Sequential(net), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, (normal(32, 8), ids(3, 32))


def convnet_of_bytes() -> tuple[Value, Value]:
    net = [
        keras.Input((16, 16, 3)),
        layers.Rescaling(1 / 255),
        layers.Conv2D(8, 3),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.MaxPooling2D(),
        layers.Conv2D(8, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(10),
    ]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    images = np.random.default_rng(1).integers(0, 256, (16, 16, 16, 3)).astype("uint8")
    return compiled(keras.Sequential(net), loss), (images, ids(10, 16))


class MaskedAttention(layers.Layer):  # type: ignore[misc]
    """Attention that masks as it should in half precision."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (layers.Dense(width) for _ in range(3))

    def call(self, x: Value, mask: Value) -> Value:
        scores = ops.matmul(self.q(x), ops.transpose(self.k(x), (0, 2, 1))) / np.sqrt(x.shape[-1])
        low = np.finfo("float16").min / 2
        scores = scores + (1 - ops.cast(mask, scores.dtype))[:, None, :] * low
        return ops.matmul(ops.softmax(scores, axis=-1), self.v(x))


def half_precision_transformer() -> tuple[Value, Value]:
    keras.config.set_dtype_policy("mixed_float16")
    tokens, mask = keras.Input((8,), dtype="int32"), keras.Input((8,), dtype="bool")
    x = layers.Embedding(50, 16)(tokens)
    x = layers.LayerNormalization()(x + MaskedAttention(16)(x, mask))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
    x = layers.LayerNormalization()(x + layers.Dense(16)(layers.Dense(32, activation="gelu")(x)))
    model = keras.Model([tokens, mask], layers.Dense(50, dtype="float32")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    batch = (ids(50, 8, 8), np.arange(8)[None] < 3 + ids(5, 8)[:, None])
    return compiled(model, loss), (batch, ids(50, 8, 8))


def text_classifier() -> tuple[Value, Value]:
    net = [
        layers.Embedding(5000, 16, mask_zero=True),
        layers.LSTM(8),
        layers.Dense(1, activation="sigmoid"),
    ]
    return compiled(keras.Sequential(net), "binary_crossentropy"), (ids(5000, 16, 12), ids(2, 16))


def autoencoder() -> tuple[Value, Value]:
    net = [
        layers.Flatten(),
        layers.Dense(8, activation="relu"),
        layers.Dense(64, activation="sigmoid"),
        layers.Reshape((8, 8)),
    ]
    x = np.random.default_rng(4).random((16, 8, 8)).astype("float32")
    return compiled(keras.Sequential(net), "mse"), (x, x)


class Gan(keras.Model):  # type: ignore[misc]
    """Two networks, two optimizers, and labels with noise as in Keras's own example."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(2)])
        self.critic = keras.Sequential([layers.Dense(8, activation="leaky_relu"), layers.Dense(1)])
        self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    def compile(self, g: Value, d: Value) -> None:
        super().compile()
        self.g_optimizer, self.d_optimizer = g, d
        self.tracker = keras.metrics.Mean(name="g_loss")

    def train_step(self, real: Value) -> dict[str, Value]:
        count = tf.shape(real)[0]
        noise = tf.random.normal((count, 4))
        both = tf.concat([self.generator(noise), real], axis=0)
        labels = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], axis=0)
        labels += 0.05 * tf.random.uniform(tf.shape(labels))
        with tf.GradientTape() as tape:
            d_loss = self.loss_of(labels, self.critic(both))
        gradients = tape.gradient(d_loss, self.critic.trainable_weights)
        self.d_optimizer.apply_gradients(zip(gradients, self.critic.trainable_weights, strict=True))
        with tf.GradientTape() as tape:
            g_loss = self.loss_of(tf.zeros((count, 1)), self.critic(self.generator(noise)))
        gradients = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(gradients, self.generator.trainable_weights, strict=True))
        self.tracker.update_state(g_loss)
        return {"g_loss": self.tracker.result()}


def gan() -> tuple[Value, Value]:
    model = Gan()
    model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3))
    return model, normal(16, 2)


def regression_of_raw_features() -> tuple[Value, Value]:
    x = normal(32, 4) * [1, 50, 1e4, 3] + [0, 200, 1e5, 2015]
    normalise = layers.Normalization()
    normalise.adapt(x)
    net = [keras.Input((4,)), normalise, layers.Dense(16, activation="relu"), layers.Dense(1)]
    return compiled(keras.Sequential(net), "mse"), (x, normal(32, 1))


def two_outputs() -> tuple[Value, Value]:
    given = {"age": keras.Input((1,), name="age"), "kind": keras.Input((1,), name="kind", dtype="int32")}
    kind = layers.Flatten()(layers.Embedding(9, 4)(given["kind"]))
    h = layers.Dense(16, activation="relu")(layers.Concatenate()([given["age"], kind]))
    price = layers.Dense(1, name="price")(h)
    group = layers.Dense(3, activation="softmax", name="group")(h)
    model = keras.Model(given, {"price": price, "group": group})
    losses = {"price": "mae", "group": "categorical_crossentropy"}
    y = {"price": normal(16, 1), "group": np.eye(3, dtype="float32")[ids(3, 16)]}
    x = {"age": normal(16, 1), "kind": ids(9, 16, 1)}
    return compiled(model, losses, loss_weights={"price": 0.5, "group": 1.0}), (x, y)


class Latent(layers.Layer):  # type: ignore[misc]
    """The sampling layer of a VAE, with its log-variance as it is usually written."""

    def build(self, shape: Value) -> None:
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, mean: Value, log_var: Value) -> Value:
        kl = 1 + log_var - ops.square(mean) - ops.exp(log_var)
        self.add_loss(-0.5 * ops.mean(ops.sum(kl, axis=-1)))
        return mean + ops.exp(0.5 * log_var) * keras.random.normal(ops.shape(mean), seed=self.seeds)


def vae() -> tuple[Value, Value]:
    given = keras.Input((12,))
    h = layers.Dense(16, activation="relu")(given)
    z = Latent()(layers.Dense(3)(h), layers.Dense(3)(h))
    model = keras.Model(given, layers.Dense(12, activation="sigmoid")(layers.Dense(16, "relu")(z)))
    x = np.random.default_rng(9).random((16, 12)).astype("float32")
    return compiled(model, "binary_crossentropy"), (x, x)


def plain_softmax() -> tuple[Value, Value]:
    net = [layers.Dense(8, activation="tanh"), layers.Dense(4), layers.Softmax()]
    loss = keras.losses.CategoricalCrossentropy(from_logits=False)
    return compiled(keras.Sequential(net), loss), (normal(16, 4), np.eye(4)[ids(4, 16)])


def careful_softmax() -> tuple[Value, Value]:
    def softmax(z: Value) -> Value:
        exponentials = ops.exp(z - ops.max(z, axis=-1, keepdims=True))
        return exponentials / ops.sum(exponentials, axis=-1, keepdims=True)

    net = [layers.Dense(4), layers.Lambda(softmax)]
    return compiled(keras.Sequential(net), "categorical_crossentropy"), (normal(16, 4), np.eye(4)[ids(4, 16)])


def siamese() -> tuple[Value, Value]:
    tower = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="relu"), layers.Dense(4)])
    a, b = keras.Input((6,)), keras.Input((6,))
    distance = layers.Lambda(
        lambda t: ops.sqrt(ops.sum(ops.square(t[0] - t[1]), axis=-1, keepdims=True) + 1e-7)
    )([tower(a), tower(b)])

    def margin(y: Value, d: Value) -> Value:
        return ops.mean(y * ops.square(d) + (1 - y) * ops.square(ops.relu(2.0 - d)))

    x = (normal(16, 6), normal(16, 6) + 1)
    return compiled(keras.Model([a, b], distance), margin), (x, ids(2, 16, 1).astype("float32"))


def recurrent() -> tuple[Value, Value]:
    net = [keras.Input((20, 3)), layers.LSTM(8, return_sequences=True), layers.GRU(8), layers.Dense(1)]
    model = compiled(keras.Sequential(net), "huber", keras.optimizers.SGD(0.01, clipnorm=1.0))
    return model, (normal(8, 20, 3), normal(8, 1))


def smoothed_labels() -> tuple[Value, Value]:
    net = [layers.Dense(8, activation="relu"), layers.Dense(5, activation="softmax")]
    loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
    return compiled(keras.Sequential(net), loss), (normal(16, 4), np.eye(5, dtype="float32")[ids(5, 16)])


def imbalanced_logits() -> tuple[Value, Value]:
    net = [
        layers.Dense(8, activation="relu"),
        layers.Dense(1, bias_initializer=keras.initializers.Constant(-4)),
    ]
    y = np.zeros((64, 1), "float32")
    y[5] = 1
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    weight = np.where(y[:, 0] > 0, 30.0, 1.0).astype("float32")
    return compiled(keras.Sequential(net), loss), (normal(64, 4), y, weight)


def guarded(y: Value, p: Value) -> Value:
    """Everything that can be written safely, as people do."""
    p = ops.clip(p, 1e-7, 1 - 1e-7)
    entropy = -y * ops.log(p) - (1 - y) * ops.log(1 - p)
    pt = y * p + (1 - y) * (1 - p)
    focal = -((1 - pt) ** 2) * ops.log(pt)
    dice = 1 - (2 * ops.sum(y * p) + 1) / (ops.sum(y) + ops.sum(p) + 1)
    spread = (p - ops.mean(p, axis=0)) / ops.sqrt(ops.var(p, axis=0) + 1e-3)
    safe = ops.where(p > 0.1, p, 1.0)
    odds = ops.where(p > 0.1, ops.log(safe), 0.0) + ops.log1p(ops.relu(p)) + ops.log(ops.softplus(p))
    stable = ops.exp(p - ops.max(p, axis=-1, keepdims=True))
    share = stable / ops.sum(stable, axis=-1, keepdims=True)
    unit = p / ops.maximum(ops.norm(p + 1, axis=-1, keepdims=True), 1e-6)
    masked = ops.sum(entropy * y) / ops.maximum(ops.sum(y), 1.0)
    total = entropy + focal + dice + 1e-3 * spread + odds + share + unit + masked
    return ops.mean(total) + ops.logsumexp(p) / 7 + ops.mean(ops.log(ops.square(p) + 1e-6))


def guarded_functions() -> tuple[Value, Value]:
    net = [layers.Dense(8, activation="relu"), layers.Dense(2, activation="sigmoid")]
    return compiled(keras.Sequential(net), guarded), (normal(16, 4), ids(2, 16, 2).astype("float32"))


def gaussian_likelihood() -> tuple[Value, Value]:
    def nll(y: Value, p: Value) -> Value:
        mean, log_s = p[:, :1], p[:, 1:]
        sigma = ops.softplus(log_s) + 1e-3
        return ops.mean(ops.log(sigma) + 0.5 * ops.square((y - mean) / sigma))

    net = [layers.Dense(8, activation="gelu"), layers.Dense(2, kernel_initializer="zeros")]
    return compiled(keras.Sequential(net), nll), (normal(16, 4), normal(16, 1))


def one_hot_columns() -> tuple[Value, Value]:
    net = [layers.CategoryEncoding(10, output_mode="one_hot"), layers.Dense(8, "relu"), layers.Dense(1)]
    return compiled(keras.Sequential(net), "hinge"), (ids(10, 16, 1), 2 * ids(2, 16, 1) - 1)


def counts() -> tuple[Value, Value]:
    net = [layers.BatchNormalization(), layers.Dense(8, "relu"), layers.Dense(1, activation="exponential")]
    return compiled(keras.Sequential(net), "poisson"), (100 + 50 * normal(16, 4), ids(9, 16, 1))


def segmentation() -> tuple[Value, Value]:
    given = keras.Input((16, 16, 1))
    h = layers.Conv2D(8, 3, padding="same", activation="relu")(given)
    h = layers.Conv2DTranspose(8, 2, strides=2, activation="relu")(layers.MaxPooling2D()(h))
    model = keras.Model(given, layers.Conv2D(1, 1, activation="sigmoid")(h))
    return compiled(model, keras.losses.Dice()), (normal(4, 16, 16, 1), ids(2, 4, 16, 16, 1))


class Penalised(keras.Model):  # type: ignore[misc]
    """A critic with a gradient penalty: a gradient within a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = keras.Sequential([layers.Dense(8, "tanh"), layers.Dense(1)])

    def train_step(self, data: Value) -> dict[str, Value]:
        x, _ = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                scores = self.critic(x)
            slope = inner.gradient(scores, x)
            norm = tf.sqrt(tf.reduce_sum(tf.square(slope), axis=1) + 1e-12)
            loss = tf.reduce_mean(scores) + 10 * tf.reduce_mean((norm - 1) ** 2)
        gradients = tape.gradient(loss, self.critic.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.critic.trainable_weights, strict=True))
        return {"loss": loss}


def gradient_penalty() -> tuple[Value, Value]:
    model = Penalised()
    model.compile("adam")
    return model, (normal(16, 4), normal(16, 1))


def policy_gradient() -> tuple[Value, Value]:
    def loss(y: Value, p: Value) -> Value:
        taken = ops.take_along_axis(p, ops.cast(y[:, :1], "int32"), axis=1)[:, 0]
        entropy = -ops.sum(p * ops.log(p + 1e-8), axis=-1)
        return -ops.mean(ops.log(taken + 1e-8) * y[:, 1]) - 0.01 * ops.mean(entropy)

    net = [layers.Dense(8, activation="relu"), layers.Dense(3, activation="softmax")]
    y = np.stack([ids(3, 16), normal(16, 1)[:, 0]], axis=1).astype("float32")
    return compiled(keras.Sequential(net), loss), (normal(16, 4), y)


class Mixture(layers.Layer):  # type: ignore[misc]
    """Experts, of which a gate takes the best two."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = [layers.Dense(4, activation="relu") for _ in range(3)]
        self.gate = layers.Dense(3)

    def call(self, x: Value) -> Value:
        share = ops.softmax(self.gate(x))
        share = ops.where(share >= ops.top_k(share, 2)[0][:, -1:], share, 0.0)
        share = share / (ops.sum(share, axis=-1, keepdims=True) + 1e-9)
        return ops.sum(ops.stack([one(x) for one in self.experts], axis=1) * share[..., None], axis=1)


def mixture_of_experts() -> tuple[Value, Value]:
    return compiled(keras.Sequential([Mixture(), layers.Dense(1)]), "mse"), (normal(16, 4), normal(16, 1))


def padded_sequences() -> tuple[Value, Value]:
    x = normal(8, 10, 3)
    x[:, 7:] = -999
    net = [layers.Masking(-999.0), layers.Bidirectional(layers.LSTM(4)), layers.Dense(1)]
    return compiled(keras.Sequential(net), "mse"), (x, normal(8, 1))


def bytes_before_a_normalisation() -> tuple[Value, Value]:
    given = keras.Input((16, 16, 3))
    h = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3)(given)))
    model = keras.Model(given, layers.Dense(2)(layers.GlobalAveragePooling2D()(h)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    images = np.random.default_rng(1).integers(0, 256, (8, 16, 16, 3)).astype("float32")
    return compiled(model, loss), (images, ids(2, 8))


def root_of_a_mean() -> tuple[Value, Value]:
    def rmse(y: Value, p: Value) -> Value:
        return ops.sqrt(ops.mean(ops.square(y - p)))

    return compiled(keras.Sequential([layers.Dense(1)]), rmse), (normal(16, 4), normal(16, 1))


CLEAN: list[Program] = [
    gradient_penalty,
    policy_gradient,
    mixture_of_experts,
    padded_sequences,
    bytes_before_a_normalisation,
    root_of_a_mean,
    perceptron,
    convnet_of_bytes,
    half_precision_transformer,
    text_classifier,
    autoencoder,
    gan,
    regression_of_raw_features,
    two_outputs,
    vae,
    plain_softmax,
    careful_softmax,
    siamese,
    recurrent,
    smoothed_labels,
    imbalanced_logits,
    guarded_functions,
    gaussian_likelihood,
    one_hot_columns,
    counts,
    segmentation,
]


@pytest.mark.parametrize("program", CLEAN, ids=lambda one: one.__name__)
def test_nothing_is_said_of_a_sound_program(program: Program) -> None:
    keras.utils.set_random_seed(1)
    try:
        found = preflight(*program())
    finally:
        keras.config.set_dtype_policy("float32")
    assert str(found) == "preflight: nothing found"
    assert found.ok


def test_what_an_installed_package_does_inside_is_its_own_affair(tmp_path: Path) -> None:
    file = tmp_path / "site-packages" / "logarithms" / "losses.py"
    file.parent.mkdir(parents=True)
    file.write_text("from keras import ops\n\ndef loss(y, p):\n    return -ops.mean(y * ops.log(p))\n")
    spec = spec_from_file_location("logarithms_losses", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    model = compiled(keras.Sequential([layers.Dense(1, activation="sigmoid")]), module.loss)
    assert preflight(model, (normal(16, 4), ids(2, 16, 1).astype("float32"))).findings == ()
