"""What a Keras run is made of: policies, optimizer and its settings, versions, shapes of the loop.

Imports no framework, for it serves all of them: whatever trains a model is imported by then.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from trainvitals import wire
from trainvitals.identity import as_scalar, base_versions, flat_scalars, program_facts
from trainvitals.probe.kinds import inner_of, is_a, scaling_of, steps_per_execution_of
from trainvitals.probe.types import Model, Optimizer, Tensor

FRAMEWORKS = ("keras", "tf_keras", "tensorflow", "jax", "torch")


def describe(
    model: Model,
    params: Mapping[str, Any],
    operations: dict[str, list[str]],
    config: dict[str, wire.Scalar],
    batch_size: int | None = None,
) -> wire.Environment:
    """Return the environment of a `fit` of `model`; `params` are those that Keras hands to callbacks."""
    optimizer = model.optimizer
    return wire.Environment(
        versions=versions(),
        dtype_policy=str(getattr(model.dtype_policy, "name", "")),
        optimizer=type(inner_of(optimizer)).__name__ if optimizer is not None else "",
        optimizer_config=optimizer_settings(optimizer),
        loss=wire.clip(describe_loss(model.loss)),
        loss_scaling=bool(scaling_of(optimizer)),
        jit_compile=bool(model.jit_compile),
        steps_per_execution=steps_per_execution_of(model),
        run_eagerly=bool(model.run_eagerly),
        strategy=_strategy_name(model),
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
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in FRAMEWORKS}
    return {**base_versions(), **{name: str(version) for name, version in found.items() if version}}


def device() -> str:
    """Return what TensorFlow computes on, like `CPU` or `GPU x2`; "" where it is not there."""
    tf: Any = sys.modules.get("tensorflow")
    if tf is None:
        return ""
    gpus = tf.config.list_logical_devices("GPU")
    return "CPU" if not gpus else "GPU" if len(gpus) == 1 else f"GPU x{len(gpus)}"


def _strategy_name(model: Model) -> str:
    strategy = getattr(model, "distribute_strategy", None)  # of TensorFlow only
    return type(strategy).__name__ if getattr(strategy, "num_replicas_in_sync", 1) > 1 else ""


def optimizer_settings(optimizer: Optimizer) -> dict[str, wire.Scalar]:
    """Return the hyper-parameters, those of the optimizer below a loss scaler first."""
    if not hasattr(optimizer, "get_config"):
        return {}
    settings = _plain(_config_of(inner_of(optimizer)))
    if inner_of(optimizer) is not optimizer:
        outer = {key: value for key, value in _config_of(optimizer).items() if key != "inner_optimizer"}
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
    if is_a(loss, "Loss") and hasattr(loss, "get_config"):
        config = _config_of(loss)
        shown = [
            f"{key}={config[key]}" for key in ("from_logits", "label_smoothing", "gamma") if config.get(key)
        ]
        return f"{type(loss).__name__}({', '.join(shown)})" if shown else type(loss).__name__
    return str(name)


def _config_of(part: Optimizer | Tensor) -> Mapping[str, Any]:
    """Return what an optimizer or a loss says of itself; nothing where it does not."""
    try:
        config = part.get_config()
    except Exception:  # of a class of the user's
        return {}
    return config if isinstance(config, Mapping) else {}


def _plain(config: Mapping[str, Any]) -> dict[str, wire.Scalar]:
    """Flatten a Keras config: a schedule becomes its class name and its numbers."""
    plain: dict[str, wire.Scalar] = {}
    for key, value in ((str(key), value) for key, value in config.items()):
        if isinstance(value, Mapping) and "class_name" in value:
            plain[key] = as_scalar(value["class_name"])
            plain.update(flat_scalars(value.get("config") or {}, f"{key}."))
        elif isinstance(value, Mapping):
            plain.update(flat_scalars(value, f"{key}."))
        elif value is not None:
            plain[key] = as_scalar(value)
    return dict(list(plain.items())[: wire.MAX_CONFIG_ITEMS])
