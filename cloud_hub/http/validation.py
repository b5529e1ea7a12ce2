"""Checks of requests before their handlers run, by what the operations say of their parameters; and the two requests by
which the API describes itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Any

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from weft.cloud_hub.auth.access import Access
from weft.cloud_hub.auth.certificates import ReaderCertificate
from weft.cloud_hub.reads.answers import choice, integer, routes, time_parameter
from weft.config.release import SOFTWARE
from weft.hub_api.answers import ApiError, WhoAmI, moment
from weft.hub_api.document import document
from weft.hub_api.operations import OPERATIONS, TIME, Operation, Parameter
from weft.protocols.lane import NAME_RULE
from weft.protocols.link import PROTOCOL_VERSION

# Parameters of requests are what the document says of them, also those that the handler of a request never reads.

Check = Callable[[web.Request], None]
"""Raises ``ApiError``."""
SHOWN_CHARACTERS = 80
LOOKED_AT_MAX = 16
"""Maximum number of unknown parameters of a request that are compared with the known ones."""
NEAR = 0.75
"""Likeness of two names from which one is taken for a mistyped other."""
IN_TEXT = {"query": "{}=", "header": "{}: "}
"""Place -> how errors write a parameter."""


class Asked:
    """Checks the parameters of requests before their handlers run. A parameter that the operation does not have is left
    alone, since a client of a later release may send it, unless its name is nearly that of one that it has: a
    mistyped filter must not give an answer without it."""

    def __init__(self, access: Access, operations: Iterable[Operation] = OPERATIONS) -> None:
        self._access = access
        self._checks = {each.key: _checks(each) for each in operations}

    @property
    def middleware(self) -> Middleware:
        """Return the middleware, for which ``ApiError`` must be caught outside."""

        @web.middleware
        async def asked(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            resource = request.match_info.route.resource
            if resource is not None:
                method = "GET" if request.method == "HEAD" else request.method
                self._check(request, (method, resource.canonical))
            return await handler(request)

        return asked

    def _check(self, request: web.Request, key: tuple[str, str]) -> None:
        try:
            for check in self._checks.get(key, ()):
                check(request)
        except ApiError:
            self._access.reader(request)  # a stranger gets 401, and learns nothing else
            raise


def _checks(operation: Operation) -> list[Check]:
    checks = [check for each in operation.parameters if each.place != "path" for check in _checks_of(each)]
    return [*checks, _mistyped({each.name for each in operation.parameters if each.place == "query"})]


def _mistyped(known: Collection[str]) -> Check:
    def check(request: web.Request) -> None:
        unknown = (name for name in dict.fromkeys(request.query) if name not in known)
        for name in islice(unknown, LOOKED_AT_MAX):
            if len(name) <= SHOWN_CHARACTERS and (near := get_close_matches(name, known, 1, NEAR)):
                raise ApiError(400, f"{name}= is not a parameter of this operation", f"did you mean {near[0]}=?")

    return check


def _checks_of(parameter: Parameter) -> Iterable[Check]:
    yield _once(parameter)
    if parameter.beside:
        yield _alone(parameter)
    if parameter.place == "query" and (kind := _kind(parameter)) is not None:
        yield kind


def _once(parameter: Parameter) -> Check:
    name, written = parameter.name, IN_TEXT[parameter.place].format(parameter.name).strip()
    in_query = parameter.place == "query"

    def check(request: web.Request) -> None:
        count = len((request.query if in_query else request.headers).getall(name, ()))
        if count > 1:
            raise ApiError(400, f"{written} is given {count} times", "give it once")

    return check


def _alone(parameter: Parameter) -> Check:
    name, others = parameter.name, parameter.beside

    def check(request: web.Request) -> None:
        if name in request.query:
            for other in others:
                if other in request.query:
                    raise ApiError(400, f"{name}= has no meaning beside {other}=", f"leave out {name}= or {other}=")

    return check


def _kind(parameter: Parameter) -> Check | None:
    """Return the check of a parameter's type; None if any text will do."""
    name = parameter.name
    if parameter.type is TIME:
        return lambda request: _ignore(time_parameter(request, name))
    described = msgspec.inspect.type_info(parameter.type)
    more: dict[str, Any] = {}
    if isinstance(described, msgspec.inspect.Metadata):
        more = described.extra_json_schema or {}
        described = described.type
    if isinstance(described, msgspec.inspect.IntType):
        least, most = described.ge, described.le
        assert least is not None, f"{name} needs bounds"
        assert most is not None, f"{name} needs bounds"
        return lambda request: _ignore(integer(request, name, 0, least, most))
    if "enum" in more:
        return lambda request: _ignore(choice(request, name, more["enum"]))
    if isinstance(described, msgspec.inspect.StrType) and described.pattern is not None:
        return _matching(parameter, described.pattern)
    return None


