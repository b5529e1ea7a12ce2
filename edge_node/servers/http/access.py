"""Credentials in requests: Basic (RFC 7617), and the tokens of InfluxDB's clients."""

from __future__ import annotations

import base64
import binascii

from weft.edge_node.access.credentials import Credentials
from weft.edge_node.servers.http.problem import Problem
from weft.edge_node.servers.http.request import Request

V1_PATHS = (b"/write", b"/query")
"""Paths of InfluxDB 1, whose clients may send credentials in the query of the URL."""
CHALLENGE = (("WWW-Authenticate", 'Basic realm="weft", charset="UTF-8"'),)
_HOW = "send `Authorization: Basic` with a user name and password, or `Bearer NAME:PASSWORD`"


def claim_of(request: Request) -> bytes:
    """Return a request's credentials undecoded: two requests with the same claim have the same sender."""
    claim = request.headers.get(b"authorization", b"")
    if not claim and request.path in V1_PATHS:
        query = request.query
        if "u" in query or "p" in query:
            return f"?{query.get('u', '')}\0{query.get('p', '')}".encode()
    return claim


def credentials_of(claim: bytes) -> Credentials:
    """Return the credentials in a claim.

    Raises:
        Problem: the claim cannot be parsed.
    """
    if not claim:
        return Credentials()
    if claim.startswith(b"?"):
        name, _, password = claim[1:].partition(b"\0")
        return _named(name, password)
    scheme, _, rest = claim.partition(b" ")
    rest = rest.strip()
    if scheme.lower() == b"basic":
        try:
            rest = base64.b64decode(rest, validate=True)
        except (binascii.Error, ValueError):
            raise Problem(401, f"the credentials are not in base64; {_HOW}", fields=CHALLENGE) from None
    elif scheme.lower() not in (b"bearer", b"token"):
        raise Problem(401, f"this way to authenticate is not known; {_HOW}", fields=CHALLENGE)
    name, colon, password = rest.partition(b":")
    if not colon:
        raise Problem(401, f"a token is a user name, a colon and the password here; {_HOW}", fields=CHALLENGE)
    return _named(name, password)


def _named(name: bytes, password: bytes) -> Credentials:
    try:
        return Credentials("", name.decode(), password)
    except UnicodeDecodeError:
        raise Problem(401, f"the user name is not UTF-8; {_HOW}", fields=CHALLENGE) from None
