"""Cluster: which of several processes this one is, as `TF_CONFIG` tells TensorFlow's strategies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

TRAINING_TASKS = ("chief", "worker")  # in the order of their ranks; a "ps" or an "evaluator" trains nothing


@dataclass(frozen=True, slots=True)
class Member:
    """One of the processes that train a model together."""

    rank: int
    world_size: int


def member_of(environ: Mapping[str, str]) -> Member | None:
    """Return which process this is; None where nothing tells, or nothing that can be read."""
    try:
        config = json.loads(environ.get("TF_CONFIG") or "{}")
        counts = [len(config["cluster"].get(task, ())) for task in TRAINING_TASKS]
        place = TRAINING_TASKS.index(config["task"]["type"])
        index = int(config["task"]["index"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return Member(sum(counts[:place]) + index, sum(counts)) if 0 <= index < counts[place] else None
