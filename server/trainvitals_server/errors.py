"""Everything the server raises on purpose, and the one JSON shape it is told in.

ServerError (500)
+-- BadRequest (400)          the request contradicts itself
+-- Unauthorized (401)        no token, or one nobody issued
+-- Forbidden (403)           a token, Origin or Host that may not do this
+-- NotFound (404)            no such run, endpoint, delivery
+-- Conflict (409)            it exists already, or in another shape
+-- TooLarge (413)            beyond a limit
+-- Busy (503)                the writer's queue is full: come back after `retry_after_s`
+-- StorageFailed (503)       the disk is full or the database cannot be written
ConfigError                   a setting that cannot be used; raised before anything starts
"""

from __future__ import annotations


class ServerError(Exception):
    """Base of what becomes `{"error": {"code", "message", ...}}`."""

    status = 500
    code = "internal"

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def body(self) -> dict[str, object]:
        """Return the JSON that the client of the API gets."""
        return {"error": {"code": self.code, "message": self.message, **self.details}}


class BadRequest(ServerError):
    """The request contradicts itself or names what cannot be."""

    status, code = 400, "bad_request"


class Unauthorized(ServerError):
    """No token, or one that nobody issued."""

    status, code = 401, "unauthorized"


class Forbidden(ServerError):
    """A token, an Origin or a Host that may not do this."""

    status, code = 403, "forbidden"


class NotFound(ServerError):
    """No such run, endpoint or delivery."""

    status, code = 404, "not_found"


class Conflict(ServerError):
    """It exists already, or in another shape."""

    status, code = 409, "conflict"


class TooLarge(ServerError):
    """Beyond a limit; the message names it."""

    status, code = 413, "too_large"


class Busy(ServerError):
    """The writer's queue is full."""

    status, code = 503, "busy"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.retry_after_s = retry_after_s


class StorageFailed(ServerError):
    """The database cannot be written, for example because the disk is full."""

    status, code = 503, "storage"


class ConfigError(ValueError):
    """A setting that cannot be used: says which, what was given and what to give instead."""
