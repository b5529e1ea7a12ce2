"""Authentication of clients (users file, certificate, or none) and their permissions, by the present content of the
files."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import NoReturn

from weft.bounds import Bound, Refusals, SecurityEvent, Severity, user_or_address
from weft.edge_node.access import users
from weft.edge_node.access.acl import ALL, AccessList, Permission
from weft.edge_node.access.credentials import AccessDenied, Credentials, Denial
from weft.edge_node.access.known_passwords import KnownPasswords
from weft.edge_node.access.password_checks import PasswordChecks, TooMany
from weft.edge_node.counters import ListenerCounters

WAITING_MAX = 4096
"""Default for the number of clients that may wait for their password check; further ones are refused as busy."""
NAME_SHOWN_MAX = 80


class AccountIdentity:
    """Identity of a client. Its permissions always follow the newest rules."""

    __slots__ = ("_accounts", "_client_id", "_hashed", "_is_revoked", "unrestricted", "username")

    def __init__(
        self,
        accounts: Accounts,
        username: str | None,
        client_id: str,
        hashed: str | None = None,
        is_revoked: Callable[[], bool] | None = None,
    ) -> None:
        """Name a client.

        Args:
            username: None for a client without one, or where none is required.
            client_id: client identifier from its ``Credentials``.
            hashed: the hash of its password; None for a client without one.
            is_revoked: returns whether its certificate was revoked; None without a revocable certificate.
        """
        self._is_revoked = is_revoked
        self._hashed = hashed
        self._accounts = accounts
        self._client_id = client_id
        self.username = username
        self.unrestricted = accounts.acl is None

    @property
    def admitted(self) -> bool:
        """Return whether the client's password is still its user's, and its certificate not revoked. True without
        either: such a client is not in the users file."""
        if self._is_revoked is not None and self._is_revoked():
            return False
        return self._hashed is None or (self.username is not None and self._accounts.has(self.username, self._hashed))

    def may_publish(self, topic: bytes) -> bool:
        """Return whether the client may publish to a topic. The answer is valid until ``Accounts.watch`` calls back."""
        acl = self._accounts.acl
        return acl is None or acl.may_publish(self.username, self._client_id, topic.decode())

    def may_subscribe(self, topic_filter: str) -> bool:
        """Return whether the client may subscribe to a filter, given without ``$share/<group>/``."""
        acl = self._accounts.acl
        return acl is None or acl.may_subscribe(self.username, self._client_id, topic_filter)

    def may_read(self, topic: bytes) -> bool:
        """Return whether a message of this topic may be delivered to the client. Valid as long as that of
        ``may_publish``."""
        acl = self._accounts.acl
        return acl is None or acl.may_read(self.username, self._client_id, topic.decode())

    def queue_rights(self, topic: str) -> Permission | None:
        """Return the client's rights to queues and exchanges of others, by the topic of their name. Valid as long as
        that of ``may_publish``."""
        acl = self._accounts.acl
        return ALL if acl is None else acl.queue_rights(self.username, self._client_id, topic)


class Accounts:
    """The present users and rules, for all listeners. Belongs to the event loop's thread; hashing has its own
    threads."""

    def __init__(
        self,
        names: dict[str, str] | None = None,
        acl: AccessList | None = None,
        *,
        counters: ListenerCounters | None = None,
        waiting_max: int = WAITING_MAX,
        waiting_per_address_max: int | None = None,
        known: KnownPasswords | None = None,
        refusals: Refusals | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with the content of the files.

        Args:
            names: user -> hash (``users.parse``); None without a users file: every password is then wrong.
            acl: None without an ACL file: every client may then publish to and read every topic.
            waiting_max: clients whose passwords may wait to be checked.
            waiting_per_address_max: the same of one address; None: no share.
            known: passwords known as correct; None to remember them only until the end of the process.
            refusals: counts refusals by address.
            clock: monotonic seconds.
        """
        self.acl = acl
        self._names = names
        self._counters = counters or ListenerCounters()
        self._refusals = refusals = refusals or Refusals(clock)
        waiting = Bound(
            waiting_max, waiting_per_address_max or waiting_max, refusals,
            "limits.authentications", "limits.authentications_per_address", "passwords to check",
        )  # fmt: skip
        self.known = known or KnownPasswords(None, clock)
        self._checks = PasswordChecks(waiting, refusals, clock)
        self._watchers: list[Callable[[], None]] = []

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back after users or rules have changed: permissions may have changed."""
        self._watchers.append(callback)

    def replace(self, *, names: dict[str, str] | None = None, acl: AccessList | None = None) -> None:
        """Replace the users or the rules; None leaves them."""
        self._names = self._names if names is None else names
        self.acl = self.acl if acl is None else acl
        self.changed()

    def changed(self) -> None:
        """Trigger a new check of all clients."""
        for callback in self._watchers:
            callback()

    @property
    def has_users(self) -> bool:
        """Return whether there is a users file."""
        return self._names is not None

    def has(self, username: str, hashed: str) -> bool:
        """Return whether the users file has this line."""
        return self._names is not None and self._names.get(username) == hashed

    def close(self) -> None:
        """Stop checking passwords; do not wait for checks under way."""
        self._checks.close()

    async def identify(
        self,
        credentials: Credentials,
        common_name: str | None,
        *,
        may_be_anonymous: bool,
        address: str = "",
        is_revoked: Callable[[], bool] | None = None,
    ) -> AccountIdentity:
        """Return the identity of a client: by its certificate, else by user name and password, else anonymous if that
        is allowed.

        A certificate takes precedence: its common name is the user name, and the credentials' user name is ignored.
        Cancelling removes a waiting password.

        Args:
            address: address of the client, for its turn; empty for this machine.
            is_revoked: returns whether the certificate was revoked since.

        Raises:
            AccessDenied: it is refused.
        """
        client_id, username, password = credentials
        if common_name is not None:
            if is_revoked is not None and is_revoked():  # since the handshake, in which OpenSSL checked
                self._deny(Denial.NOT_ALLOWED, f"its certificate was revoked: {_shown(common_name)}", address)
            return AccountIdentity(self, common_name, client_id, is_revoked=is_revoked)
        if self._names is None or (username is None and may_be_anonymous):
            if not may_be_anonymous:
                self._deny(Denial.NOT_ALLOWED, "clients without a user name are refused", address)
            return AccountIdentity(self, None, client_id)
        if username is None or password is None:
            self._deny(Denial.WRONG, "user name or password is missing", address)
        hashed = self._names.get(username)
        is_right = await self._is_right(username, hashed, password, address)
        # The file may have been read again meanwhile.
        if hashed is None or not is_right or not self.has(username, hashed):
            self._deny(Denial.WRONG, f"wrong password or no such user: {_shown(username)}", address)
        return AccountIdentity(self, username, client_id, hashed)

    async def _is_right(self, username: str, hashed: str | None, password: bytes, address: str) -> bool:
        def is_known() -> bool:
            return hashed is not None and self.known.knows(username, hashed, password)

        if is_known():
            return True
        if len(password) > users.PASSWORD_BYTES_MAX:
            return False
        self._counters.authentications_waiting += 1
        try:
            # A user that does not exist takes as long as one that does.
            check = functools.partial(_verify, hashed, password)
            is_right = await self._checks.is_right(user_or_address(None, address), username, is_known, check)
        except TooMany as error:
            self._counters.authentications_turned_away += 1
            self._deny(Denial.BUSY, str(error), address)
        finally:
            self._counters.authentications_waiting -= 1
        if hashed is None or not is_right:
            return False
        self.known.add(username, hashed, password)
        return True

    def _deny(self, denial: Denial, reason: str, address: str) -> NoReturn:
        self._counters.authentications_refused += 1
        severity = Severity.NOTICE if denial is Denial.BUSY else Severity.WARNING
        self._refusals.events.note(SecurityEvent.LOGIN_FAILED, severity, user_or_address(None, address), reason)
        raise AccessDenied(denial, reason)


def _shown(name: str) -> str:
    """Return a name in a safe form for a log line: a client may send any name."""
    return repr(name if len(name) <= NAME_SHOWN_MAX else f"{name[:NAME_SHOWN_MAX]}...")


def _verify(hashed: str | None, password: bytes) -> bool:
    """Check a password, in a thread. For a user that does not exist a hash is computed, too, in 25 ms."""
    return users.verify(hashed or _nobodys_hash(), password)


@functools.cache
def _nobodys_hash() -> str:
    return users.HASHER.hash(os.urandom(16))
