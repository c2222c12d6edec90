"""`trainvitals token`, and a real server beyond loopback that believes it."""

from __future__ import annotations

import http.cookiejar
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from server_process import ServerProcess, running_server
from trainvitals_server import cli


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("shared"), "--host", "0.0.0.0") as running:
        running.line("token for reporters")  # the last of what it prints
        yield running


def _url(server: ServerProcess, path: str) -> str:
    return f"http://127.0.0.1:{server.port}{path}"


def _status(server: ServerProcess, token: str | None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        request = urllib.request.Request(_url(server, "/api/v1/runs"), headers=headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _token(capsys: pytest.CaptureFixture[str], *words: str, data: Path) -> list[str]:
    assert cli.main(["token", *words, "--data", str(data)]) == 0
    return capsys.readouterr().out.splitlines()


def _printed(server: ServerProcess, pattern: str) -> str:
    found = [match[1] for line in server.lines if (match := re.search(pattern, line))]
    assert len(found) == 1, server.lines
    return found[0]


def test_a_created_token_opens_a_running_server(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = _token(capsys, "create", "--name", "ci", data=server.data)
    token = line.split()[1]
    assert (_status(server, token), _status(server, None), _status(server, token[:-1])) == (200, 401, 401)


def test_a_revoked_token_is_listed_and_worthless(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = _token(capsys, "create", "--name", "stolen laptop", data=server.data)
    token_id, token = line.split()
    assert _token(capsys, "revoke", token_id, data=server.data) == [
        f"revoked {token_id}; a running server refuses it within 5 seconds"
    ]
    listed = [line for line in _token(capsys, "list", data=server.data) if token_id in line]
    assert re.fullmatch(rf"{token_id}  revoked  created .* UTC  never used  stolen laptop", listed[0])
    assert _status(server, token) == 401


def test_revoking_what_is_not_there_says_so(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["token", "revoke", "access_x", "--data", str(server.data)]) == 1
    assert "no token access_x" in capsys.readouterr().err


def test_the_first_start_prints_a_token_that_works(server: ServerProcess) -> None:
    assert _status(server, _printed(server, r"token for reporters.*: (tv_\S+)$")) == 200


def test_the_printed_link_lets_a_browser_in_and_leaves_its_url(server: ServerProcess) -> None:
    link = _printed(server, r"(http://\S+/login\?token=\S+)")
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    with browser.open(link, timeout=20) as page:
        assert page.url == _url(server, "/")
    with browser.open(_url(server, "/api/v1/runs"), timeout=20) as answer:
        assert answer.status == 200
    stranger = urllib.request.build_opener()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        stranger.open(link, timeout=20)


def test_a_new_link_can_be_had_without_a_restart(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    (link,) = _token(capsys, "link", data=server.data)
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    with browser.open(link, timeout=20) as page:
        assert page.status == 200


def test_a_link_leads_where_the_server_was_last_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_server(tmp_path, "--public-url", "https://vitals.example/tv/"):
        pass
    (link,) = _token(capsys, "link", data=tmp_path)
    assert link.startswith("https://vitals.example/tv/login?token=")
    (link,) = _token(capsys, "link", "--port", "99", data=tmp_path)
    assert link.startswith("http://127.0.0.1:99/login?token=")


@pytest.mark.parametrize("path", ["/api/v1/ingest", "/api/v1/live"])
def test_a_websocket_is_refused_with_a_status_that_says_why(path: str, server: ServerProcess) -> None:
    url = _url(server, path).replace("http", "ws", 1)
    token = _printed(server, r"token for reporters.*: (tv_\S+)$")
    with pytest.raises(InvalidStatus) as missing:
        connect(url)
    assert missing.value.response.status_code == 401
    with pytest.raises(InvalidStatus) as foreign:
        connect(url, origin=Origin("http://evil.example"))
    assert foreign.value.response.status_code == 403
    with connect(url, additional_headers={"Authorization": f"Bearer {token}"}) as through:
        assert through.response is not None
        assert through.response.status_code == 101
    assert not [line for line in server.lines if "ERROR" in line], "a refusal is no mistake of the server's"


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trainvitals.db").write_bytes(b"no database at all, but long enough to be looked at" * 100)
    assert cli.main(["token", "list", "--data", str(tmp_path)]) == 2
    assert "cannot use" in capsys.readouterr().err