def _ignore(_: object) -> None:
    """Take the value that a reader of parameters returns: here its errors are wanted."""


def _matching(parameter: Parameter, pattern: str) -> Check:
    name, matches = parameter.name, re.compile(pattern.replace("$", r"\Z")).search

    def check(request: web.Request) -> None:
        text = request.query.get(name)
        if text is not None and not matches(text):
            advice = parameter.advice or f"expected {NAME_RULE}"
            raise ApiError(400, f"{name}={text[:SHOWN_CHARACTERS]!r}", advice)

    return check


# ``/v1/openapi.json`` and ``/v1/whoami``: the API tells what it offers, and what a token opens.

ANONYMOUS = "anonymous"
"""Scope of everyone at a hub without tokens."""


class SelfDescription:
    """Handlers of the two requests. A token of any scope opens them."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._document: bytes | None = None

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes(routes(openapi=self._get_document, whoami=self._get_whoami))

    async def _get_document(self, request: web.Request) -> web.Response:
        self._access.reader(request)
        if self._document is None:
            self._document = await asyncio.to_thread(_encoded)
        return web.Response(body=self._document, content_type="application/json")

    async def _get_whoami(self, request: web.Request) -> web.Response:
        identity = self._access.reader(request)
        if identity is None:
            answer = WhoAmI(
                token=None,
                scope=ANONYMOUS,
                tenant="default",
                edge=None,
                until=None,
                certificate=None,
                rights=[],
                software=SOFTWARE,
                link_protocol=PROTOCOL_VERSION,
            )
        else:
            certificate = identity.common_name if isinstance(identity, ReaderCertificate) else None
            answer = WhoAmI(
                token=identity.name if certificate is None else None,
                scope=identity.scope.value,
                tenant=identity.tenant,
                edge=identity.edge,
                until=moment(self._access.until(identity)),
                certificate=certificate,
                rights=identity.rights.texts,
                software=SOFTWARE,
                link_protocol=PROTOCOL_VERSION,
            )
        return web.Response(body=msgspec.json.encode(answer) + b"\n", content_type="application/json")


def _encoded() -> bytes:
    return msgspec.json.encode(document()) + b"\n"


NOTHING_STORED = "nothing was stored; send it again"
BODY_S = 10.0
"""Longest time that a request's body may take."""
PLAIN = "identity"
"""Content-Encoding of a body that is not packed (RFC 9110, section 8.4.1), the only one that the hub takes."""
CODING_SHOWN_MAX = 40
"""Longest part of another one in an answer."""


async def read_body(request: web.Request, bytes_max: int, advice: str) -> bytes:
    """Return the body of a request.

    Args:
        advice: what to do when it is too long.

    Raises:
        ApiError: 408, 413, 415.
    """
    if (coding := request.headers.get(hdrs.CONTENT_ENCODING, PLAIN)).lower() != PLAIN:
        raise ApiError(415, f"a body with the coding {coding[:CODING_SHOWN_MAX]!r}", "send it without Content-Encoding")
    if (request.content_length or 0) > bytes_max:
        raise ApiError(413, f"a body of {request.content_length} bytes", f"at most {bytes_max} are possible")
    try:
        async with asyncio.timeout(BODY_S):
            body = await request.content.read(bytes_max + 1)
            while len(body) <= bytes_max and (more := await request.content.read(bytes_max + 1 - len(body))):
                body += more
                await asyncio.sleep(0)  # of tiny chunks, some thousand are parsed at each read
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_S:g} s", NOTHING_STORED) from None
    if len(body) > bytes_max:
        raise ApiError(413, f"a body of more than {bytes_max} bytes", advice)
    return body
