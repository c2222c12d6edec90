"""The pages: the files of `web/`, plotly's bundle, and the headers under which a browser may run them.

The files are served as they are. Every address in them is relative, so that the server works behind any path
prefix. No data passes here: the page reads it from the REST interface and the live websocket.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.metadata
import importlib.resources
import mimetypes
import re
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

from anyio import to_thread
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from trainvitals_server.services import Services

GZIP_LEVEL = 6  # 9 takes three times as long for 1 % less
IMMUTABLE = "public, max-age=31536000, immutable"
REVALIDATE = (
    "no-cache"  # kept, but asked for by its ETag on every load: a new version of the server shows at once
)

# plotly adds the rules of its map traces as one style element, which the policy has to know by its hash.
_STYLE_ELEMENT = re.compile(r"""\.id="[0-9a-f]{64}",\w+\.textContent='([^'\\]*)'""")


def install(app: FastAPI, services: Services) -> None:
    """Add the pages `/` and `/runs/{run_id}` and what they load, below `/static`."""
    del services  # the pages know nothing of the data
    mimetypes.add_type("text/javascript", ".js")  # some systems call it text/plain, and browsers refuse that
    folder = web_folder()
    app.router.routes.extend(
        [
            Route("/", _page(folder / "index.html")),
            Route("/runs/{run_id}", _page(folder / "run.html")),
            Route(f"/static/{_plotly_name()}", _plotly),
            Mount("/static", _Headers(StaticFiles(directory=folder))),
        ]
    )


def web_folder() -> Path:
    """Return where the files of the page are: in the package, or in the checkout of an editable install."""
    package = Path(str(importlib.resources.files("trainvitals_server")))
    installed = package / "web"
    return installed if installed.is_dir() else package.parents[1] / "web"


@cache
def security_headers() -> dict[str, str]:
    """Return the headers of every page: nothing runs, loads or connects beyond this server."""
    policy = (
        "default-src 'none'",
        "script-src 'self'",
        " ".join(["style-src 'self'", *_plotly_styles()]),
        "style-src-attr 'unsafe-inline'",  # plotly positions its layers by them
        "img-src 'self' data: blob:",  # the export of a chart as an image
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
    )
    return {
        "Content-Security-Policy": "; ".join(policy),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }


class _Headers:
    """ASGI: the headers of every page on whatever `app` answers."""

    def __init__(self, app: StaticFiles) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"Cache-Control": REVALIDATE, **await to_thread.run_sync(security_headers)}
        extra = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _page(path: Path) -> Callable[[Request], Awaitable[Response]]:
    async def page(_request: Request) -> Response:
        headers = {"Cache-Control": REVALIDATE, **await to_thread.run_sync(security_headers)}
        text = await to_thread.run_sync(lambda: path.read_text(encoding="utf-8"))
        return Response(
            text.replace("plotly.min.js", _plotly_name()), media_type="text/html", headers=headers
        )

    return page


async def _plotly(request: Request) -> Response:
    headers = {"Cache-Control": IMMUTABLE, "Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        body = await to_thread.run_sync(_plotly_bundle)
        return Response(body, media_type="text/javascript", headers=headers)
    body = await to_thread.run_sync(_plotly_gzipped)
    return Response(body, media_type="text/javascript", headers={**headers, "Content-Encoding": "gzip"})


@cache
def _plotly_name() -> str:
    return f"plotly-{importlib.metadata.version('plotly')}.min.js"


def _plotly_bundle() -> bytes:
    return importlib.resources.files("plotly").joinpath("package_data/plotly.min.js").read_bytes()


@cache
def _plotly_gzipped() -> bytes:
    return gzip.compress(_plotly_bundle(), GZIP_LEVEL, mtime=0)


def _plotly_styles() -> list[str]:
    sheets = _STYLE_ELEMENT.findall(_plotly_bundle().decode("utf-8"))
    digests = [base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode() for sheet in sheets]
    return [f"'sha256-{digest}'" for digest in digests]
