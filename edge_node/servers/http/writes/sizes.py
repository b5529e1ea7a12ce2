"""Longest bodies of requests, which their heads decide."""

from __future__ import annotations

from weft.edge_node.servers.http.request import LongestBody, Request, unquoted
from weft.edge_node.servers.http.settings import HttpSettings
from weft.edge_node.servers.http.writes import bodies, cloud_events
from weft.edge_node.servers.http.writes.fields import media_type_of

_POSTS = (b"/v1/streams/", b"/v1/topics/")


def longest_body(settings: HttpSettings, request: Request) -> LongestBody:
    """Return the bound on a request's body: the longest message where it is one message that is stored as it comes.

    What has to be read, for its messages or for the fields that a key or a time is made of, has a bound of its own.
    """
    if request.target.startswith(_POSTS) and _is_one_message(request):
        return LongestBody(settings.message_bytes_max, "limits.message")
    return LongestBody(settings.body_bytes_max, "limits.request")


def _is_one_message(request: Request) -> bool:
    headers = request.headers
    # The key is made of the unquoted path, and clients may write a brace as %7B.
    if b"weft-time-field" in headers or b"{" in unquoted(request.path) + headers.get(b"weft-key", b""):
        return False
    kind = media_type_of(headers.get(b"content-type", b"").decode("latin-1"))
    if kind == "application/json":
        return headers.get(b"weft-batch") == b"no"
    return not (bodies.is_lines(kind) or kind.startswith(cloud_events.OF_ANY_FORMAT))
