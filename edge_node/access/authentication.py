"""Authentication of clients (users file, certificate, or none) and their permissions, by the present content of the
files.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b
from typing import NoReturn

import msgspec

from weft.bounds import Bound, Owner, Quota, Refusals, SecurityEvent, Severity, user_or_address
from weft.config.limits import EdgeLimits
from weft.edge_node.access import users
from weft.edge_node.access.identity import ALL, AccessDenied, AccessList, Credentials, Denial, Permission
from weft.edge_node.counters import ListenerCounters
from weft.storage.filesystem import replace_private_file

# Correct passwords, remembered over restarts only as keyed hashes.
#
# The file ``known-passwords.json`` holds keyed hashes (BLAKE2b) of user, line of the users file and password, and
# their key. Known devices are admitted at once, without waiting for other checks. A new password or hash of a user
# invalidates the old entry. A reader of the file can try passwords faster than with the users file: only the node may
# read it (mode 0600), and ``auth.remember_passwords`` turns it off.

FILE_NAME = "known-passwords.json"
KNOWN_MAX = 20_000
"""Maximum number of remembered passwords, some 100 bytes each."""
SAVE_INTERVAL_S = 5.0
KEY_BYTES = 32
HASH_BYTES = 24

log = logging.getLogger(__name__)


class StoredHashes(msgspec.Struct, forbid_unknown_fields=True):
    """Content of the file."""

    key: bytes
    """Random secret of this node."""
    passwords: list[bytes] = []
    """Keyed hashes, the oldest first."""


class PasswordCache:
    """Correct passwords, as keyed hashes. Belongs to the event loop's thread.

    Args:
        folder: data directory of the node; None to forget all at its end.
        clock: monotonic seconds.
    """

    def __init__(self, folder: str | None, clock: Callable[[], float]) -> None:
        self._path = None if folder is None else os.path.join(folder, FILE_NAME)
        self._clock = clock
        content = self._read()
        self._key = content.key
        self._known = dict.fromkeys(content.passwords[-KNOWN_MAX:])
        self._is_saved = True
        self._save_at = clock()

    def knows(self, user: str, hashed: str, password: bytes) -> bool:
        """Return whether the password is known as correct for this line of the users file."""
        return self._hash(user, hashed, password) in self._known

    def add(self, user: str, hashed: str, password: bytes) -> None:
        """Remember a correct password."""
        while len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[self._hash(user, hashed, password)] = None
        self._is_saved = False

    async def save(self, *, at_end: bool = False) -> None:
        """Write what is new to the file, at most every few seconds. Trouble is logged: nothing is lost but time."""
        if self._path is None or self._is_saved or (self._clock() < self._save_at and not at_end):
            return
        self._save_at = self._clock() + SAVE_INTERVAL_S
        self._is_saved = True
        data = msgspec.json.encode(StoredHashes(self._key, list(self._known)))
        try:
            await asyncio.to_thread(replace_private_file, self._path, data)
        except OSError as error:
            self._is_saved = False
            log.warning("%s cannot be written; passwords are checked again after a restart: %s", self._path, error)

    def _hash(self, user: str, hashed: str, password: bytes) -> bytes:
        said = b"\0".join((user.encode(), hashed.encode(), password))
        return blake2b(said, key=self._key, digest_size=HASH_BYTES).digest()

    def _read(self) -> StoredHashes:
        fresh = StoredHashes(os.urandom(KEY_BYTES))
        if self._path is None:
            return fresh
        try:
            with open(self._path, "rb") as file:
                content = msgspec.json.decode(file.read(), type=StoredHashes)
        except FileNotFoundError:
            return fresh
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("%s cannot be used; every password is checked again: %s", self._path, error)
            return fresh
        if len(content.key) != KEY_BYTES:
            log.warning("%s has no key; every password is checked again", self._path)
            return fresh
        return content


# Password checks in fair turns: slow hashes on few threads, which all addresses and users share.
#
# Addresses take turns, and within an address its users. After wrong passwords, the next check of the same user from
# the same address waits longer and longer.

THREADS = 2
"""Number of password-hashing threads; each uses the 19 MiB of ``users.hasher``."""
NICENESS = 10
"""Priority of these threads: admitted clients come first."""
FREE_TRIES = 10
"""Number of a user's wrong passwords from an address without a further wait."""
BACK_OFF_S = 0.25
"""Minimum time between two checks after that; it doubles with each wrong password."""
BACK_OFF_MAX_S = 4.0
WAIT_MAX_S = 5.0
"""Longest wait of a client for its check because of others' wrong passwords; then it is refused."""
FORGET_S = 600.0
"""Time after which wrong passwords are forgotten."""
REMEMBERED_MAX = 16_384
"""Maximum number of pairs of address and user whose wrong passwords are remembered."""

