"""Which samples of the batch suffice to make it happen: read off the bad rows, else found by halving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

MAX_REPLAYS = 30
BUDGET_S = 10.0

Fails = Callable[[tuple[int, ...]], bool]  # does the step fail with these samples alone?
Clock = Callable[[], float]


@dataclass(slots=True)
class Budget:
    """How many more replays there may be, and for how long."""

    clock: Clock
    n_left: int = MAX_REPLAYS
    ends_at: float = field(init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self.ends_at = self.clock() + BUDGET_S

    def spend(self) -> bool:
        """Take one replay from the budget; False when there is none left."""
        if self.n_left <= 0 or self.clock() >= self.ends_at:
            return False
        self.n_left -= 1
        return True


@dataclass(frozen=True, slots=True)
class Culprits:
    """The samples; `is_whole` unless the search ended for want of budget, `is_group` if it takes them all."""

    samples: tuple[int, ...]
    is_whole: bool = True
    is_group: bool = False


class _Spent(Exception):
    """There is no replay left."""


def bisect(size: int, fails: Fails, budget: Budget) -> Culprits:
    """Return the samples that fail by themselves, or a group that only fails together.

    `fails(range(size))` must be known to be true. One culprit is found before others are sought.
    """
    found: list[int] = []
    group: tuple[int, ...] = tuple(range(size))
    waiting: list[tuple[int, ...]] = [group]

    def try_out(group: tuple[int, ...]) -> bool:
        if not budget.spend():
            raise _Spent
        return bool(group) and fails(group)

    try:
        while waiting:
            group = waiting.pop()
            if len(group) == 1:
                found.append(group[0])
                continue
            halves = (group[len(group) // 2 :], group[: len(group) // 2])
            failing = [half for half in halves if try_out(half)]
            if failing:
                waiting.extend(failing)
            elif not found:
                return Culprits(_narrowed(group, try_out), is_group=True)
    except _Spent:
        return Culprits(tuple(sorted(set(found or group))), is_whole=False)
    return Culprits(tuple(sorted(set(found))))


def _narrowed(group: tuple[int, ...], fails: Fails) -> tuple[int, ...]:
    """Return the part of a group that is needed: leave out what can be, in ever shorter runs."""
    length = max(len(group) // 4, 1)
    while True:
        start = 0
        while start < len(group) and len(group) > 1:
            rest = group[:start] + group[start + length :]
            if rest and fails(rest):
                group = rest
            else:
                start += length
        if length == 1:
            return group
        length //= 2
