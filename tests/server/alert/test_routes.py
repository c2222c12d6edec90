"""Webhooks by REST and by command, on a real server process with a real receiver."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from standardwebhooks import Webhook

from alert_receiver import Receiver, receiver
from client_frames import Client, hello, steps
from server_process import ServerProcess, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("alerts")) as running:
        yield running


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


def _call(
    server: ServerProcess, method: str, path: str, body: Mapping[str, object] | None = None
) -> tuple[int, dict[str, Any]]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{server.url}/api/v1{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def _add(server: ServerProcess, url: str, **fields: object) -> dict[str, Any]:
    status, added = _call(server, "POST", "/webhooks", {"url": url, **fields})
    assert status == 201
    return added


def _listed(server: ServerProcess, webhook_id: str) -> dict[str, Any]:
    hooks = _call(server, "GET", "/webhooks")[1]["webhooks"]
    (found,) = [each for each in hooks if each["id"] == webhook_id]
    assert isinstance(found, dict)
    return found


def _command(server: ServerProcess, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainvitals_server.cli", "webhook", *words, "--server", server.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_nan_in_a_run_reaches_the_webhook_signed(server: ServerProcess, hook: Receiver) -> None:
    added = _add(server, hook.url)
    loss = np.concatenate([np.linspace(2.0, 1.0, 200), np.full(30, math.nan)])
    with Client(server.websocket_url) as client:
        client.send(hello("nan-run", project="resnet", name="<b>lr 3e-4</b>"))
        began = time.monotonic()
        client.send(steps(1, 0, loss))
        got = hook.take()  # waits for ten seconds at most
        took_s = time.monotonic() - began
    sys.stdout.write(f"from the failing step's rows to the webhook: {took_s:.3f} s\n")
    message = Webhook(added["secret"]).verify(got.body, got.headers)
    assert message["type"] == "incident.opened"
    assert message["data"]["incident"]["nonfinite_step"] == 200
    assert message["data"]["run"] == {"run_id": "nan-run", "project": "resnet", "name": "<b>lr 3e-4</b>"}
    assert message["data"]["url"] == f"{server.url}/runs/nan-run"
    told = _call(server, "GET", "/alerts?run_id=nan-run")[1]["alerts"]
    assert [(alert["webhook_id"], alert["severity"]) for alert in told] == [(added["id"], "critical")]
    _call(server, "DELETE", f"/webhooks/{added['id']}")


def test_a_normal_float16_start_sends_nothing(server: ServerProcess, hook: Receiver) -> None:
    webhook_id = _add(server, hook.url)["id"]
    count, bad = 420, 400
    loss, norm, scale = np.linspace(2.0, 1.0, count), np.ones(count), np.full(count, 8192.0)
    scale[:2] = [32768.0, 16384.0]
    skipped, nonfinite = np.zeros(count), np.zeros(count)
    skipped[:2], nonfinite[:2], norm[:2] = 1, 1000, math.inf  # the scaler finds its scale
    loss[bad:] = math.nan
    columns = {"grad_norm": norm, "loss_scale": scale, "skipped": skipped, "grad_nonfinite": nonfinite}
    with Client(server.websocket_url) as client:
        client.send(hello("float16-run"), steps(1, 0, loss, **columns))
        message = json.loads(hook.take().body)
    assert message["data"]["incident"]["onset_step"] == bad  # the first message is about the real trouble
    kinds = _call(server, "GET", "/runs/float16-run/incidents")[1]["incidents"]
    assert [each["severity"] for each in kinds if each["kind"] == "transient_overflow"] == ["info"]
    _call(server, "DELETE", f"/webhooks/{webhook_id}")


def test_a_server_killed_before_the_answer_sends_the_alert_again(tmp_path: Path, hook: Receiver) -> None:
    loss = np.concatenate([np.linspace(2.0, 1.0, 200), np.full(30, math.nan)])
    with running_server(tmp_path, "--webhook", hook.url) as server:
        hook.hold.clear()
        with Client(server.websocket_url) as client:
            client.send(hello(), steps(1, 0, loss))
            first = hook.take()
            server.kill()
        hook.hold.set()
        server.start()
        second = hook.take()
    assert second.headers["webhook-id"] == first.headers["webhook-id"]
    assert second.body == first.body
    assert hook.received.empty()


def test_a_secret_is_shown_once(server: ServerProcess, hook: Receiver) -> None:
    added = _add(server, hook.url)
    assert len(added["secret"]) > 40
    assert _listed(server, added["id"])["secret"] == added["secret"][:10] + "..."
    assert _call(server, "GET", f"/webhooks/{added['id']}")[1]["secret"] == added["secret"][:10] + "..."


def test_a_renewed_secret_signs_from_then_on(server: ServerProcess, hook: Receiver) -> None:
    added = _add(server, hook.url)
    renewed = _call(server, "POST", f"/webhooks/{added['id']}/secret")[1]["secret"]
    assert renewed != added["secret"]
    _call(server, "POST", f"/webhooks/{added['id']}/test")
    got = hook.take()
    assert Webhook(renewed).verify(got.body, got.headers)["type"] == "test"


def test_the_test_button_says_what_the_receiver_answered(server: ServerProcess, hook: Receiver) -> None:
    webhook_id = _add(server, hook.url)["id"]
    hook.answer(403)
    refused = _call(server, "POST", f"/webhooks/{webhook_id}/test")[1]
    accepted = _call(server, "POST", f"/webhooks/{webhook_id}/test")[1]
    assert (refused["delivered"], refused["status"]) == (False, 403)
    assert (accepted["delivered"], accepted["status"]) == (True, 204)


def test_the_log_shows_each_try_and_a_message_can_be_sent_again(
    server: ServerProcess, hook: Receiver
) -> None:
    webhook_id = _add(server, hook.url)["id"]
    message_id = _call(server, "POST", f"/webhooks/{webhook_id}/test")[1]["message_id"]
    again = _call(server, "POST", f"/deliveries/{message_id}/redeliver")[1]
    assert again["delivered"]
    (message,) = _call(server, "GET", f"/deliveries?webhook_id={webhook_id}")[1]["deliveries"]
    assert message["outcome"] == "delivered"
    assert [(each["try"], each["status"]) for each in message["attempts"]] == [(1, 204), (2, 204)]
    assert [hook.take().headers["webhook-id"] for _ in range(2)] == [message_id] * 2


def test_a_paused_webhook_refuses_a_test_until_it_sends_again(server: ServerProcess, hook: Receiver) -> None:
    webhook_id = _add(server, hook.url)["id"]
    message_id = _call(server, "POST", f"/webhooks/{webhook_id}/test")[1]["message_id"]
    assert _call(server, "PATCH", f"/webhooks/{webhook_id}", {"paused": True})[1]["disabled_why"] == "paused"
    assert _call(server, "POST", f"/webhooks/{webhook_id}/test")[0] == 409
    assert _call(server, "POST", f"/deliveries/{message_id}/redeliver")[0] == 409
    assert _call(server, "PATCH", f"/webhooks/{webhook_id}", {"paused": False})[1]["disabled_at"] is None
    assert _call(server, "POST", f"/webhooks/{webhook_id}/test")[1]["delivered"]


def test_a_change_leaves_what_it_does_not_name(server: ServerProcess, hook: Receiver) -> None:
    webhook_id = _add(server, hook.url, format="slack")["id"]
    changed = _call(server, "PATCH", f"/webhooks/{webhook_id}", {"min_severity": "critical"})[1]
    assert (changed["format"], changed["min_severity"]) == ("slack", "critical")


@pytest.mark.parametrize(
    ("url", "form", "shown"),
    [
        ("https://hooks.slack.com/services/T0/B0/secretpart", "slack", "https://hooks.slack.com/...part"),
        ("https://discord.com/api/webhooks/1/secretpart", "discord", "https://discord.com/...part"),
        ("https://example.org/hook?key=secretpart", "generic", "https://example.org/hook?...part"),
        ("https://example.org/hook", "generic", "https://example.org/hook"),
    ],
)
def test_the_address_tells_the_format_and_capability_urls_are_masked(
    url: str, form: str, shown: str, server: ServerProcess
) -> None:
    added = _add(server, url, min_severity="critical")
    assert (added["format"], added["url"]) == (form, shown)
    _call(server, "PATCH", f"/webhooks/{added['id']}", {"paused": True})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": "ftp://example.org"},
        {"url": "https://"},
        {"url": "https://user:pass@example.org/"},
        {"url": "https://example.org:port/"},
        {"url": "https://example.org/" + "x" * 3000},
        {"url": "https://example.org/", "format": "smoke"},
        {"url": "https://example.org/", "min_severity": "info"},
        {"url": "https://example.org/", "secret": "short"},
        {"url": "https://example.org/", "colour": "red"},
    ],
)
def test_what_cannot_be_a_webhook_is_refused_in_the_one_error_shape(
    body: dict[str, object], server: ServerProcess
) -> None:
    status, answer = _call(server, "POST", "/webhooks", body)
    assert (status, answer["error"]["code"]) == (400, "bad_request")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/webhooks/nobody"),
        ("PATCH", "/webhooks/nobody"),
        ("DELETE", "/webhooks/nobody"),
        ("POST", "/webhooks/nobody/test"),
        ("POST", "/webhooks/nobody/secret"),
        ("POST", "/deliveries/nobody/redeliver"),
    ],
)
def test_what_does_not_exist_is_404(method: str, path: str, server: ServerProcess) -> None:
    status, answer = _call(server, method, path, {} if method == "PATCH" else None)
    assert (status, answer["error"]["code"]) == (404, "not_found")


def test_the_command_adds_tests_lists_and_removes(server: ServerProcess, hook: Receiver) -> None:
    added = _command(server, "add", hook.url)
    first, second = added.stdout.splitlines()
    webhook_id, secret = first.split()[0], second.split()[-1]
    assert _command(server, "test", webhook_id).stdout == "delivered\n"
    got = hook.take()
    assert Webhook(secret).verify(got.body, got.headers)["type"] == "test"
    assert f"{webhook_id}  generic  {hook.url}" in _command(server, "list").stdout
    assert _command(server, "remove", webhook_id).returncode == 0
    assert webhook_id not in _command(server, "list").stdout


def test_an_address_that_nothing_gets_to_is_warned_of_at_once(server: ServerProcess, hook: Receiver) -> None:
    assert _add(server, hook.url)["warning"] is None
    assert "webhook_allow_networks" in _add(server, "http://10.0.0.1/x")["warning"]
    assert "cannot resolve no.such.host.invalid" in _add(server, "http://no.such.host.invalid/x")["warning"]
    added = _command(server, "add", "http://10.0.0.1/x")
    assert added.returncode == 0
    assert added.stderr.startswith("warning: nothing will arrive there: 10.0.0.1 leads to 10.0.0.1 (private)")


def test_the_command_repeats_what_the_server_refused(server: ServerProcess) -> None:
    refused = _command(server, "add", "ftp://example.org")
    assert refused.returncode == 1
    assert "begins with http:// or https://" in refused.stderr


def test_the_command_says_how_to_start_a_server_that_is_not_there() -> None:
    words = [
        sys.executable,
        "-m",
        "trainvitals_server.cli",
        "webhook",
        "list",
        "--server",
        "http://127.0.0.1:1",
    ]
    gone = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert gone.returncode == 1
    assert "`trainvitals serve` starts one" in gone.stderr
