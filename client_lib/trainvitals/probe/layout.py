"""Layout: the variables of a loop as they become known, and the layers that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainvitals.probe.layers import Groups, group_variables
from trainvitals.wire import IntArray


class Layout:
    """Grows with every variable that a loop names; whoever sends it sets `has_changed` back."""

    def __init__(self) -> None:
        self.groups = Groups((), np.zeros(0, np.int64))
        self.has_changed = False
        self.variables: list[Any] = []
        self._is_empty = True

    def places(self, variables: Sequence[Any]) -> IntArray:
        """Return the place of each of these variables; new ones are added."""
        seen = {id(variable) for variable in self.variables}
        new = [variable for variable in variables if id(variable) not in seen]
        if new or self._is_empty:
            self._is_empty = False
            self.variables += list({id(variable): variable for variable in new}.values())
            self.groups = group_variables(self.variables)
            self.has_changed = True
        known = {id(variable): place for place, variable in enumerate(self.variables)}
        return np.array([known[id(variable)] for variable in variables], dtype=np.int64)
