"""Signing after Standard Webhooks 1.0: HMAC-SHA256 over `id.timestamp.body`. Pure but for `new_secret`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

from trainvitals_server.errors import BadRequest

SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32
_SECRET_RANGE = (24, 64)  # bytes, from the specification


def new_secret() -> str:
    """Return a fresh signing secret."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode("ascii")


def check_secret(secret: str) -> str:
    """Return `secret` if it can sign.

    Raises:
        BadRequest: if it is not `whsec_` and the base64 of 24 to 64 bytes.
    """
    try:
        size = len(_key(secret)) if secret.startswith(SECRET_PREFIX) else 0
    except (binascii.Error, ValueError):
        size = 0
    low, high = _SECRET_RANGE
    if not low <= size <= high:
        raise BadRequest(f"a webhook's secret is {SECRET_PREFIX} and the base64 of {low} to {high} bytes")
    return secret


def signature_headers(secret: str, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the three headers by which the receiver knows that `body` came from us, and when."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.new(_key(secret), signed, hashlib.sha256).digest()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": "v1," + base64.b64encode(digest).decode("ascii"),
    }


def _key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
