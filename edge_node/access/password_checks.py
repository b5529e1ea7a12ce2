"""Password checks in fair turns: slow hashes on few threads, which all addresses and users share.

Addresses take turns, and within an address its users. After wrong passwords, the next check of the same user from the
same address waits longer and longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b

from weft.bounds import Bound, Owner, Refusals

THREADS = 2
"""Number of password-hashing threads; each uses the 19 MiB of ``users.HASHER``."""
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
