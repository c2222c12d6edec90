"""Pieces of the code that goes with a cause; they keep what a model was compiled with. Only texts."""

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
