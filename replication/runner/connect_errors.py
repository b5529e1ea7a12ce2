"""Reasons why a link could not connect, as messages for the status page and the log: the error, then advice."""

from __future__ import annotations

import os

import aiohttp

from weft.config.machine import why_unreadable
from weft.replication.runner.connection import ConnectionEnd
from weft.replication.runner.serve import LINK_PATH
from weft.replication.status import LinkState


def no_token(error: OSError | ValueError) -> ConnectionEnd:
    """Return the outcome when the link's token cannot be read."""
    if isinstance(error, OSError):
        return ConnectionEnd(LinkState.WAITING, f"token_file {error.filename}: {why_unreadable(error)}")
    return ConnectionEnd(LinkState.WAITING, f"token_file {error}")


def no_connection(url: str, error: Exception) -> ConnectionEnd:
    """Return the outcome when no HTTP connection was made."""
    return ConnectionEnd(LinkState.WAITING, f"{url}: {_why(error)}")


def refused(url: str, status: int, *, has_token: bool) -> ConnectionEnd:
    """Return the outcome when the server did not answer with a WebSocket."""
    match status:
        case 401 if not has_token:
            why = "the hub requires a token (401) and the link has none. Set the link's token_file"
        case 401:
            why = (
                "the hub does not accept the token (401). It is mistyped, revoked, or another hub's: create one "
                "on this hub"
            )
        case 403 if not has_token:
            why = "the hub has no tokens_file and accepts links only from its own machine (403). Set its tokens_file"
        case 403:
            why = "the hub does not accept the token for links (403). Create one on the hub with `--scope edge`"
        case 404:
            why = f"no hub answers at {LINK_PATH} (404). Check the link's `to`"
        case 400:
            why = "the server does not take the request (400). Write https:// if the port speaks TLS"
            return ConnectionEnd(LinkState.WAITING, f"{url}: {why}")
        case 503:
            why = "the hub takes no links at the moment (503). Its log says why; the edge tries its other nodes as well"
            return ConnectionEnd(LinkState.WAITING, f"{url}: {why}")
        case _:
            return ConnectionEnd(
                LinkState.WAITING, f"{url}: the server answered with HTTP status {status}. See its log"
            )
    return ConnectionEnd(LinkState.REFUSED, f"{url}: {why}")


def _why(error: Exception) -> str:
    """Return the part of the error that aiohttp wraps, in a few words."""
    match error:
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
            return "the server does not speak HTTP. Check the host and port of the link's `to`"
    return str(error) or type(error).__name__


def _certificate(error: Exception) -> str:
    why = getattr(error, "verify_message", "") or str(error)
    return f"the hub's certificate is refused ({why}). Name the hub as its certificate does, and trust its authority"


def _reason(error: aiohttp.ClientSSLError) -> str:
    inner = getattr(error, "os_error", None)
    return str(getattr(inner, "reason", None) or inner or error).replace("_", " ").lower()
