"""Outcomes of attempts to connect, with the sentences for refusals that every client of a hub may meet."""

from __future__ import annotations

import re
from typing import NamedTuple

from weft.protocols.link import RefuseCode
from weft.replication.settings import LINK_PATH
from weft.replication.status import LinkState


class ConnectionEnd(NamedTuple):
    """End of a connection."""

    state: LinkState
    reason: str
    code: int = 0
    """Code of the REFUSE, 0 without one."""
    url: str = ""
    """Node named in the hub's REFUSE."""
    is_silent: bool = False
    """True when the node did not answer in time, as one that is gone."""


CHALLENGE_CHARACTERS_MAX = 1024
_REASON = re.compile(r'error_description="([ !#-\[\]-~]{1,500})"')
"""The hub's reason in a header WWW-Authenticate (RFC 6750, section 3)."""
REASON_HEADER = "Weft-Reason"
"""Header of a 503 with the hub's reason: a client of WebSockets sees no body. Other releases leave it out."""
_PLAIN_REASON = re.compile(r"[ -~]{1,500}")
_REFUSED_STATE: dict[int, LinkState] = {
    RefuseCode.IDENTITY_CONFLICT: LinkState.CONFLICT,
    RefuseCode.OVERLOADED: LinkState.WAITING,
    RefuseCode.REDIRECT: LinkState.WAITING,
    RefuseCode.UNAVAILABLE: LinkState.WAITING,
    RefuseCode.CLOSED: LinkState.WAITING,
}


def refused_by_hub(code: int, message: str, advice: str, url: str = "") -> ConnectionEnd:
    """Return the outcome of a REFUSE, or of a lane's LANE_CLOSED that ends the link."""
    return ConnectionEnd(_REFUSED_STATE.get(code, LinkState.REFUSED), f"{message}; {advice}", code, url)


def refused_by_server(
    url: str,
    status: int,
    *,
    has_token: bool,
    has_certificate: bool = False,
    argument: str = "the link's `to`",
    challenge: str | None = None,
    told: str | None = None,
) -> ConnectionEnd:
    """Return the outcome when the server did not answer with a WebSocket.

    Args:
        argument: what named the URL.
        challenge: the header ``WWW-Authenticate`` of the answer, which may have the hub's reason.
        told: the header ``REASON_HEADER``.
    """
    reason = _REASON.search(challenge[:CHALLENGE_CHARACTERS_MAX]) if challenge else None
    said = f": {told}" if told and _PLAIN_REASON.fullmatch(told) else ""
    match status:
        case 401 if not has_token:
            why = "the hub requires a token (401) and the link has none. Set the link's token_file"
        case 401 if reason:
            why = f"the hub refuses the token (401): {reason[1]}"
        case 401:
            why = (
                "the hub does not accept the token (401). It is mistyped, revoked, or another hub's: create one "
                "on this hub"
            )
        case 403 if not has_token and has_certificate:
            why = "the link's certificate names no edge (403). Its common name has to be the edge, or tenant/edge"
        case 403 if not has_token:
            why = (
                "the hub accepts links without token and client certificate only from its own machine, or not (403). "
                "Set its tokens_file, or the link's certificate and key"
            )
        case 403 if not has_certificate:
            why = (
                "the hub does not accept the token for links, or wants a client certificate as well (403). Create one "
                "on the hub with `--scope edge`, or set the link's certificate and key"
            )
        case 403:
            why = "the hub does not accept the token for links (403). Create one on the hub with `--scope edge`"
        case 404:
            why = f"no hub answers at {LINK_PATH} (404). Check {argument}"
        case 400:
            why = "the server does not take the request (400). Write https:// if the port speaks TLS"
            return ConnectionEnd(LinkState.WAITING, f"{url}: {why}")
        case 503:
            more = said or ". Its log says why"
            why = f"the hub takes no links at the moment (503){more}; the edge tries its other nodes as well"
            return ConnectionEnd(LinkState.WAITING, f"{url}: {why}")
        case _:
            return ConnectionEnd(
                LinkState.WAITING, f"{url}: the server answered with HTTP status {status}. See its log"
            )
    return ConnectionEnd(LinkState.REFUSED, f"{url}: {why}")
