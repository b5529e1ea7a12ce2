"""One operation of the API as its document describes it: a method and a path, parameters, a body, and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from weft.cloud_hub.api.tokens import Scope

ERRORS = {
    400: "A parameter, a header or the body is not what was expected.",
    401: "No token, or one that the hub does not know.",
    403: "The token does not open this.",
    404: "There is no such tenant, or it has no such stream, edge or pull.",
    405: "The path does not take this method; the header `Allow` has those that it takes.",
    408: "The body did not come in time.",
    409: "It cannot be, beside what is there: the `Idempotency-Key` came with another message, the pull is over, or "
    "the declared facts forbid it.",
    410: "The log no longer has these records.",
    413: "The body, or what it asks for, is too large.",
    421: "A hub without tokens is not read under this name.",
    429: "Too much of this token, or without tokens of this address, is under way.",
    500: "The log is damaged where it was read.",
    503: "The store does not answer, or the shard cannot be read. Try again later.",
}
"""Status -> meaning, for every error that the API answers."""
READING = frozenset({400, 401, 403, 421, 429, 500, 503})
"""Statuses of errors that any request of a reader may meet."""
READERS = (Scope.READER, Scope.ADMIN)


class Parameter(NamedTuple):
    """A parameter of a request."""

    name: str
    type: Any
    """Type that describes the value for msgspec, with its bounds."""
    description: str
    place: Literal["query", "path", "header"] = "query"
    required: bool = False
    beside: tuple[str, ...] = ()
    """Names of parameters beside which it would have no meaning, so that a request with both is refused."""
    advice: str = ""
    """Advice of the error that refuses a value; for a name, the rule of names will do."""


class Operation(NamedTuple):
    """One method of one path."""

    name: str
    """Unique name; the client's method has it, too."""
    method: Literal["get", "post", "put", "delete"]
    path: str
    summary: str
    answer: Any
    """Type of the answer; None for bytes of ``content_type``."""
    scopes: tuple[Scope, ...] = READERS
    """Scopes of tokens that open it."""
    parameters: tuple[Parameter, ...] = ()
    errors: frozenset[int] = READING
    body: Any = None
    """Type of the request's JSON document; None without one."""
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}
    """Header of the answer -> meaning. Its value is a whole number."""
    status: int = 200
    """Status of the answer."""
    as_json: Any = None
    """Type of the answer as JSON, for an operation that gives one of ``content_type`` without `format=json`."""

    @property
    def key(self) -> tuple[str, str]:
        """Return the method and the path as aiohttp names them."""
        return self.method.upper(), self.path
