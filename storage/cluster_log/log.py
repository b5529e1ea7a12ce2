"""The cluster log in the object store: read from a snapshot and what follows it, and written an entry at a time.

Creating entry n is the commit, as for chunks. A writer decides on the state after entry n - 1, so whatever it read is
still true when its entry is there. Entries are never deleted: they say who changed what, and why.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from weft.protocols.errors import CodecError, Corrupt, UnsupportedVersion
from weft.storage import hub_keys
from weft.storage.cluster_log import entry as entries
from weft.storage.cluster_log import state as states
from weft.storage.cluster_log.entry import ENTRY_BYTES_MAX, Declaration, NamedFact
from weft.storage.cluster_log.state import SNAPSHOT_BYTES_MAX, ClusterState
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, StoreError
from weft.storage.object_store.damage import naming

_RANDOM_BITS = random.SystemRandom().getrandbits
SNAPSHOT_ENTRIES = 64
"""Number of entries after which a writer makes a snapshot."""
SNAPSHOT_ANYWAY_ENTRIES = 1024
"""The same while an entry since the last snapshot is not usable: from a snapshot on, restoring it changes nothing."""
SNAPSHOTS_KEPT = 3
SNAPSHOTS_DELETED_MAX = 16
"""Maximum number of old snapshots that a writer deletes after one of its own."""
LISTED_MAX = 1000
FAILURES_MAX = 8
"""Number of attempts of a writer that the store does not answer."""
TRIES_MAX = 1000
"""Number of attempts of a writer while others write."""
DECODED_AT_ONCE_BYTES = 1 << 20
"""Size of a snapshot up to which a process decodes it in one step, a few milliseconds."""
RETRY_MIN_S, RETRY_MAX_S = 0.05, 2.0


class Rewritten(Exception):
    """The log in the store is not the one that was read: a backup of the store was restored. Load it again."""


class Contended(Exception):
    """A writer that others always forestalled."""


class Change(NamedTuple):
    """A fact to declare, or to withdraw."""

    kind: str
    name: str
    document: bytes | None


Decide = Callable[[ClusterState], Change | None]


class Author(NamedTuple):
    """The author of a change, with time and reason."""

    at: int
    """Nanoseconds since 1970."""
    by: str
    reason: str
    origin: str = ""
    """The user and the machine of the process, or the address of the client of the API."""
    command: str = ""
    """The words of the command, or method and path of the request."""


class ChangeRefused(Exception):
    """A change that the cluster log does not take. The message says why."""


class ClusterLog:
    """The cluster log of a store. Every method may raise ``StoreError`` besides its own errors.

    Args:
        random_bits: for nonces of entries and waits.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: bytes,
        random_bits: Callable[[int], int] = _RANDOM_BITS,
    ) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._random_bits = random_bits
        self._snapshots: list[int] = []
        """Numbers of the snapshots in the store as of the last ``load`` and this writer's own, ascending."""

    async def load(self) -> ClusterState:
        """Return the state at the end of the log: one listing, a snapshot, and a read for each entry behind it.

        An entry that is damaged or missing is passed over and named in the state.

        Raises:
            UnsupportedVersion: a later release wrote an entry.
        """
        state, follows = await self._from_snapshot(), True
        while True:
            try:
                while await self.extend(state, follows=follows) == LISTED_MAX:
                    pass
            except Rewritten:
                # The snapshot is of the log before a backup was restored. From the first entry on, all are as they are.
                state, follows, self._snapshots = ClusterState(self._cluster_id), False, []
                continue
            if (behind := await self.behind(state)) is None:
                return state
            # Other writers may have been quicker than the listing; an entry that is there does not count as missing.
            if await self._read(state.n + 1) is None:
                self._pass_over(state, behind)

    async def extend(self, state: ClusterState, entries_max: int = LISTED_MAX, *, follows: bool = True) -> int:
        """Read the entries that follow a state into it. One GET for each, and one for that which is not there.

        Args:
            follows: refuse an entry that names another one than the state's last as the one before it.

        Returns:
            The number of entries read.

        Raises:
            UnsupportedVersion: a later release wrote the next entry. The state is that before it.
            Rewritten: see ``follows``.
        """
        for count in range(entries_max):
            seen = await self._look(state.n + 1)
            if seen is None:
                return count
            data, found = seen
            if isinstance(found, Corrupt):
                state.skip(str(found))
            elif follows and state.crc is not None and found.previous != state.crc:
                raise Rewritten(f"{hub_keys.entry_key(found.n)} does not follow the entry that was read before it")
            else:
                state.apply(found, states.crc_of(data))
        return entries_max

    async def behind(self, state: ClusterState) -> int | None:
        """Return the number of the first entry in the store behind a state's last; None if there is none. One LIST."""
        for item in await self._store.list(hub_keys.ENTRIES, after=hub_keys.entry_key(state.n), limit=LISTED_MAX):
            number = hub_keys.number_of(item.key)
            if number is not None:
                return number
        return None

    async def holds(self, state: ClusterState) -> bool:
        """Return whether a state's last entry is still in the store as it was read. One GET."""
        if state.n == 0:
            return True
        data = await self._read(state.n)
        return data is not None and (state.crc is None or states.crc_of(data) == state.crc)

    async def newest(self, state: ClusterState, count: int) -> list[Declaration]:
        """Return the last entries up to a state's, newest first; those that are not usable are left out. One GET for
        each."""
        found = []
        for n in range(state.n, max(0, state.n - count), -1):
            seen = await self._look(n)
            if seen is not None and not isinstance(seen[1], Corrupt):
                found.append(seen[1])
        return found

    async def entry(self, n: int) -> Declaration | None:
        """Return an entry; None if there is none, or it is not usable."""
        seen = await self._look(n)
        return None if seen is None or isinstance(seen[1], Corrupt) else seen[1]

    async def append(self, decide: Decide, author: Author, state: ClusterState | None = None) -> ClusterState:
        """Write an entry. It is durable, and every process will read it, when this returns.

        Args:
            decide: returns the change, given the state that it will follow; called again if another writer was quicker.
                None if there is nothing to change. What it raises ends the call, and nothing was written.
            state: that of the call before, which saves loading it again; it is changed.

        Returns:
            The state with the change.

        Raises:
            ChangeRefused: a bound of the log leaves no room.
            Contended: other writers were always quicker.
            UnsupportedVersion: a later release wrote an entry: nothing was written.
            StoreError: the store did not answer; if it names an entry, that may be there.
        """
        return await self.append_all([decide], author, state)

    async def append_all(
        self, decisions: Sequence[Decide], author: Author, state: ClusterState | None = None
    ) -> ClusterState:
        """Write the changes of decisions in as few entries as hold them. Each decision sees what those before it
        change.

        Of one entry all changes are there, or none. What a decision raises ends the call, and nothing was written of
        its entry and those behind it. For the rest, see ``append``.
        """
        state = await self.load() if state is None else state
        done = 0
        while done < len(decisions):
            state, count = await self._append(decisions[done:], author, state)
            done += count
        return state

    async def _append(
        self, decisions: Sequence[Decide], author: Author, state: ClusterState
    ) -> tuple[ClusterState, int]:
        """Write one entry, with the changes of the first decisions. Return the state, and how many these are."""
        nonce, failures = self._random_bits(64), 0
        for _ in range(TRIES_MAX):
            facts, count = _decided(decisions, state)
            if not facts:
                return state, count
            made = self._entry(state, facts, author, nonce)
            data = entries.encode(made)
            found: bytes | None = data
            why = ""
            try:
                await self._store.create(hub_keys.entry_key(made.n), data)
            except (AlreadyExists, StoreError) as error:
                # Neither says who wrote it: stores answer "exists" to a retry of one's own write.
                found, why = await self._found(made.n), str(error)
            if found == data:
                state.apply(made, states.crc_of(data))
                await self._snapshot(state)
                return state, count
            if found is None:
                failures += 1
                if failures >= FAILURES_MAX:
                    raise StoreError(f"{hub_keys.entry_key(made.n)} may have been written or not: {why}")
                await self._wait(failures)
                continue
            try:
                await self.extend(state)
            except Rewritten:
                state = await self.load()
        raise Contended(f"other writers were quicker {TRIES_MAX} times. Try again when fewer commands run")

    def _entry(self, state: ClusterState, facts: list[NamedFact], author: Author, nonce: int) -> Declaration:
        if why := entries.wrong_facts(facts) or state.full(facts):
            raise ChangeRefused(why)
        for each in facts:
            if len(each.document or b"") > entries.DOCUMENT_BYTES_MAX:
                raise ChangeRefused(
                    f"{each.kind} {each.name!r} would have a document of {len(each.document or b'')} bytes, the "
                    f"limit is {entries.DOCUMENT_BYTES_MAX}"
                )
        for what, text, most in (
            ("the name of the author", author.by, entries.BY_CHARACTERS_MAX),
            ("the reason", author.reason, entries.REASON_CHARACTERS_MAX),
            ("the origin", author.origin, entries.ORIGIN_CHARACTERS_MAX),
            ("the command", author.command, entries.COMMAND_CHARACTERS_MAX),
        ):
            if len(text) > most:
                raise ChangeRefused(f"{what} has {len(text)} characters, the limit is {most}")
        at, by, reason, origin, command = author
        about = self._cluster_id, state.n + 1, state.crc or 0, entries.SEVERAL if len(facts) > 1 else 0
        return Declaration(*about, *facts[0], at, by, reason, nonce, origin, command, facts[1:])

    async def _found(self, n: int) -> bytes | None:
        """Return an entry's bytes; None if it is not there, or the store does not answer."""
        try:
            return await self._read(n)
        except StoreError:
            return None

    async def _read(self, n: int) -> bytes | None:
        try:
            # One byte more than an entry may have: a longer object is not read whole, and does not decode.
            return await self._store.get_range(hub_keys.entry_key(n), 0, ENTRY_BYTES_MAX + 1)
        except NotFound:
            return None

    async def _look(self, n: int) -> tuple[bytes, Declaration | Corrupt] | None:
        """Return an entry's bytes and their meaning, or what is wrong with them; None if it is not there."""
        data = await self._read(n)
        found = None if data is None else self._decoded(n, data)
        if isinstance(found, Corrupt):
            # The fault may have been in the reading. What is passed over stays so until the next start.
            data = await self._read(n) or data
            found = None if data is None else self._decoded(n, data)
        return None if data is None or found is None else (data, found)

    def _decoded(self, n: int, data: bytes) -> Declaration | Corrupt:
        try:
            with naming(hub_keys.entry_key(n)):
                found = entries.decode(data)
                if (found.cluster_id, found.n) != (self._cluster_id, n):
                    raise Corrupt(f"it holds entry {found.n} of cluster {found.cluster_id.hex()}")
                return found
        except UnsupportedVersion:
            raise
        except Corrupt as error:
            return error

    def _pass_over(self, state: ClusterState, behind: int) -> None:
        """Pass over missing entries. Of many only the last are named, as for all that are not usable."""
        first = state.n + 1
        state.n = max(state.n, behind - 1 - states.SKIPPED_KEPT_MAX)
        while state.n < behind - 1:
            state.skip(
                f"{hub_keys.entry_key(state.n + 1)} is missing (entries {first} to {behind - 1}): restore it from a "
                "backup of the store"
            )

    async def _from_snapshot(self) -> ClusterState:
        sizes: dict[int, int] = {}
        after = None
        while True:
            # Keys ascend, so the newest snapshot is on the last page.
            page = await self._store.list(hub_keys.CLUSTER_SNAPSHOTS, after=after, limit=LISTED_MAX)
            sizes |= {number: item.size for item in page if (number := hub_keys.number_of(item.key)) is not None}
            if len(page) < LISTED_MAX:
                break
            after = page[-1].key
        self._snapshots = sorted(sizes)
        for n in reversed(self._snapshots):
            if sizes[n] > SNAPSHOT_BYTES_MAX:
                continue
            try:
                data = (await self._store.get(hub_keys.cluster_snapshot_key(n))).data
                with naming(hub_keys.cluster_snapshot_key(n)):
                    in_thread = len(data) > DECODED_AT_ONCE_BYTES
                    state = await asyncio.to_thread(states.decode, data) if in_thread else states.decode(data)
            except UnsupportedVersion:
                raise
            except (CodecError, NotFound):
                continue  # an older one, or the entries themselves, say the same
            if (state.cluster_id, state.n) == (self._cluster_id, n) and await self.holds(state):
                return state
        return ClusterState(self._cluster_id)

    async def _snapshot(self, state: ClusterState) -> None:
        """Write a snapshot if it would save a start many reads, and delete old ones. It is only about cost."""
        last = self._snapshots[-1] if self._snapshots else 0
        unusable = bool(state.skipped) and state.skipped[-1].n > last
        if state.n - last < (SNAPSHOT_ANYWAY_ENTRIES if unusable else SNAPSHOT_ENTRIES):
            return
        try:
            with contextlib.suppress(AlreadyExists):  # of another writer, or of a retry of this one
                await self._store.create(hub_keys.cluster_snapshot_key(state.n), states.encode(state))
            self._snapshots.append(state.n)
            for n in self._snapshots[:-SNAPSHOTS_KEPT][:SNAPSHOTS_DELETED_MAX]:
                await self._store.delete(hub_keys.cluster_snapshot_key(n))
                self._snapshots.remove(n)
        except StoreError:
            return

    async def _wait(self, failures: int) -> None:
        longest = min(RETRY_MAX_S, RETRY_MIN_S * 2**failures)
        await asyncio.sleep(longest * (0.5 + self._random_bits(16) / (1 << 17)))


def _decided(decisions: Sequence[Decide], state: ClusterState) -> tuple[list[NamedFact], int]:
    """Return the changes of the first decisions that fit into one entry behind a state, and how many decisions these
    are."""
    if len(decisions) == 1:
        change = decisions[0](state)
        return ([] if change is None else [NamedFact(*change)]), 1
    facts: list[NamedFact] = []
    names = set[tuple[str, str]]()
    room = entries.Room()
    draft = state.draft()
    for count, decide in enumerate(decisions):
        change = decide(draft)
        if change is None:
            continue
        found = NamedFact(*change)
        if found[:2] in names or not room.take(found):
            return facts, count
        facts.append(found)
        names.add(found[:2])
        # As an entry of its own: the next decision sees what those before it have changed.
        draft.apply(Declaration(draft.cluster_id, draft.n + 1, 0, 0, *found, 0, "", "", 0), 0)
    return facts, len(decisions)
