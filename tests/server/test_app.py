from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from trainvitals_server.app import create_app
from trainvitals_server.config import Config
from trainvitals_server.responses import JsonResponse


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v1/nothing", 404, "not_found"),
        ("GET", "/api/v1/runs/nobody", 404, "not_found"),
        ("PUT", "/api/v1/runs", 405, "method_not_allowed"),
        ("GET", "/api/v1/runs?limit=many", 400, "bad_request"),
        ("PATCH", "/api/v1/runs/nobody", 400, "bad_request"),
        ("GET", "/broken", 500, "internal"),
    ],
)
def test_every_error_has_the_one_shape(
    tmp_path: Path, method: str, path: str, status: int, code: str
) -> None:
    app = create_app(Config(data=tmp_path, port=1))

    @app.get("/broken")
    def broken() -> JsonResponse:
        raise ZeroDivisionError("a secret of the server")

    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        response = client.request(method, path)
    assert response.status_code == status
    error = response.json()["error"]
    assert (error["code"], bool(error["message"])) == (code, True)
    assert "secret" not in response.text


def test_numbers_that_json_lacks_leave_as_words(tmp_path: Path) -> None:
    values = [float("nan"), float("inf"), float("-inf"), None, 1.5]
    assert JsonResponse(values).body == b'["NaN","Infinity","-Infinity",null,1.5]'


def test_every_route_of_the_interface_is_in_the_schema(tmp_path: Path) -> None:
    app = create_app(Config(data=tmp_path, port=1))
    with TestClient(app, base_url="http://localhost") as client:
        paths = client.get("/openapi.json").json()["paths"]
    for path, method in [
        ("/api/v1/runs", "get"), ("/api/v1/runs/{run_id}", "get"), ("/api/v1/runs/{run_id}", "patch"),
        ("/api/v1/runs/{run_id}", "delete"), ("/api/v1/runs/{run_id}/stop", "post"),
        ("/api/v1/runs/{run_id}/series", "get"), ("/api/v1/runs/{run_id}/incidents", "get"),
        ("/api/v1/webhooks", "get"), ("/api/v1/deliveries", "get"), ("/livez", "get"), ("/readyz", "get"),
    ]:  # fmt: skip
        assert method in paths[path], path
