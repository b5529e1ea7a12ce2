"""Reasons why a link could not connect, as messages for the status page and the log: the error, then advice."""

from __future__ import annotations

import os
import re

import aiohttp

from weft.config.machine import why_unreadable
from weft.replication.attempts.outcome import ConnectionEnd
from weft.replication.settings import LINK_PATH
from weft.replication.status import LinkState

_REFUSED = re.compile("ALERT_((?:UNSUPPORTED_|BAD_)?CERTIFICATE.*|UNKNOWN_CA|ACCESS_DENIED)$")
"""Reasons of OpenSSL for alerts about a client's certificate."""

_TRUST = "Name the certificate of its authority in the link's `ca_file`"
_CURES = {
    7: _TRUST,  # another authority of the same name
    9: "It is not valid yet: set this machine's clock", 10: "Have it renewed, or set this machine's clock",
    18: _TRUST, 19: _TRUST, 20: _TRUST, 21: _TRUST,
    62: "Write a name of the certificate in the link's `to`", 64: "Write a name of the certificate in the link's `to`",
}  # fmt: skip
"""Result of a verification (X509_V_ERR of OpenSSL) -> what to do."""

LOCATION_CHARACTERS_MAX = 256
"""Characters of a redirect's target that a message repeats."""


def no_token(error: OSError | ValueError) -> ConnectionEnd:
    """Return the outcome when the link's token cannot be read."""
    if isinstance(error, OSError):
        return ConnectionEnd(LinkState.WAITING, f"token_file {error.filename}: {why_unreadable(error)}")
    return ConnectionEnd(LinkState.WAITING, f"token_file {error}")


def no_connection(url: str, error: Exception) -> ConnectionEnd:
    """Return the outcome when no HTTP connection was made."""
    return ConnectionEnd(LinkState.WAITING, f"{url}: {_why(error)}")


class Redirected(Exception):
    """An HTTP redirect, which a link does not follow: it may lead from TLS to plain HTTP, or to another machine."""

    def __init__(self, status: int, location: str) -> None:
        super().__init__(f"redirect {status} to {location}")
        self.status = status
        self.location = location


def redirected(url: str, error: Redirected) -> ConnectionEnd:
    """Return the outcome when the server answered with an HTTP redirect."""
    there = error.location[:LOCATION_CHARACTERS_MAX].removesuffix(LINK_PATH)
    why = f"the server redirects to {there!r} ({error.status}), and links follow no redirects of HTTP"
    return ConnectionEnd(LinkState.REFUSED, f"{url}: {why}. If the hub is there, write that URL in `to`")


def _why(error: Exception) -> str:
    """Return the part of the error that aiohttp wraps, in a few words."""
    if (alert := _alert(error)) is not None:
        return f"the hub refuses the link's certificate ({alert}). Renew it, or have the hub's authority sign it"
    match error:
        case aiohttp.ClientHttpProxyError(status=407):
            return "the proxy wants credentials, or does not accept them (407). Check proxy_username and its password"
        case aiohttp.ClientHttpProxyError():
            return (
                f"the proxy does not connect to the hub ({error.status}). Have it allow CONNECT to this host and port"
            )
        case aiohttp.ClientProxyConnectionError():
            return f"cannot connect to the proxy ({error.os_error.strerror}). Check the link's `proxy`"
        case aiohttp.ClientConnectorDNSError():
            return f"the name cannot be resolved ({error.os_error.strerror}). Check it, and the machine's DNS"
        case aiohttp.ClientConnectorCertificateError():
            return _certificate(error.certificate_error)
        case aiohttp.ClientSSLError():
            return f"the port does not speak TLS ({_reason(error)}). Write http:// if the hub is without TLS"
        case aiohttp.ClientConnectorError():
            return f"cannot connect ({os.strerror(error.errno or 0)}). Check that the hub runs, and its host and port"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError() | ConnectionResetError():
            return "the server closed the connection unanswered. Write https:// if it speaks TLS, or check the port"
        case aiohttp.ClientResponseError():
            return "the server does not speak HTTP. Write https:// if it speaks TLS, or check the link's `to`"
    return str(error) or type(error).__name__


def _alert(error: Exception) -> str | None:
    """Return the alert by which a server refuses a certificate (RFC 8446 section 6.2); None for another error."""
    for each in (error, error.__cause__, getattr(error, "os_error", None)):
        reason = getattr(each, "reason", None)
        if isinstance(reason, str) and (found := _REFUSED.search(reason)):
            return found[1].replace("_", " ").lower()
    return None


def _certificate(error: Exception) -> str:
    why = getattr(error, "verify_message", "") or str(error)
    advice = _CURES.get(
        getattr(error, "verify_code", 0), "Look at the certificate, and at the link's `to` and `ca_file`"
    )
    return f"the hub's certificate is refused ({why}). {advice}"


def _reason(error: aiohttp.ClientSSLError) -> str:
    inner = getattr(error, "os_error", None)
    return str(getattr(inner, "reason", None) or inner or error).replace("_", " ").lower()
