"""Signatures, judged by the independent `standardwebhooks` package."""

from __future__ import annotations

import time

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from trainvitals_server.alert.signing import check_secret, new_secret, signature_headers
from trainvitals_server.errors import BadRequest

BODY = '{"text": "überlauf → NaN"}'.encode()


def test_another_implementation_accepts_our_signature() -> None:
    secret = new_secret()
    headers = signature_headers(secret, "msg_1", int(time.time()), BODY)
    assert Webhook(secret).verify(BODY, headers) == {"text": "überlauf → NaN"}


@pytest.mark.parametrize("change", ["body", "id", "timestamp", "secret"])
def test_another_implementation_refuses_what_was_changed(change: str) -> None:
    secret, now = new_secret(), int(time.time())
    headers = signature_headers(secret, "msg_1", now, BODY)
    if change == "id":
        headers["webhook-id"] = "msg_2"
    if change == "timestamp":
        headers["webhook-timestamp"] = str(now + 1)
    verifier = Webhook(new_secret() if change == "secret" else secret)
    with pytest.raises(WebhookVerificationError):
        verifier.verify(BODY + b" " if change == "body" else BODY, headers)


def test_secrets_differ_and_are_long_enough() -> None:
    assert new_secret() != new_secret()
    assert check_secret(new_secret()).startswith("whsec_")


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_c2hvcnQ=", "whsec_?", "plain", "whsec_ü", "whsec_" + "A" * 200]
)
def test_a_secret_that_cannot_sign_is_refused(secret: str) -> None:
    with pytest.raises(BadRequest, match="24 to 64 bytes"):
        check_secret(secret)
