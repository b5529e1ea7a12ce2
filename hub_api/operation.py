"""One operation of the API as its document describes it: a method and a path, parameters, a body, and answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from weft.config.limits import REASON_CHARACTERS_MAX
from weft.config.units import parse_duration_ns
from weft.hub_api.answers import ApiError, parse_moment
from weft.hub_api.rights import Right, Scope
from weft.protocols.lane import NAME_RULE
from weft.protocols.shard.placement import SHARDS_MAX

T = TypeVar("T")


def decoded(body: bytes, wanted: type[T]) -> T:
    """Return the document in a body.

    Raises:
        ApiError: 400: it is not of the type.
    """
    try:
        return msgspec.json.decode(body, type=wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid: {error}", "GET /v1/openapi.json describes it") from None


Reason = Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)]
"""Reason for the record of administrative acts."""


PAGE_DEFAULT, PAGE_MAX = 1000, 10_000
"""Number of members of a list in one answer."""


NUMBER_MAX = (1 << 63) - 1
"""Highest offset, sequence number and number of a chunk."""


BODY_BYTES_MAX, SCHEMA_BYTES_MAX, IMPORT_BYTES_MAX = 16 << 10, 256 << 10, 512 << 10
"""Longest body of an operation of the administration, that of a schema, and that of an import of tokens."""


DIGITS_MAX = 20
"""Longest number in a request. Python refuses numbers of some thousand digits with an error of its own."""


SHOWN_CHARACTERS = 80
"""Longest part of a refused text in an error."""


ERRORS = {
    400: "A parameter, a header or the body is not what was expected.",
    401: "No token, or one that the hub does not know.",
    403: "The token does not open this.",
    404: "The tenant does not exist, or has no such stream, edge or pull.",
    405: "The path does not support this method; the header `Allow` lists those that it supports.",
    408: "The body did not arrive in time.",
    409: "It conflicts with what exists: the `Idempotency-Key` was used for another message, the pull is over, "
    "or the declared facts forbid it.",
    410: "The log no longer has these records.",
    413: "The body, or what it asks for, is too large.",
    415: "The body is packed, with `Content-Encoding`.",
    421: "A hub without tokens is not read under this name.",
    429: "Too many requests of this token, or without tokens of this address, are under way.",
    500: "The log is damaged where it was read.",
    503: "The store does not answer, or the shard cannot be read. Try again later.",
}
"""Status -> meaning, for every error that the API answers."""


READING = frozenset({400, 401, 403, 421, 429, 500, 503})
"""Statuses of errors that any request of a reader may meet."""


READERS = (Scope.READER, Scope.ADMIN)


Reader = Callable[[str], Any]
"""Makes the value of a parameter from its text, or raises ``ApiError``."""


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
    """Advice of the error that refuses a value, or its absence; for a name, the rule of names will do."""
    default: Any = None
    """Value, as ``reader_of`` makes it, without one in the request."""

    @property
    def written(self) -> str:
        """Return its name as errors write it, before the value."""
        return f"{self.name}=" if self.place == "query" else f"{self.name}: "


class Tag(NamedTuple):
    """A group of operations, as viewers and generators of clients show them."""

    name: str
    description: str
    resources: tuple[str, ...]
    """First parts of the paths below ``/v1`` that belong to it."""


TAGS = (
    Tag("streams", "Streams, their schemas, lanes, completeness, records and rows.", ("streams", "schemas", "sql")),
    Tag("edges", "Edges that the hub knows, and what holds them back.", ("edges", "losses")),
    Tag("messages", "Messages to edges, and their outcomes.", ("messages",)),
    Tag("pulls", "Requests for records that edges hold back.", ("pulls",)),
    Tag("pipelines", "Reports of pipelines of Spark.", ("pipelines",)),
    Tag("tenants", "Tenants, their quotas and their use of the hub.", ("tenants", "usage")),
    Tag("tokens", "Tokens, their secrets and pairing codes.", ("tokens",)),
    Tag(
        "hub",
        "State and administration of the hub's processes, shards and links to regions.",
        ("openapi.json", "whoami", "status", "nodes", "regions", "troubles", "acts", "changes", "drains", "splits"),
    ),
)


_TAG_OF = {resource: each.name for each in TAGS for resource in each.resources}


class Operation(NamedTuple):
    """One method of one path."""

    name: str
    """Unique name; the client's method has it, too."""
    method: Literal["get", "post", "put", "delete"]
    path: str
    summary: str
    description: str
    """Order, units, durability, bounds and the right that it needs; ``right``, if set, is added."""
    answer: Any
    """Type of the answer; None for bytes of ``content_type``."""
    scopes: tuple[Scope, ...] = READERS
    """Scopes of tokens that open it."""
    parameters: tuple[Parameter, ...] = ()
    errors: frozenset[int] = READING
    body: Any = None
    """Type of the request's JSON document; None without one."""
    body_bytes_max: int = BODY_BYTES_MAX
    """Longest body that an operation of the administration takes."""
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}
    """Header of the answer -> meaning. Its value is a whole number."""
    status: int = 200
    """Status of the answer."""
    right: Right | None = None
    """Right that an operation of the administration needs: over the hub as a whole, or over the stream in its path."""
    command: str = ""
    """Command that does the same."""
    as_json: Any = None
    """Type of the answer as JSON, for an operation that gives one of ``content_type`` without `format=json`."""

    @property
    def tag(self) -> str:
        """Return the name of its group in the document. ``KeyError`` if no tag has the resource of its path."""
        return _TAG_OF[self.path.split("/")[2].partition(":")[0]]

    @property
    def key(self) -> tuple[str, str]:
        """Return the method and the path as aiohttp names them."""
        return self.method.upper(), self.path


