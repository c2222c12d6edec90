"""Which layer a variable belongs to: variables are watched in groups, one for each layer that owns some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainvitals import wire
from trainvitals.probe.types import Model, Value
from trainvitals.wire import IntArray


@dataclass(frozen=True, slots=True)
class Groups:
    """The layers, and for each variable the number of its layer (-1 where there are too many layers)."""

    layers: tuple[wire.Layer, ...]
    layer_of: IntArray


def group_variables(variables: Sequence[Any], model: Model = None) -> Groups:
    """Return the layers that own `variables`, in the order in which they first come."""
    owners = owners_of(model)
    root = f"{model.name}/" if model is not None else _common_root(variables)
    members: dict[object, list[Any]] = {}
    key_of = []
    for variable in variables:
        owner = owners.get(id(variable))
        key: object = id(owner) if owner is not None else _folder(variable)
        members.setdefault(key, []).append(variable)
        key_of.append(key)
    names: dict[str, int] = {}
    layers = []
    for group in members.values():
        owner = owners.get(id(group[0]))
        layers.append(_layer(unique(_name(group[0], root), names), owner, group))
    numbers = {key: number for number, key in enumerate(members)}
    layer_of = np.array([numbers[key] for key in key_of], dtype=np.int64).reshape(-1)
    layer_of[layer_of >= wire.MAX_LAYERS] = -1
    return Groups(tuple(layers[: wire.MAX_LAYERS]), layer_of)


def owners_of(model: Model) -> dict[int, Any]:
    """Return the layer that holds each variable itself, by the variable's id; a shared layer counts once."""
    owners: dict[int, Any] = {}
    flatten = getattr(model, "_flatten_layers", None)
    for layer in flatten() if callable(flatten) else ():
        for variable in getattr(layer, "_trainable_variables", ()):
            owners.setdefault(id(variable), layer)
    return owners


def _common_root(variables: Sequence[Value]) -> str:
    """Return the name of the model that all `variables` are of, as far as their paths tell it."""
    paths = [_path(variable).split("/") for variable in variables]
    roots = {path[0] for path in paths}
    return f"{roots.pop()}/" if len(roots) == 1 and min(map(len, paths)) > 2 else ""


def _path(variable: Value) -> str:
    return str(getattr(variable, "path", None) or getattr(variable, "name", "variable"))


def _folder(variable: Value) -> str:
    path = _path(variable)
    return path.rpartition("/")[0] or path


def _name(variable: Value, root: str) -> str:
    """Return the layer's path below the model: `encoder/attention`, not `model/encoder/attention`."""
    folder = _folder(variable)
    return folder.removeprefix(root)


def name_of_layer(layer: Value, model: Model) -> str:
    """Return the path below the model of a layer that may have no variable."""
    path = str(getattr(layer, "path", None) or getattr(layer, "name", "layer"))
    return path.removeprefix(f"{model.name}/")


def unique(name: str, taken: dict[str, int]) -> str:
    """Return `name`, numbered where it is taken; then it is."""
    taken[name] = taken.get(name, 0) + 1
    text = name if taken[name] == 1 else f"{name}#{taken[name]}"
    return wire.clip(text)


def _layer(name: str, owner: Value, variables: Sequence[Any]) -> wire.Layer:
    parameters = sum(
        int(np.prod([size or 0 for size in variable.shape], dtype=np.int64)) for variable in variables
    )
    dtypes = dict.fromkeys(_dtype_name(variable.dtype) for variable in variables)
    return wire.Layer(
        name=name,
        kind=wire.clip(type(owner).__name__) if owner is not None else "",
        parameters=parameters,
        dtype=", ".join(dtypes),
        compute_dtype=str(getattr(owner, "compute_dtype", "") or ""),
        trainable=bool(getattr(owner, "trainable", True)),
    )


def _dtype_name(dtype: Value) -> str:
    return str(getattr(dtype, "name", dtype))
