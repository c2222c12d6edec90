"""The texts of the causes of runs that do not fail but do not learn either."""

from __future__ import annotations

from trainvitals_server.entry import Entry
from trainvitals_server.snippets import CLIP, COMPILE_AGAIN, LOWER

STUCK_CATALOGUE: dict[str, Entry] = {
    "learning_rate_too_low": Entry(
        "the learning rate is so low that the weights hardly move",
        "Raise the learning rate: one usually begins with 1e-2 for SGD and with 1e-3 for optimizers like "
        "Adam. Look at it again after a few hundred steps. Look for an exponent mistyped (1e-9 for 1e-3), a "
        "warm-up that never ends, a decay that is too fast.",
        COMPILE_AGAIN
        + """\
optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
compile_again(model, learning_rate=1e-2 if isinstance(optimizer, keras.optimizers.SGD) else 1e-3)
""",
    ),
    "single_unit_softmax": Entry(
        "a softmax over a single unit: its output is 1 whatever the weights are, so they get no gradient",
        "For two classes use one unit with a sigmoid and binary_crossentropy, or two units with a softmax "
        "and sparse_categorical_crossentropy.",
        COMPILE_AGAIN
        + """\
old = model
outputs = keras.layers.Dense(1, activation="sigmoid", name="probability")(old.layers[-2].output)
model = keras.Model(old.inputs, outputs)
compile_again(model, like=old, loss="binary_crossentropy")
""",
    ),
    "constant_output": Entry(
        "the model gives the same answer for every sample, so that its loss is that of guessing",
        "Compare the outputs of a few different samples. If they are equal: start again from fresh weights "
        "with a lower learning rate, look for units that are dead or saturated, for inputs that are all "
        "equal, and for labels that do not belong to their inputs (shuffled apart).",
        COMPILE_AGAIN
        + LOWER
        + """\
import numpy as np

spread = np.ptp(model.predict(x[:64], verbose=0), axis=0)
print("the outputs differ by up to", spread.max(), "and the inputs by", np.ptp(x[:64], axis=0).max())

old = model
model = keras.models.clone_model(old)  # with new weights
"""
        + f"compile_again(model, like=old, learning_rate=rate, {CLIP})\n",
    ),
    "overfitting": Entry(
        "the model learns its training samples by heart",
        "Keep the weights of the best validation and stop there. To get further: more data or augmentation, "
        "dropout, weight decay, or a smaller model.",
        """\
import keras

stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=3, restore_best_weights=True)
callbacks = [stop]  # model.fit(..., callbacks=callbacks)
""",
    ),
    "slow_input": Entry(
        "the steps wait for something beside the model: data, disk, another process, a hot processor",
        "Measure the input pipeline alone. Prefetch and cache it, and look at what else runs on this "
        "machine; if the batches have grown, slower steps are as expected.",
        """\
import time

began = time.perf_counter()
for count, batch in enumerate(dataset.take(100), start=1):
    pass
print(f"{(time.perf_counter() - began) / count:.4f} s for each batch, without any training")
dataset = dataset.prefetch(2)
""",
    ),
    "metric_undefined": Entry(
        "the metric itself is undefined for some batches: it divides by a count that can be 0, or takes the "
        "logarithm or the root of such a number",
        "Guard the metric, not the model: `divide_no_nan` for ratios, a small constant under logarithms and "
        "roots. Training does not depend on it, but early stopping and checkpoints that watch it do.",
        """\
from keras import ops


def precision(y, p):
    chosen = ops.cast(p > 0.5, "float32")
    hits = ops.sum(chosen * ops.cast(y, "float32"))
    return ops.divide_no_nan(hits, ops.sum(chosen))


model.compile(optimizer=model.optimizer, loss=model.loss, metrics=[precision])
""",
    ),
    "unbounded_loss": Entry(
        "a loss that has no lower bound: a sign mistaken, or a term that can be made ever more negative",
        "Look at what the loss rewards: minimise the negative of what should grow, keep variances and "
        "temperatures away from 0, and bound every term that is subtracted.",
        COMPILE_AGAIN
        + """\
from keras import ops


def bounded_nll(y, p):  # of a mean and the logarithm of its standard deviation
    log_std = ops.clip(p[:, 1:], -6.0, 6.0)
    return ops.mean(0.5 * ops.square((y - p[:, :1]) * ops.exp(-log_std)) + log_std)


compile_again(model, loss=bounded_nll)
""",
    ),
    "gradient_accumulator_not_reset": Entry(
        "gradients are summed for ever: an accumulator is applied but never set back to zero",
        "Set the accumulators to zero right after `apply`, or leave the work to the optimizer's "
        "`gradient_accumulation_steps`.",
        """\
import tensorflow as tf

sums = [tf.Variable(tf.zeros_like(variable)) for variable in model.trainable_variables]


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    for total, gradient in zip(sums, gradients):
        total.assign_add(gradient)
    return loss


@tf.function
def update(batches):  # after so many calls of train_step
    gradients = [total / batches for total in sums]
    optimizer.apply(gradients, model.trainable_variables)
    for total in sums:
        total.assign(tf.zeros_like(total))
    return gradients
""",
    ),
}