EVENTS = "text/event-stream"


NAME_PATTERN = "^[a-z0-9][a-z0-9_-]{0,63}$"


SCOPES = tuple(Scope)


Name = Annotated[str, Meta(pattern=NAME_PATTERN)]


ShardNumber = Annotated[int, Meta(ge=0, le=SHARDS_MAX - 1)]


Duration = Annotated[str, Meta(pattern="^[0-9]{1,7}(ms|s|m|h|d)$")]


Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]


TIME = Annotated[str, Meta(extra_json_schema={"anyOf": [{"format": "date-time"}, {"pattern": "^[0-9]{1,19}$"}]})]


TENANT = Parameter("tenant", Name, "Tenant, where the token allows another than its own.")


STREAM = Parameter("stream", Name, "Name of the stream.", "path", required=True)


def limit(of: str, most: int = PAGE_MAX, default: int = PAGE_DEFAULT, least: int = 1) -> Parameter:
    schema: Any = Annotated[int, Meta(ge=least, le=most, extra_json_schema={"default": default})]
    return Parameter("limit", schema, f"Most {of} of the answer, which may end sooner.", default=default)


def choice(name: str, of: tuple[str, ...], description: str) -> Parameter:
    schema: Any = Annotated[str, Meta(extra_json_schema={"enum": list(of), "default": of[0]})]
    return Parameter(name, schema, description, default=of[0])


def after(pattern: str | None = None) -> Parameter:
    schema: Any = str if pattern is None else Annotated[str, Meta(pattern=pattern)]
    return Parameter(
        "after",
        schema,
        "`next_after` of the answer before, to continue after it.",
        advice="use next_after of the previous answer",
    )


REASON = Parameter("reason", str, "Why, for the record of administrative acts.")


OF_STREAM = READING | {404}


OF_CHANGES = frozenset({400, 401, 403, 408, 409, 413, 415, 421, 503})


OF_MESSAGES = frozenset({400, 401, 403, 404, 421, 429, 503})


OF_ONE_STREAM = "/v1/streams/{stream}"


def reader_of(parameter: Parameter) -> Reader:
    """Return what makes the value of a parameter from its text: a number, the nanoseconds of a time or a duration, or
    the text itself. It raises ``ApiError`` with 400 for a text that the declared type does not allow."""
    described = msgspec.inspect.type_info(parameter.type)
    more: dict[str, Any] = {}
    if isinstance(described, msgspec.inspect.Metadata):
        more = described.extra_json_schema or {}
        described = described.type
    if parameter.type is TIME:
        return lambda text: _time(parameter, text)
    if isinstance(described, msgspec.inspect.IntType):
        least, most = described.ge, described.le
        assert least is not None, f"{parameter.name} needs bounds"
        assert most is not None, f"{parameter.name} needs bounds"
        return lambda text: _integer(parameter, text, least, most)
    if "enum" in more:
        return lambda text: _one_of(parameter, text, more["enum"])
    assert isinstance(described, msgspec.inspect.StrType), f"{parameter.name} has a type that texts do not have"
    if described.pattern is None:
        return str
    # In a pattern of JSON schema, `$` does not match before the end of a line.
    matches = re.compile(described.pattern.replace("$", r"\Z")).search
    is_duration = parameter.type is Duration
    return lambda text: _matching(parameter, text, matches, is_duration=is_duration)


def _time(parameter: Parameter, text: str) -> int:
    try:
        return parse_moment(text)
    except ValueError:
        error = f"{parameter.written}{text[: 2 * DIGITS_MAX]!r} is not a time"
        raise ApiError(400, error, "write 2026-01-31T12:00:00Z, or nanoseconds") from None


def _integer(parameter: Parameter, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > DIGITS_MAX or not least <= int(text) <= most:
        error = f"{parameter.written}{text[: 2 * DIGITS_MAX]!r}"
        raise ApiError(400, error, f"expected a number from {least} to {most}")
    return int(text)


def _one_of(parameter: Parameter, text: str, known: list[str]) -> str:
    if text not in known:
        raise ApiError(400, f"{parameter.written}{text[: 2 * DIGITS_MAX]!r}", f"expected {' or '.join(known)}")
    return text


def _matching(parameter: Parameter, text: str, matches: Callable[[str], object], *, is_duration: bool) -> str | int:
    if not matches(text):
        error = f"{parameter.written}{text[:SHOWN_CHARACTERS]!r}"
        raise ApiError(400, error, parameter.advice or f"expected {NAME_RULE}")
    if not is_duration:
        return text
    try:
        return parse_duration_ns(text)
    except ValueError as error:  # the pattern bounds its digits, and not its length
        raise ApiError(400, f"{parameter.written}{text[:SHOWN_CHARACTERS]!r}", str(error)) from None
