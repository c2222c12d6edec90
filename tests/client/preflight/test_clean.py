"""Sound models of every usual shape: a preflight has nothing to say of them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from sound import Program, compiled, ids, normal, said_of
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow


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


def recurrent() -> tuple[Value, Value]:
    net = [keras.Input((20, 3)), layers.LSTM(8, return_sequences=True), layers.GRU(8), layers.Dense(1)]
    model = compiled(keras.Sequential(net), "huber", keras.optimizers.SGD(0.01, clipnorm=1.0))
    return model, (normal(8, 20, 3), normal(8, 1))


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


class Mixture(layers.Layer):  # type: ignore[misc]
    """Experts, of which a gate takes the best two."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = [layers.Dense(4, activation="relu") for _ in range(3)]
        self.gate = layers.Dense(3)

    def build(self, shape: Value) -> None:
        self.temperature = self.add_weight(shape=(1,), initializer="ones")

    def call(self, x: Value) -> Value:
        share = ops.softmax(self.gate(x) / self.temperature)
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


CLEAN: list[Program] = [
    gradient_penalty,
    mixture_of_experts,
    padded_sequences,
    bytes_before_a_normalisation,
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
    recurrent,
    one_hot_columns,
    counts,
    segmentation,
]


@pytest.mark.parametrize("program", CLEAN, ids=lambda one: one.__name__)
def test_nothing_is_said_of_a_sound_program(program: Program) -> None:
    assert said_of(program) == "preflight: nothing found"
