"""JSON answers: every body goes through the one codec, every error has the one shape.

Starlette's own JSONResponse turns NaN into an error 500 and FastAPI's into null; ours spells it.
"""

from __future__ import annotations

import math

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from trainvitals_server import codec
from trainvitals_server.errors import BadRequest, Busy, ServerError


class JsonResponse(Response):
    """A body of builtins, msgspec structs and columns, written by `codec.dumps`."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Return the bytes of the body."""
        return codec.dumps(content)


def error_response(error: ServerError) -> JsonResponse:
    """Return the answer that tells `error`."""
    headers = {"Retry-After": str(math.ceil(error.retry_after_s))} if isinstance(error, Busy) else None
    return JsonResponse(error.body(), status_code=error.status, headers=headers)


def install_error_handlers(app: FastAPI) -> None:
    """Make every failure of `app`, FastAPI's own too, one JSON shape."""
    app.add_exception_handler(ServerError, _on_server_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_client_gone)
    app.add_exception_handler(Exception, _on_unexpected)


async def _on_server_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ServerError)
    return error_response(error)


async def _on_invalid_request(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
    return error_response(BadRequest("; ".join(problems)))


async def _on_http_exception(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    body = {"error": {"code": code, "message": str(error.detail)}}
    return JsonResponse(body, status_code=error.status_code, headers=error.headers)


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=400)  # nobody reads it: the client went away within its request


async def _on_unexpected(_request: Request, _error: Exception) -> Response:
    return error_response(ServerError("the server failed; its log says why"))
