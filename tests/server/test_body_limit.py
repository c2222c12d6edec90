"""How much a request may bring, over the real app: counted, whatever the request says of its length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from trainvitals_server.app import create_app
from trainvitals_server.body_limit import MAX_BODY_BYTES
from trainvitals_server.config import Config

CHUNK = b"[" * (1 << 20)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    config = Config(host="127.0.0.1", port=8765, data=tmp_path)
    with TestClient(create_app(config), base_url="http://127.0.0.1:8765") as client:
        yield client


def chunks(count: int) -> Iterator[bytes]:
    return (CHUNK for _ in range(count))


@pytest.mark.parametrize(
    ("method", "path"),
    [("PATCH", "/api/v1/runs/r"), ("POST", "/api/v1/webhooks"), ("POST", "/api/v1/runs/r/stop")],
)
def test_a_body_of_json_that_is_too_long_is_refused(client: TestClient, method: str, path: str) -> None:
    answer = client.request(method, path, content=chunks(40), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert str(MAX_BODY_BYTES) in answer.json()["error"]["message"]


def test_a_packet_that_is_too_long_is_refused_by_the_ingest_with_its_own_words(client: TestClient) -> None:
    answer = client.post("/api/v1/ingest", content=chunks(9))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


def test_a_body_within_the_limit_reaches_its_route(client: TestClient) -> None:
    answer = client.patch("/api/v1/runs/r", content=CHUNK * 7, headers={"content-type": "application/json"})
    assert answer.status_code == 400
