"""Who a client is (users file, certificate, or nobody) and what it may do, by what the files say now."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import NoReturn

from weft.edge_node.access import users
from weft.edge_node.access.acl import AccessList
from weft.edge_node.listeners.counters import ListenerCounters
from weft.protocols.mqtt.errors import ConnectRefused
from weft.protocols.mqtt.packets import Connect
from weft.protocols.mqtt.reason_codes import ReasonCode

THREADS = 2
"""That hash passwords at a time, each with the 19 MiB of ``users.HASHER``."""
WAITING_MAX = 4096
"""Default of how many clients may wait for their password to be checked; further ones are told to come again."""
NAME_SHOWN_MAX = 80
KNOWN_MAX = 20_000
"""Passwords remembered as right, so that clients that come back do not cost a hash each; some 100 bytes for one."""


class AccountIdentity:
    """Who a client is. The rules that answer are always the newest."""

    __slots__ = ("_accounts", "_client_id", "_hashed", "client_id", "unrestricted", "username")

    def __init__(self, accounts: Accounts, username: str | None, client_id: str, hashed: str | None = None) -> None:
        """Name a client.

        Args:
            username: None for one that did not say who it is, or was not asked.
            client_id: as CONNECT gave it: what ``%c`` stands for. With an empty one no ``%c`` rule grants anything.
            hashed: of the password that it gave; None for one that came in without.
        """
        self._hashed = hashed
        self._accounts = accounts
        self._client_id = client_id
        self.username = username
        self.client_id: str | None = None
        """Clients choose their identifier themselves."""
        self.unrestricted = accounts.acl is None

    @property
    def admitted(self) -> bool:
        """Whether the password that it gave is still its user's. Who gave none is not in the users file."""
        return self._hashed is None or (self.username is not None and self._accounts.has(self.username, self._hashed))

    def may_publish(self, topic: bytes) -> bool:
        """Whether it may publish to a topic. The answer holds until ``Accounts.watch`` calls back."""
        acl = self._accounts.acl
        return acl is None or acl.may_publish(self.username, self._client_id, topic.decode())

    def may_subscribe(self, topic_filter: str) -> bool:
        """Whether it may subscribe to a filter, which comes without ``$share/<group>/``."""
        acl = self._accounts.acl
        return acl is None or acl.may_subscribe(self.username, self._client_id, topic_filter)

    def may_read(self, topic: bytes) -> bool:
        """Whether a message of this topic may be delivered to it. Holds as ``may_publish`` does."""
        acl = self._accounts.acl
        return acl is None or acl.may_read(self.username, self._client_id, topic.decode())


class Accounts:
    """The users and rules in force, for all listeners. Belongs to the event loop's thread; hashing has its own."""

    def __init__(
        self,
        names: dict[str, str] | None = None,
        acl: AccessList | None = None,
        *,
        counters: ListenerCounters | None = None,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        """Start with what the files say.

        Args:
            names: user -> hash (``users.parse``); None without a users file: then nobody can give a password.
            acl: None without an ACL file: then who is let in may do everything.
            waiting_max: clients whose passwords may wait to be checked.
        """
        self.acl = acl
        self._names = names
        self._counters = counters or ListenerCounters()
        self._waiting_max = waiting_max
        self._pool = ThreadPoolExecutor(THREADS, "weft-passwords")
        self._known: dict[bytes, None] = {}
        self._secret = os.urandom(32)
        self._watchers: list[Callable[[], None]] = []

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back after users or rules have changed: answers of identities may be others now."""
        self._watchers.append(callback)

    def replace(self, *, names: dict[str, str] | None = None, acl: AccessList | None = None) -> None:
        """Put newly read users or rules in force; what is not given stays."""
        self._names = self._names if names is None else names
        self.acl = self.acl if acl is None else acl
        for callback in self._watchers:
            callback()

    def has(self, username: str, hashed: str) -> bool:
        """Whether the users file has this line."""
        return self._names is not None and self._names.get(username) == hashed

    def close(self) -> None:
        """Check no more passwords; does not wait for those being checked."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def identify(self, connect: Connect, common_name: str | None, *, may_be_anonymous: bool) -> AccountIdentity:
        """Who a client is: by its certificate, else by user name and password, else nobody if it may be.

        A certificate settles it: its common name is the user name, and what CONNECT says is not asked. Cancelling
        takes a password that waits to be checked off the list.

        Raises:
            ConnectRefused: with the reason code for CONNACK. The sentence never holds a password.
        """
        if connect.properties.authentication_method is not None:
            self._refuse(connect, ReasonCode.BAD_AUTHENTICATION_METHOD, "no enhanced authentication here", "4.12.0-1")
        if common_name is not None:
            return AccountIdentity(self, common_name, connect.client_id)
        if self._names is None or (connect.username is None and may_be_anonymous):
            if not may_be_anonymous:
                self._refuse(connect, ReasonCode.NOT_AUTHORIZED, "it may not come in without a name")
            return AccountIdentity(self, None, connect.client_id)
        if connect.username is None or connect.password is None:
            self._refuse(connect, ReasonCode.BAD_USER_NAME_OR_PASSWORD, "user name or password is missing")
        hashed = self._names.get(connect.username)
        is_right = await self._is_right(connect, hashed, connect.password)
        # The file may have been read anew meanwhile.
        if hashed is None or not is_right or not self.has(connect.username, hashed):
            reason = f"wrong password or no such user: {_shown(connect.username)}"
            self._refuse(connect, ReasonCode.BAD_USER_NAME_OR_PASSWORD, reason)
        return AccountIdentity(self, connect.username, connect.client_id, hashed)

    async def _is_right(self, connect: Connect, hashed: str | None, password: bytes) -> bool:
        key = blake2b(b"\0".join(((hashed or "").encode(), password)), key=self._secret, digest_size=24).digest()
        if hashed is not None and key in self._known:
            return True
        if len(password) > users.PASSWORD_BYTES_MAX:
            return False
        if self._counters.authentications_waiting >= self._waiting_max:
            self._counters.authentications_turned_away += 1
            self._refuse(connect, ReasonCode.SERVER_BUSY, "too many passwords wait to be checked")
        self._counters.authentications_waiting += 1
        try:
            # A user that does not exist takes as long as one that does.
            check = functools.partial(users.verify, hashed or _nobodys_hash(), password)
            is_right = await asyncio.get_running_loop().run_in_executor(self._pool, check)
        finally:
            self._counters.authentications_waiting -= 1
        if hashed is None or not is_right:
            return False
        while len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[key] = None
        return True

    def _refuse(self, connect: Connect, code: ReasonCode, reason: str, clause: str = "") -> NoReturn:
        self._counters.authentications_refused += 1
        raise ConnectRefused(code, reason, clause, connect.version)


def _shown(name: str) -> str:
    """A name that anybody may have made up, fit for a log line."""
    return repr(name if len(name) <= NAME_SHOWN_MAX else f"{name[:NAME_SHOWN_MAX]}...")


@functools.cache
def _nobodys_hash() -> str:
    return users.HASHER.hash(os.urandom(16))
