"""Pieces of the code that goes with a cause; they keep what a model was compiled with. Only texts.

What a snippet does not define itself is the reader's: `model`, `x` and `y`, in a loop of their own also
`optimizer` and `loss_fn`.
"""

from __future__ import annotations

COMPILE_AGAIN = '''\
import keras


def compile_again(model, like=None, loss=None, **changes):
    """Compile the model as it was, or as `like` is; only `changes` of the optimizer and the loss differ."""
    like = like or model
    optimizer = getattr(like.optimizer, "inner_optimizer", like.optimizer)  # inside of a loss scaler
    optimizer = type(optimizer).from_config({**optimizer.get_config(), **changes})
    kept = {k: v for k, v in like.get_compile_config().items() if k not in ("optimizer", "loss")}
    kept = keras.saving.deserialize_keras_object(kept)  # metrics and the rest
    model.compile(optimizer=optimizer, loss=loss or like.loss, **kept)


'''
EARLIER_WEIGHTS = "# first load weights from before the trouble, or build the model anew\n"
LOWER = '''\
def lower(rate):
    """Return a tenth of a learning rate; of a schedule, with a tenth of each of its rates, from its start."""
    if isinstance(rate, dict):
        rates = ("initial_learning_rate", "end_learning_rate", "warmup_target", "values")
        config = {k: lower(v) if k in rates and v is not None else v for k, v in rate["config"].items()}
        return {**rate, "config": config}
    return [one / 10 for one in rate] if isinstance(rate, list) else rate / 10


optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
rate = lower(optimizer.get_config()["learning_rate"])
'''
CLIP = "clipnorm=1.0, clipvalue=None, global_clipnorm=None"
RENEW = '''\
def renew(model, change):
    """Return the model with new weights, after `change` of each layer's configuration."""

    def renewed(layer):
        config = layer.get_config()
        change(layer, config)
        if isinstance(layer, keras.layers.Lambda):  # its configuration does not hold the function
            return keras.layers.Lambda(layer.function, name=layer.name, dtype=config["dtype"])
        return type(layer).from_config(config)

    return keras.models.clone_model(model, clone_function=renewed, recursive=True)


'''
_WIDER = """\
policy = "{policy}"


def wider(layer, config):
    if layer.dtype_policy.name == "{narrow}":
        config["dtype"] = policy


keras.mixed_precision.set_global_policy(policy)
old = model
model = renew(old, wider)
model.set_weights(old.get_weights())  # those from before the trouble
compile_again(model, like=old)
"""
IN_BFLOAT16 = (
    COMPILE_AGAIN + RENEW + _WIDER.format(policy="mixed_bfloat16", narrow="mixed_float16")
)  # float32 where the device has no bfloat16
FLOAT32_VARIABLES = COMPILE_AGAIN + RENEW + _WIDER.format(policy="mixed_float16", narrow="float16")
SCALED_STEP = """\
import tensorflow as tf


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
        scaled = optimizer.scale_loss(loss)  # times the loss scale
    gradients = tape.gradient(scaled, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)  # divides by it; nothing else may
    return loss, gradients
"""
SAFE_LOG = """\
from keras import ops


def safe_log(x, least=1e-7):  # in float16 1e-4, as 1e-7 is hardly more than 0 there
    return ops.log(ops.maximum(x, least))
"""
