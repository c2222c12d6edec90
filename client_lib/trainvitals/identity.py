"""Who a run is: its id, its address, and the Hello that says so.

Options are checked here, so that a bad one fails where it was written and not in the middle of a training.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from trainvitals import wire
from trainvitals.cluster import member_of
from trainvitals.odd import shown

_log = logging.getLogger("trainvitals")

DEFAULT_URL = "http://127.0.0.1:8765"
MAX_CONFIG_DEPTH = 8  # a dict that holds itself would have no end


@dataclass(frozen=True, slots=True)
class Identity:
    """The checked options of a reporter."""

    url: str
    token: str | None = field(repr=False)
    run_id: str
    project: str
    name: str | None
    group: str | None
    tags: tuple[str, ...]
    config: dict[str, wire.Scalar]
    rank: int
    is_resumable: bool  # the user named the run: it may have begun in another process
    resume_step: int | None = None
    world_size: int = 1  # processes that train together, as far as it is known

    @property
    def dashboard_url(self) -> str:
        """Return the address of the run's page."""
        return f"{self.url}/runs/{quote(self.run_id, safe='')}"

    def hello(self, resume_step: int | None = None) -> wire.Hello:
        """Return the Hello of a new session; the sender gives it its ordinal."""
        now = time.time()
        return wire.Hello(
            run_id=self.run_id,
            session_id=uuid.uuid4().hex,
            project=self.project,
            group=self.group,
            name=self.name,
            tags=list(self.tags),
            rank=self.rank,
            world_size=max(self.world_size, self.rank + 1),
            resume_step=resume_step,
            started_at=now,
        )

    def copy(self) -> Identity:
        """Return the same options with a run id of its own: a copied reporter is another run."""
        return replace(self, run_id=new_run_id(), is_resumable=False, resume_step=None)

    def first_step(self, *, updates: int, is_exact: bool, whole_epochs: int) -> int:
        """Return the global step with which this process begins; 0 unless it goes on with an earlier one.

        Args:
            updates: How often the restored optimizer was applied. Updates that a loss scaler skipped are not
                in it: with one it is not `is_exact`.
            is_exact: Whether each step is an update.
            whole_epochs: How many steps the epochs before the first one of this `fit` had.
        """
        if self.resume_step is not None:
            return self.resume_step
        if not self.is_resumable:
            return 0
        return updates if updates and is_exact else max(updates, whole_epochs)


def new_run_id() -> str:
    """Return a fresh id that sorts by time."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + uuid.uuid4().hex[:8]


def identify(
    url: str | None,
    *,
    project: str,
    name: str | None,
    run_id: str | None,
    token: str | None,
    tags: Sequence[str],
    config: Mapping[str, object] | None,
    group: str | None,
    rank: int | None,
    resume_step: int | None = None,
) -> Identity:
    """Return the checked options.

    `TRAINVITALS_URL`, `TRAINVITALS_TOKEN` and `TRAINVITALS_RUN_ID` fill in what is not given, and `TF_CONFIG`
    tells the rank.

    Raises:
        ValueError: if an option is of no use.
        TypeError: if an option is of the wrong type.
    """
    run_id = run_id if run_id is not None else os.environ.get("TRAINVITALS_RUN_ID") or None
    for label, text in (("project", project), ("name", name), ("run_id", run_id), ("group", group)):
        _check_text(label, text)
    if run_id is not None:
        wire.check_run_id(run_id)
    if isinstance(tags, str):
        raise TypeError(f"tags must be a list of strings, not {tags!r}")
    if len(tags) > wire.MAX_TAGS:
        raise ValueError(f"{len(tags)} tags; the limit is {wire.MAX_TAGS}")
    for tag in tags:
        _check_text("tag", tag)
    _check_whole("rank", rank, wire.MAX_NUMBER - 1)
    _check_whole("resume_step", resume_step, wire.MAX_STEP)
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(f"config must be a dict, not {shown(config)}")
    member = member_of(os.environ)
    if member is not None and member.world_size > 1 and run_id is None:
        _log.warning(
            "process %d of %d reports a run of its own: give all of them the same run_id=, "
            "or set TRAINVITALS_RUN_ID",
            member.rank,
            member.world_size,
        )
    return Identity(
        url=_check_url(url or os.environ.get("TRAINVITALS_URL") or DEFAULT_URL),
        token=token or os.environ.get("TRAINVITALS_TOKEN") or None,
        run_id=run_id if run_id is not None else new_run_id(),
        project=wire.clip(project),
        name=None if name is None else wire.clip(name),
        group=None if group is None else wire.clip(group),
        tags=tuple(wire.clip(tag) for tag in tags),
        config=flat_scalars(config or {}),
        rank=int(rank) if rank is not None else member.rank if member is not None else 0,
        is_resumable=run_id is not None,
        resume_step=None if resume_step is None else int(resume_step),
        world_size=1 if member is None else member.world_size,
    )


def flat_scalars(
    table: Mapping[str, object], prefix: str = "", depth: int = MAX_CONFIG_DEPTH
) -> dict[str, wire.Scalar]:
    """Return `table` with dotted keys and plain values; what is no plain value becomes its text."""
    flat: dict[str, wire.Scalar] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and depth:
            flat.update(flat_scalars(value, f"{name}.", depth - 1))
        else:
            flat[wire.clip(name)] = as_scalar(value)
    return dict(list(flat.items())[: wire.MAX_CONFIG_ITEMS])


def as_scalar(value: object) -> wire.Scalar:
    """Return a value that the wire can carry."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else shown(value)
    try:
        return wire.clip(str(value))
    except Exception:  # a user's own __str__
        return shown(value)


def program_facts() -> dict[str, Any]:
    """Return what is known of the process without asking a framework."""
    program = sys.argv[0] if sys.argv else ""
    return {"program": wire.clip(Path(program).name), "host": wire.clip(socket.gethostname())}


def base_versions() -> dict[str, str]:
    """Return the versions of Python, numpy and trainvitals."""
    from trainvitals import __version__

    return {"python": platform.python_version(), "numpy": np.__version__, "trainvitals": __version__}


def _check_text(label: str, text: object) -> None:
    if text is None:
        return
    if not isinstance(text, str):
        raise TypeError(f"{label} must be a string, not {text!r}")
    if not text.strip():
        raise ValueError(f"{label} must not be empty")
    if label == "run_id" and len(text) > wire.MAX_NAME_CHARS:
        raise ValueError(f"run_id has {len(text)} characters; the limit is {wire.MAX_NAME_CHARS}")


def _check_whole(label: str, number: object, most: int) -> None:
    if number is None:
        return
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise TypeError(f"{label} must be a whole number, not {shown(number)}")
    if not 0 <= number <= most:
        raise ValueError(f"{label} must be from 0 to {most}, not {shown(number)}")


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, AttributeError, TypeError):  # a port beyond 65535, half an IPv6 address, no text
        is_known = False
    if not is_known or not url.isprintable() or " " in url:
        raise ValueError(f"url must look like {DEFAULT_URL}, not {shown(url)}")
    return url.rstrip("/")
