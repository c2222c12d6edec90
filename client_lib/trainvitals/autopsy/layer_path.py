"""The path of a layer, as the run's layer series name it: `encoder/attention`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainvitals.probe.layers import group_variables
from trainvitals.probe.types import Value


class LayerPaths:
    """Names layers by the variables that they own, else by the layers around them."""

    def __init__(self, model: Value, variables: Sequence[Value], chains: Iterable[tuple[Value, ...]]) -> None:
        """`chains`: every chain of layers that was seen, outermost first: they tell what the root is."""
        groups = group_variables(variables, model)
        names = [layer.name for layer in groups.layers]
        self._of_variable: dict[int, str] = {
            id(variable): names[place]
            for variable, place in zip(variables, groups.layer_of.tolist(), strict=True)
            if place >= 0
        }
        self._root = model if model is not None else _common_root(chains)

    def of_chain(self, chain: tuple[Value, ...]) -> str:
        """Return the path of the innermost of nested layers; empty outside of all.

        What runs in the `call` of the model itself, and in no layer of it, is the model's.
        """
        if not chain:
            return ""
        inner = chain[1:] if chain[0] is self._root else chain
        if not inner:
            return str(chain[0].name)
        for variable in getattr(inner[-1], "_trainable_variables", ()):
            if (name := self._of_variable.get(id(variable))) is not None:
                return name
        return "/".join(str(layer.name) for layer in inner)

    def of_variable(self, variable: Value) -> str:
        """Return the path of the layer that owns a variable."""
        return self._of_variable.get(id(variable)) or self.path(variable).rpartition("/")[0]

    def path(self, variable: Value) -> str:
        """Return a variable's own path below the model."""
        path = str(getattr(variable, "path", None) or getattr(variable, "name", "variable"))
        root = getattr(self._root, "name", None)
        return path.removeprefix(f"{root}/") if root else path


def _common_root(chains: Iterable[tuple[Value, ...]]) -> Value:
    """Return the layer that is around all others that were seen, if there are others in it."""
    seen = [chain for chain in chains if chain]
    roots = {id(chain[0]): chain[0] for chain in seen}
    if len(roots) != 1 or all(len(chain) == 1 for chain in seen):
        return None
    return next(iter(roots.values()))
