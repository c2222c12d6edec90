"""The layers of a layout together with those that are watched for their outputs only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from trainvitals import wire
from trainvitals.probe.activations_rules import Rule
from trainvitals.probe.layers import Groups, name_of_layer, owners_of, unique
from trainvitals.probe.types import Model, Value
from trainvitals.wire import IntArray

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Merged:
    """The layers of both kinds; `places` is by the id of a watched one."""

    places: dict[int, int]
    groups: Groups

    def places_of(self, layers: Sequence[int]) -> IntArray:
        """Return the place of each of these layers, -1 for one that is beyond the most that can be told."""
        return np.array([self.places.get(layer, NOWHERE) for layer in layers], dtype=np.int64)


def merged(
    groups: Groups,
    variables: Sequence[Any],
    model: Model,
    watched: Sequence[tuple[Value, Rule]],
    measured: Collection[int],
) -> Merged:
    """Return `groups`, which are of `variables`, and the `watched` layers in the order of their outputs.

    Of those that are in no group, the ones whose ids are `measured` are added. A layer whose output is not
    watched comes after the one that it came after in `groups`.
    """
    owners = owners_of(model)
    group_of = {
        id(owners[id(variable)]): int(place)
        for variable, place in zip(variables, groups.layer_of, strict=True)
        if id(variable) in owners and place >= 0
    }
    taken = {layer.name: 1 for layer in groups.layers}
    layers, order = list(groups.layers), []
    for layer, rule in watched:
        place = group_of.get(id(layer))
        if place is None and id(layer) not in measured:
            continue
        if place is None:
            place = len(layers)
            layers.append(_described(layer, unique(name_of_layer(layer, model), taken)))
            group_of[id(layer)] = place
        layers[place] = replace(layers[place], activation=wire.clip(rule.activation))
        order.append(place)
    order = _completed(order, len(groups.layers))[: wire.MAX_LAYERS]
    new_place = np.full(len(layers) + 1, NOWHERE, dtype=np.int64)  # the last one is that of no layer
    new_place[order] = np.arange(len(order))
    return Merged(
        {layer: int(new_place[group_of[layer]]) for layer in measured},
        Groups(tuple(layers[place] for place in order), new_place[groups.layer_of]),
    )


def _completed(order: Sequence[int], count: int) -> list[int]:
    """Return `order` with those of the first `count` that are not in it."""
    whole = list(order)
    for place in range(count):
        if place not in whole:
            whole.insert(whole.index(place - 1) + 1 if place else 0, place)
    return whole


def _described(layer: Value, name: str) -> wire.Layer:
    weights = [*getattr(layer, "_trainable_variables", ()), *getattr(layer, "_non_trainable_variables", ())]
    dtypes = dict.fromkeys(str(getattr(one.dtype, "name", one.dtype)) for one in weights)
    return wire.Layer(
        name=name,
        kind=wire.clip(type(layer).__name__),
        parameters=sum(int(np.prod(one.shape, dtype=np.int64)) for one in weights),
        dtype=", ".join(dtypes),
        compute_dtype=str(getattr(layer, "compute_dtype", "") or ""),
        trainable=bool(getattr(layer, "trainable", True)),
        has_gradient=False,
    )
