"""Response: what the user wants done when a step goes non-finite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Policy = Literal["continue", "stop", "skip"]


@dataclass(frozen=True, slots=True)
class Response:
    """The options about non-finite steps, checked.

    Raises:
        ValueError: if `policy` is none of the policies.
        TypeError: if another one is not True or False.
    """

    policy: Policy = "continue"
    autopsy: bool = True
    share_batch: bool = False
    redact: bool = False

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            choices = ", ".join(repr(one) for one in get_args(Policy))
            raise ValueError(f"on_nonfinite must be one of {choices}, not {self.policy!r}")
        for name in ("autopsy", "share_batch", "redact"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.share_batch and self.redact:
            raise ValueError("share_batch=True sends what redact=True holds back: choose one of them")


def loop_response(policy: Policy, autopsy: bool, share_batch: bool, redact: bool) -> Response:
    """Return the options of a loop's reporter.

    Raises:
        ValueError: if an update is to be dropped that was made before the reporter hears of it.
    """
    if policy == "skip":
        raise ValueError(
            'on_nonfinite="skip" is for HealthReporter in fit: Reporter.step comes after the update. '
            'Use "stop" or "continue"'
        )
    return Response(policy, autopsy, share_batch, redact)
