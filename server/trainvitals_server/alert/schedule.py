"""Schedule: when a message is tried again. Pure."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

# Seconds before each try, the first one included: what Standard Webhooks recommends, 18 hours in all.
DELAYS_S = (0.0, 5.0, 30.0, 120.0, 600.0, 1800.0, 7200.0, 18000.0, 36000.0)
JITTER = 0.2  # of the delay, either way, so that a fleet does not come back in step
MAX_RETRY_AFTER_S = 86400.0  # a receiver that asks for more than a day is not obeyed to the letter


def delay_after(tries: int, unit: float, retry_after_s: float | None) -> float | None:
    """Return the seconds until the next try after `tries` failed ones, or None: give up.

    `unit` is a random number in 0 .. 1; a receiver's own `retry_after_s` can only lengthen the delay.
    """
    if tries >= len(DELAYS_S):
        return None
    delay = DELAYS_S[tries] * (1 + JITTER * (2 * unit - 1))
    return max(delay, min(retry_after_s or 0.0, MAX_RETRY_AFTER_S))


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Return the seconds that a `Retry-After` header asks for: it is a number or a date."""
    if not value:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return None
