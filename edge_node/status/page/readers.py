"""Readers of messages on the node's page: its users, by the access rules that count for MQTT."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection
from typing import Any

from aiohttp import web

from weft.bounds.browsers import is_misdirected
from weft.edge_node.access.authentication import Accounts
from weft.edge_node.access.credentials import AccessDenied, Credentials, Denial
from weft.edge_node.access.identity import Identity
from weft.network.admission import is_loopback
from weft.network.problem import PROBLEM_JSON, problem

# A browser would answer the challenge Basic by a window of its own, over the page's form.
_CHALLENGE = {"WWW-Authenticate": 'FormBased realm="weft"', "Cache-Control": "no-store"}
_NAMES = "call the page by its address, or set http.hosts"
_NO_USERS = "set auth.users_file and add a user with `weft user add`, or open the page on the node itself"
_STATUS = {Denial.WRONG: 401, Denial.NOT_ALLOWED: 403, Denial.BUSY: 503}


class NotShown(Exception):
    """A request that is not answered with messages."""

    def __init__(self, status: int, error: str, advice: str) -> None:
        super().__init__(error)
        self.status, self.error, self.advice = status, error, advice

    def answer(self) -> web.Response:
        """Return the answer to it."""
        body = problem(self.status, self.error, self.advice)
        headers = _CHALLENGE if self.status == 401 else None
        return web.Response(body=body, status=self.status, headers=headers, content_type=PROBLEM_JSON)


class PageReaders:
    """Check of requests for messages.

    Args:
        hosts: names under which the pages may be called, beside addresses.
        takes_anyone: whether some listener takes clients of this machine without a name, while there are no users.
    """

    def __init__(self, accounts: Accounts, hosts: Collection[str], *, takes_anyone: bool) -> None:
        self._accounts = accounts
        self._takes_anyone = takes_anyone
        self._hosts = hosts

    async def identify(self, request: web.Request) -> Identity:
        """Return who asks: a user by name and password (RFC 7617), or a client of this machine where no users are set.

        Raises:
            NotShown: it may not see messages, or a page of strangers has sent it.
        """
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise NotShown(403, "another page sent this request", "open the page of the node")
        address = request.remote or ""
        if not self._accounts.has_users:
            if not (self._takes_anyone and is_here(request)):
                raise NotShown(403, "messages are shown to users only, and this node has none", _NO_USERS)
            # Under a stranger's name, the page of the stranger would be of one origin with this one (DNS rebinding).
            if is_misdirected(request.headers.getall("Host", ()), self._hosts):
                raise NotShown(403, "messages are not shown under this name", _NAMES)
        elif "Authorization" not in request.headers:
            raise NotShown(401, "messages are shown to users of this node", "sign in with a user's name and password")
        try:
            return await self._accounts.identify(
                _credentials(request), None, may_be_anonymous=not self._accounts.has_users, address=address
            )
        except AccessDenied as denied:
            raise NotShown(_STATUS[denied.denial], str(denied), "check name and password, or try again later") from None


def is_here(request: web.Request) -> bool:
    """Return whether a request comes from this machine."""
    return request.remote is not None and is_loopback(request.remote)


def _credentials(request: web.Request) -> Credentials:
    kind, _, rest = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "basic":
        return Credentials()
    try:
        name, _, password = base64.b64decode(rest.strip(), validate=True).partition(b":")
        return Credentials("", name.decode(), password)
    except (binascii.Error, ValueError):
        raise NotShown(401, "the credentials cannot be read", "send them as RFC 7617 says") from None


def shown(payload: bytes, bytes_max: int) -> dict[str, Any]:
    """Return a payload for people: as text if it is UTF-8 without control characters, else in hexadecimal digits."""
    part = payload[:bytes_max]
    text: str | None
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        # A character may be cut in the middle.
        is_cut = len(payload) > bytes_max and error.start >= len(part) - 3
        text = part[: error.start].decode() if is_cut else None
    if text is not None and not any(each < " " and each not in "\t\r\n" for each in text):
        return {"text": text, "bytes": len(payload)}
    return {"hex": part[: bytes_max // 2].hex(), "bytes": len(payload)}
