"""Requests of web pages in a browser: their admission, and the fields of the answers for the browser.

Two fields reveal a page. Requests to another origin, and all except GET and HEAD, have its Origin. And Host has a name
that the page's owner had resolved to this machine (docs/decisions/0068-what-a-browser-may-ask.md); requests with
credentials are not checked for Host, as a page has none.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from weft.bounds.browsers import (
    MISDIRECTED_REQUEST,
    is_misdirected,
    is_own_name,
    misdirected_advice,
    parse_origin,
    served_origin,
)
from weft.edge_node.servers.http.answers import Fields
from weft.edge_node.servers.http.problem import Problem
from weft.edge_node.servers.http.request import Request
from weft.edge_node.servers.http.settings import BrowserSettings

SETTING = "origins"
PREFLIGHT_S = 600
HOSTS_MAX = 64
"""Maximum number of remembered hosts: with ports, a node has a few."""
_METHODS = "GET, HEAD, POST, OPTIONS"
_EXPOSED = "Retry-After, Idempotency-Replayed"


class Browsers:
    """The rules of one listener."""

    def __init__(self, settings: BrowserSettings) -> None:
        self._settings = settings
        named = (urlsplit(each).hostname for each in settings.origins if each != "*")
        self._names = frozenset(name for name in named if name)
        self._parsed = frozenset(filter(None, map(parse_origin, settings.origins)))
        self._own: set[bytes] = set()
        """Hosts of earlier requests that are the node's own names."""

    def check(self, request: Request) -> Fields:
        """Return the fields that every answer to a request has.

        Raises:
            Problem: it comes from a page that is not permitted.
        """
        headers = request.headers
        origin = headers.get(b"origin")
        settings = self._settings
        if origin is not None:
            text = origin.decode("latin-1")
            if not self._is_welcome(text, headers.get(b"host", b"")):
                raise Problem(
                    403, f"pages of this origin may not ask here; add it to `{SETTING}` of the listener if they should"
                )
            return (
                ("Access-Control-Allow-Origin", text),
                ("Access-Control-Expose-Headers", _EXPOSED),
                ("Vary", "Origin"),
            )
        if settings.is_loopback and b"authorization" not in headers and b"host" in headers:
            host = headers[b"host"]
            if host not in self._own:
                if "*" not in settings.origins and is_misdirected([host.decode("latin-1")], self._names):
                    advice = misdirected_advice(SETTING)
                    raise Problem(MISDIRECTED_REQUEST, f"this is not the name of this node; {advice}")
                if len(self._own) < HOSTS_MAX:
                    self._own.add(host)
        return ()

    def preflight(self, request: Request) -> Fields:
        """Return the fields of the answer to OPTIONS."""
        asked = request.headers.get(b"access-control-request-headers", b"").decode("latin-1")
        allowed = asked if asked and asked.isascii() and asked.isprintable() else "Content-Type"
        return (
            ("Allow", _METHODS),
            ("Access-Control-Allow-Methods", _METHODS),
            ("Access-Control-Allow-Headers", allowed),
            ("Access-Control-Max-Age", str(PREFLIGHT_S)),
        )

    def _is_welcome(self, text: str, host: bytes) -> bool:
        settings = self._settings
        origin = parse_origin(text)
        # Origins of other schemes, such as those of browser extensions, are compared as text.
        if "*" in settings.origins or text in settings.origins or (origin is not None and origin in self._parsed):
            return True
        if origin is None or origin != served_origin(settings.scheme, [host.decode("latin-1")]):
            return False
        return not settings.is_loopback or is_own_name(origin.host)
