"""Entries of others as one process knows them, and those that its next look reads.

A look is bounded whatever stands in the store: anyone who can write there can leave thousands of entries. They cost
requests and memory up to these bounds, and hide no entry that is written again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from heapq import nsmallest
from typing import NamedTuple

ENTRIES_MAX = 1024
"""Maximum number of entries whose content is kept: of those that change, and of those that were just found."""
REST_MAX = 256
"""Maximum number of further entries that a look reads, in turns; ``ENTRIES_MAX`` at the first look."""


class Seen(NamedTuple):
    """The entry of another one."""

    content: bytes
    age_s: float
    """Time since its content was seen to change."""


class _Known(NamedTuple):
    digest: bytes
    order: bytes
    """Place among those with the same turn."""
    changed: float
    read: float
    content: bytes | None
    """None for one of too many."""
    is_written: bool = False
    """True once its content was seen to change."""


class Entries:
    """The entries of others. Times are monotonic seconds.

    Args:
        own: name of the own entry; it decides whose turn is first, so that names cannot hide others.
        still_s: time without a change after which an entry stands still.
        forget_s: time after which one is to be removed.
    """

    def __init__(self, own: str, still_s: float, forget_s: float) -> None:
        self._own = own.encode()[:64]
        self._still_s, self._forget_s = still_s, forget_s
        self._known: dict[str, _Known] = {}

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._known)

    def seen(self, now: float) -> dict[str, Seen]:
        """Return the entries by name, also of those that are gone."""
        known = sorted(self._known.items())
        return {name: Seen(each.content, now - each.changed) for name, each in known if each.content is not None}

    def choose(self, names: Iterable[str], now: float) -> list[str]:
        """Return the entries that a look reads: those that are being written, and some of all others in turns.

        Args:
            names: all that are in the store, but for the own one.
        """
        listed = set(names)
        written = [name for name in self._known.keys() & listed if self._is_written(self._known[name], now)]
        written = nsmallest(ENTRIES_MAX, written, key=lambda name: self._known[name].order)
        rest = listed.difference(written)
        return [*written, *nsmallest(REST_MAX if self._known else ENTRIES_MAX, rest, key=self._turn)]

    def note(self, read: Mapping[str, bytes | None], names: Iterable[str], now: float) -> list[str]:
        """Note what a look has read. Return the entries to remove: they stand still for too long.

        Args:
            read: name -> content; None if it is not there any more.
            names: as for ``choose``.
        """
        kept = self._known.keys() & set(names)
        found = {name: self._known[name] for name in kept if name not in read}
        for name, content in read.items():
            if content is not None:
                found[name] = self._noted(name, content, now)
        gone = [name for name in read if name in found and now - found[name].changed > self._forget_s]
        for name in gone:
            del found[name]
        self._known = self._bounded(found, now)
        return gone

    def _noted(self, name: str, content: bytes, now: float) -> _Known:
        before, digest = self._known.get(name), blake2b(content, digest_size=16).digest()
        if before is None:
            return _Known(digest, self._order(name), now, now, content)
        if before.digest == digest:
            return before._replace(read=now)
        return _Known(digest, before.order, now, now, content, is_written=True)

    def _is_written(self, entry: _Known, now: float) -> bool:
        return entry.is_written and now - entry.changed <= self._still_s

    def _bounded(self, found: dict[str, _Known], now: float) -> dict[str, _Known]:
        """Drop content that is too much. It is that of entries that stand still, as long as there is such."""
        full = [name for name, entry in found.items() if entry.content is not None]
        written = sorted(
            (name for name in full if self._is_written(found[name], now)), key=lambda name: found[name].order
        )
        others = sorted(set(full).difference(written), key=lambda name: found[name].changed)
        for name in (*written[ENTRIES_MAX:], *others[ENTRIES_MAX:]):
            found[name] = found[name]._replace(content=None)
        return found

    def _turn(self, name: str) -> tuple[float, bytes]:
        known = self._known.get(name)
        return (known.read, known.order) if known is not None else (-1.0, self._order(name))

    def _order(self, name: str) -> bytes:
        return blake2b(name.encode(), digest_size=8, key=self._own).digest()
