"""The pages as any HTTP client sees them: their headers, their addresses, plotly's bundle."""

from __future__ import annotations

import gzip
import importlib.resources
import re
from collections.abc import Iterator

import httpx
import pytest

from server_process import running_server
from trainvitals_server.pages import web_folder

PAGES = ("/", "/runs/some-run")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        running_server(tmp_path_factory.mktemp("data")) as server,
        httpx.Client(base_url=server.url, trust_env=False) as client,
    ):
        yield client


def policy(response: httpx.Response) -> dict[str, list[str]]:
    """Return the directives of the content security policy."""
    parts = [part.split() for part in response.headers["content-security-policy"].split(";")]
    return {name: sources for name, *sources in parts}


@pytest.mark.parametrize("path", [*PAGES, "/static/board.js", "/static/index.html"])
def test_nothing_runs_or_connects_beyond_this_server(client: httpx.Client, path: str) -> None:
    directives = policy(client.get(path))
    assert directives["default-src"] == ["'none'"]
    assert directives["script-src"] == directives["connect-src"] == ["'self'"]
    assert directives["style-src-attr"] == ["'unsafe-inline'"]
    styles = directives["style-src"]
    assert styles[0] == "'self'"
    assert all(re.fullmatch(r"'sha256-[A-Za-z0-9+/]{43}='", source) for source in styles[1:])


@pytest.mark.parametrize("path", PAGES)
def test_every_address_of_a_page_is_relative(client: httpx.Client, path: str) -> None:
    addresses = re.findall(r'(?:href|src)="([^"]*)"', client.get(path).text)
    assert len(addresses) > 5
    assert [address for address in addresses if address.startswith("/") or ":" in address] == []


@pytest.mark.parametrize("path", PAGES)
def test_everything_that_a_page_loads_is_there(client: httpx.Client, path: str) -> None:
    page = client.get(path)
    for address in re.findall(r'<(?:link|script|img)[^>]* (?:href|src)="([^"]*)"', page.text):
        assert client.get(str(page.url.join(address))).status_code == 200, address


def test_plotly_comes_compressed_and_is_kept_for_ever_under_its_version(client: httpx.Client) -> None:
    found = re.search(
        r'<script[^>]*\bdefer\b[^>]*src="\.\.(/static/plotly-[\d.]+\.min\.js)"', client.get(PAGES[1]).text
    )
    assert found
    path = found.group(1)
    with client.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as response:
        packed = b"".join(response.iter_raw())
    assert response.headers["content-encoding"] == "gzip"
    assert "immutable" in response.headers["cache-control"]
    bundle = importlib.resources.files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
    assert gzip.decompress(packed) == bundle
    assert client.get(path, headers={"Accept-Encoding": "identity"}).content == bundle


def test_the_board_does_not_wait_for_plotly(client: httpx.Client) -> None:
    assert "plotly" not in client.get("/").text


def test_a_file_that_has_not_changed_is_not_sent_again(client: httpx.Client) -> None:
    first = client.get("/static/board.js")
    assert first.headers["cache-control"] == "no-cache"
    assert first.headers["content-type"].startswith("text/javascript")
    again = client.get("/static/board.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_nothing_beyond_the_folder_of_the_page_is_served(client: httpx.Client) -> None:
    for path in ("/static/../pyproject.toml", "/static/%2e%2e/pyproject.toml", "/static/..%2fpyproject.toml"):
        assert client.get(path).status_code == 404, path
    assert (web_folder() / "index.html").is_file()