USER_BYTES = 16
"""Length of the hash of a user name here: a client can send a long name."""


class TooMany(Exception):
    """The check cannot be made now. The text has the reason."""


class _Check:
    """One waiting password."""

    __slots__ = ("answer", "is_known", "verify")

    def __init__(self, is_known: Callable[[], bool], verify: Callable[[], bool]) -> None:
        self.is_known = is_known
        self.verify = verify
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class PasswordChecks:
    """Checks of all listeners. Belongs to the event loop's thread; hashing has its own.

    Args:
        waiting: bound on the waiting checks, by address.
        clock: monotonic seconds.
    """

    def __init__(self, waiting: Bound, refusals: Refusals, clock: Callable[[], float]) -> None:
        self._waiting = waiting
        self._wrong = _WrongPasswords(refusals, clock)
        self._rounds: OrderedDict[Owner, OrderedDict[bytes, OrderedDict[_Check, None]]] = OrderedDict()
        """Address -> user -> checks; at each level the next one first."""
        self._running = 0
        self._pool = ThreadPoolExecutor(THREADS, "weft-passwords", initializer=_step_back)

    def close(self) -> None:
        """Stop checking; do not wait for checks under way."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def is_right(
        self, address: Owner, username: str, is_known: Callable[[], bool], verify: Callable[[], bool]
    ) -> bool:
        """Return whether a password is correct. Cancelling removes a waiting check.

        Args:
            is_known: returns whether it was found correct meanwhile.
            verify: the slow check, for a thread.

        Raises:
            TooMany: too many wait, or too many were wrong.
        """
        user = blake2b(username.encode(), digest_size=USER_BYTES).digest()
        await self._wrong.back_off(address, user)
        if not self._waiting.fits(address) and (
            self._waiting.is_own_share_full(address) or not self._give_way(address)
        ):
            self._waiting.refuse(address)
            raise TooMany("too many passwords wait to be checked")
        self._waiting.hold(address)
        check = _Check(is_known, verify)
        try:
            self._rounds.setdefault(address, OrderedDict()).setdefault(user, OrderedDict())[check] = None
            self._start()
            is_right = await check.answer
        finally:
            self._waiting.free(address)
            self._remove(address, user, check)
        self._wrong.note(address, user, is_right=is_right)
        return is_right

    # --- inside

    def _give_way(self, address: Owner) -> bool:
        """Refuse the newest check of the address that has most; return whether another address has more than this
        one."""
        heavier = self._waiting.heavier(address)
        users = None if heavier is None or heavier == address else self._rounds.get(heavier)
        if users is None or heavier is None:
            return False
        user = next(reversed(users))
        check = next(reversed(users[user]))
        self._remove(heavier, user, check)
        if not check.answer.done():
            self._waiting.refuse(heavier)
            check.answer.set_exception(TooMany("too many passwords wait to be checked"))
        return True

    def _remove(self, address: Owner, user: bytes, check: _Check) -> None:
        users = self._rounds.get(address)
        checks = None if users is None else users.get(user)
        if users is not None and checks is not None and checks.pop(check, check) is None:
            if not checks:
                del users[user]
            if not users:
                del self._rounds[address]

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        while self._running < THREADS:
            check = self._next()
            if check is None:
                return
            self._running += 1

            def done(future: Future[bool], check: _Check = check) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._done, check, future)

            self._pool.submit(check.verify).add_done_callback(done)

    def _next(self) -> _Check | None:
        while self._rounds:
            address, users = next(iter(self._rounds.items()))
            user, checks = next(iter(users.items()))
            check = next(iter(checks))
            users.move_to_end(user)
            self._rounds.move_to_end(address)
            self._remove(address, user, check)
            if check.answer.done():
                continue
            if not check.is_known():
                return check
            check.answer.set_result(True)
        return None

    def _done(self, check: _Check, future: Future[bool]) -> None:
        self._running -= 1
        if not check.answer.done():
            if future.cancelled():
                check.answer.cancel()
            elif (error := future.exception()) is not None:
                check.answer.set_exception(error)
            else:
                check.answer.set_result(future.result())
        if not future.cancelled():
            self._start()


class _WrongPasswords:
    """Wrong passwords by address and user, and the wait of the next one."""

    def __init__(self, refusals: Refusals, clock: Callable[[], float]) -> None:
        self._refusals = refusals
        self._clock = clock
        self._seen: OrderedDict[tuple[Owner, bytes], tuple[int, float]] = OrderedDict()
        """(address, user) -> wrong passwords, and the time from which the next one may be checked."""

    async def back_off(self, address: Owner, user: bytes) -> None:
        """Wait until the user's next password from this address may be checked.

        Raises:
            TooMany: that would take too long.
        """
        wrong, at = self._seen.get((address, user), (0, 0.0))
        now = self._clock()
        if wrong < FREE_TRIES or now > at + FORGET_S:
            return
        wait = at - now
        if wait > WAIT_MAX_S:
            advice = "too many wrong passwords of one user; look for a device with an old password, or an attack"
            self._refusals.note("wrong passwords", address, advice)
            raise TooMany(f"too many wrong passwords for this user from this address; try again in {wait:.0f} s")
        self._seen[address, user] = (wrong, max(at, now) + _pause_s(wrong))
        if wait > 0:
            await asyncio.sleep(wait)

    def note(self, address: Owner, user: bytes, *, is_right: bool) -> None:
        """Count a wrong password, or forget the wrong ones at a correct one."""
        wrong, at = self._seen.pop((address, user), (0, 0.0))
        if is_right:
            return
        now = self._clock()
        wrong = 1 if now > at + FORGET_S else wrong + 1
        self._seen[address, user] = (wrong, max(at, now + _pause_s(wrong)))
        while len(self._seen) > REMEMBERED_MAX:
            self._seen.popitem(last=False)


def _pause_s(wrong: int) -> float:
    """Return the time between two checks after so many wrong passwords."""
    if wrong < FREE_TRIES:
        return 0.0
    return float(min(BACK_OFF_MAX_S, BACK_OFF_S * 2 ** min(wrong - FREE_TRIES, 10)))


def _step_back() -> None:
    """Lower this thread's priority, where threads have their own."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


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
        limits: EdgeLimits = EdgeLimits(),  # noqa: B008 - immutable
        known: PasswordCache | None = None,
        refusals: Refusals | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with the content of the files.

        Args:
            names: user -> hash (``users.parse``); None without a users file: every password is then wrong.
            acl: None without an ACL file: every client may then publish to and read every topic.
            limits: their ``authentications`` is the number of clients whose passwords may wait to be checked.
            known: passwords known as correct; None to remember them only until the end of the process.
            refusals: counts refusals by address.
            clock: monotonic seconds.
        """
        self.acl = acl
        self._names = names
        self._counters = counters or ListenerCounters()
        self._refusals = refusals = refusals or Refusals(clock)
        self.known = known or PasswordCache(None, clock)
        # The owners are addresses: whether a client is the user that it names is not known yet.
        waiting = Quota.of("limits.authentications", limits.authentications, limits.user_share, "passwords to check")
        self._checks = PasswordChecks(Bound(waiting, refusals), refusals, clock)
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
    return users.hasher().hash(os.urandom(16))
