"""What a Keras run is made of: policies, optimizer and its settings, versions, shapes of the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from trainvitals import wire
from trainvitals.identity import as_scalar, base_versions, flat_scalars, program_facts
from trainvitals.probe.optimizers import inner_of, scaling_of
from trainvitals.probe.types import Model, Optimizer, Tensor


def describe(
    model: Model,
    params: Mapping[str, Any],
    operations: dict[str, list[str]],
    config: dict[str, wire.Scalar],
    batch_size: int | None = None,
) -> wire.Environment:
    """Return the environment of a `fit` of `model`; `params` are those that Keras hands to callbacks."""
    optimizer = model.optimizer
    strategy = model.distribute_strategy
    return wire.Environment(
        versions=versions(),
        dtype_policy=str(getattr(model.dtype_policy, "name", "")),
        optimizer=type(inner_of(optimizer)).__name__ if optimizer is not None else "",
        optimizer_config=optimizer_settings(optimizer),
        loss=wire.clip(describe_loss(model.loss)),
        loss_scaling=bool(scaling_of(optimizer)),
        jit_compile=bool(model.jit_compile),
        steps_per_execution=int(model.steps_per_execution),
        run_eagerly=bool(model.run_eagerly),
        strategy=type(strategy).__name__ if strategy.num_replicas_in_sync > 1 else "",
        device=device(),
        steps_per_epoch=params.get("steps"),
        epochs=params.get("epochs"),
        batch_size=batch_size,
        operations=operations,
        config=config,
        **program_facts(),
    )


def versions() -> dict[str, str]:
    """Return the versions of what computes."""
    return {**base_versions(), "keras": keras.__version__, "tensorflow": tf.__version__}


def device() -> str:
    """Return what TensorFlow computes on, like `CPU` or `GPU x2`."""
    gpus = tf.config.list_logical_devices("GPU")
    return "CPU" if not gpus else "GPU" if len(gpus) == 1 else f"GPU x{len(gpus)}"


def optimizer_settings(optimizer: Optimizer) -> dict[str, wire.Scalar]:
    """Return the hyper-parameters, those of the optimizer below a loss scaler first."""
    if not hasattr(optimizer, "get_config"):
        return {}
    settings = _plain(inner_of(optimizer).get_config())
    if inner_of(optimizer) is not optimizer:
        outer = {key: value for key, value in optimizer.get_config().items() if key != "inner_optimizer"}
        settings |= {f"loss_scale.{key}": value for key, value in _plain(outer).items() if key != "name"}
    return settings


def describe_loss(loss: Tensor) -> str:
    """Return a compiled loss with the settings that matter: `BinaryCrossentropy(from_logits=True)`."""
    if loss is None:
        return ""
    if isinstance(loss, str):
        return loss
    if isinstance(loss, Mapping):
        return ", ".join(f"{key}: {describe_loss(value)}" for key, value in loss.items())
    if isinstance(loss, list | tuple):
        return ", ".join(describe_loss(value) for value in loss)
    name = getattr(loss, "__name__", None) or type(loss).__name__
    if isinstance(loss, keras.losses.Loss) and hasattr(loss, "get_config"):
        try:
            config = loss.get_config()
        except NotImplementedError:
            return str(name)
        shown = [
            f"{key}={config[key]}" for key in ("from_logits", "label_smoothing", "gamma") if config.get(key)
        ]
        return f"{type(loss).__name__}({', '.join(shown)})" if shown else type(loss).__name__
    return str(name)


def _plain(config: Mapping[str, Any]) -> dict[str, wire.Scalar]:
    """Flatten a Keras config: a schedule becomes its class name and its numbers."""
    plain: dict[str, wire.Scalar] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and "class_name" in value:
            plain[key] = as_scalar(value["class_name"])
            plain.update(flat_scalars(value.get("config") or {}, f"{key}."))
        elif isinstance(value, Mapping):
            plain.update(flat_scalars(value, f"{key}."))
        elif value is not None:
            plain[key] = as_scalar(value)
    return dict(list(plain.items())[: wire.MAX_CONFIG_ITEMS])
