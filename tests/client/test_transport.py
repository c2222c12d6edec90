from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from client_rows import hello, steps
from trainvitals import wire
from trainvitals.transport import (
    HttpLink,
    Link,
    LinkError,
    NetworkTransport,
    NoWebsocket,
    Overloaded,
    Unauthorized,
    WebsocketLink,
    ingest_url,
    is_loopback,
)
from wire_server import Store, http_server, websocket_server

TIMEOUT_S = 10.0
HELLO = wire.encode(hello())


class Running:
    """A link that runs in a thread, and what it delivers."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.messages: queue.Queue[wire.ServerFrame] = queue.Queue()
        self.error: LinkError | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.link.run(HELLO, lambda message: self.messages.put(wire.decode_server(message)))
        except LinkError as error:
            self.error = error

    def next(self) -> wire.ServerFrame:
        return self.messages.get(timeout=TIMEOUT_S)

    def join(self) -> None:
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()


@contextmanager
def running(link: Link) -> Iterator[Running]:
    run = Running(link)
    try:
        yield run
    finally:
        link.close(abrupt=True)
        run.join()


def failure(url: str, link: type[WebsocketLink | HttpLink]) -> LinkError:
    with pytest.raises(LinkError) as caught:
        link(ingest_url(url)).run(HELLO, lambda message: None)
    return caught.value


@pytest.mark.parametrize("serve", [websocket_server, http_server])
def test_frames_go_and_answers_come_by_websocket_or_by_post(serve: type) -> None:
    with serve(Store()) as url, running(NetworkTransport(url).link()) as run:
        assert run.next() == wire.Welcome(acked_seq=0)
        run.link.send([wire.encode(steps(1)), wire.encode(steps(2))])
        answers = [run.next()]
        while answers[-1] != wire.Ack(acked_seq=2):
            answers.append(run.next())
        run.link.close()
        run.join()
        assert run.error is None


def test_once_the_upgrade_was_refused_later_links_post_at_once() -> None:
    store = Store()
    with http_server(store) as url:
        transport = NetworkTransport(url)
        for _ in range(2):
            with running(transport.link()) as run:
                assert run.next() == wire.Welcome(acked_seq=0)
        assert isinstance(transport.open(), HttpLink)
        transport.failed()
        assert isinstance(transport.open(), WebsocketLink)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, Unauthorized), (403, Unauthorized), (503, Overloaded), (500, NoWebsocket), (404, NoWebsocket)],
)
def test_the_status_of_a_refused_upgrade_says_what_to_do(status: int, kind: type[LinkError]) -> None:
    with websocket_server(Store(), status=status) as url:
        error = failure(url, WebsocketLink)
    assert type(error) is kind
    assert str(status) in str(error)


@pytest.mark.parametrize(
    ("status", "kind"), [(401, Unauthorized), (403, Unauthorized), (503, Overloaded), (500, LinkError)]
)
def test_the_status_of_a_post_says_what_to_do(status: int, kind: type[LinkError]) -> None:
    with http_server(Store(), status=status) as url:
        assert type(failure(url, HttpLink)) is kind


@pytest.mark.parametrize("link", [WebsocketLink, HttpLink])
def test_a_server_that_is_not_there_is_a_link_error(link: type[WebsocketLink | HttpLink]) -> None:
    with websocket_server(Store()) as url:
        pass
    assert "refused" in str(failure(url, link))


def test_a_connection_that_breaks_is_a_link_error() -> None:
    store = Store(fault_rate=1.0, faults=["close"])
    with websocket_server(store) as url:
        assert "no close frame" in str(failure(url, WebsocketLink))
    assert store.faults == 1


@pytest.mark.parametrize("serve", [websocket_server, http_server])
def test_closing_ends_a_link_that_waits(serve: type) -> None:
    with serve(Store()) as url:
        run = Running(NetworkTransport(url).link())
        run.next()
        run.link.close(abrupt=True)
        run.join()
        assert run.error is None
        link = NetworkTransport(url).link()
        link.close()
        late = Running(link)
        late.join()


def test_sending_before_there_is_a_connection_is_a_link_error() -> None:
    with pytest.raises(LinkError, match="not connected"):
        WebsocketLink("http://127.0.0.1:1/").send([b""])


def test_the_token_travels_as_a_bearer_token() -> None:
    seen: list[str | None] = []
    with (
        http_server(Store(), headers=seen.append) as url,
        running(NetworkTransport(url, "secret").link()) as run,
    ):
        run.next()
    assert seen == ["Bearer secret", "Bearer secret"]  # the refused upgrade, and the POST


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("http://127.0.0.1:8765", "http://127.0.0.1:8765/api/v1/ingest"),
        ("https://host/prefix/", "https://host/prefix/api/v1/ingest"),
        ("ws://host:1", "http://host:1/api/v1/ingest"),
        ("wss://[::1]:2/a/b", "https://[::1]:2/a/b/api/v1/ingest"),
    ],
)
def test_the_ingest_lies_below_the_servers_address(given: str, found: str) -> None:
    assert ingest_url(given) == found


@pytest.mark.parametrize("given", ["127.0.0.1:8765", "ftp://x", "http://", ""])
def test_an_address_that_is_none_is_refused_at_once(given: str) -> None:
    with pytest.raises(ValueError, match="is no server address; give one like http"):
        NetworkTransport(given)


def test_no_proxy_is_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for serve in (websocket_server, http_server):
        with serve(Store()) as url, running(NetworkTransport(url).link()) as run:
            assert run.next() == wire.Welcome(acked_seq=0)


def test_loopback_has_many_names() -> None:
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.8.8.8", "::1", "box.localhost"]))
    assert not any(map(is_loopback, ["example.org", "10.0.0.1", "localhost.evil.org", ""]))
