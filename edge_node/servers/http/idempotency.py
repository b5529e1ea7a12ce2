"""Idempotency keys: a request that is sent again because its answer was lost is recognised, and nothing of it is stored
twice.

Each key is a record of the stream ``weft-http``. It is appended in one commit with the records of its request, and a
crash leaves all of them or none: after a crash at any instant the key is known if and only if the records are in the
log. Keys are remembered for a time, up to a number in all and for each owner; the oldest go first.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from weft.bounds import Owner, Quota, Shares
from weft.edge_node.servers.http.settings import HttpCounters, HttpSettings
from weft.protocols.batch import records
from weft.protocols.errors import UnsupportedVersion
from weft.storage.data_directory import FORMATS
from weft.storage.segment_log import SegmentLog

KEY_CHARACTERS_MAX = 255
READ_BYTES = 1 << 20
VERSION = FORMATS["http"]
DIGEST_BYTES = 16

logger = logging.getLogger(__name__)


class Once(NamedTuple):
    """An idempotency key of a request."""

    key: str
    fingerprint: bytes
    """Digest of all data that the request stores."""


class RememberedAnswer(NamedTuple):
    """Remembered answer to a request."""

    fingerprint: bytes
    stream: int
    """Number of the stream whose numbers the answer gave; 0 for none."""
    seqs: tuple[tuple[int, int], ...]
    """(first seq, count)."""
    messages: int
    """Number of messages stored."""


class _Entry(msgspec.Struct, array_like=True):
    """Value of one record."""

    version: int
    digest: bytes
    fingerprint: bytes
    stream: int
    seqs: list[tuple[int, int]]
    count: int


class _Beginning(msgspec.Struct, array_like=True):
    """Part of the value that each release can read."""

    version: int


class IdempotencyKeys:
    """The keys of the last hours. Belongs to the event loop's thread."""

    def __init__(
        self,
        log: SegmentLog,
        stream: int,
        settings: HttpSettings,
        counters: HttpCounters,
        wall_clock: Callable[[], int],
    ) -> None:
        """Load the keys of the log. Blocks.

        Args:
            stream: number of the stream of keys.
            wall_clock: nanoseconds since 1970.

        Raises:
            OSError, LogError: the log cannot be read.
            UnsupportedVersion: a later release wrote it.
        """
        self.counters = counters
        self._log = log
        self._stream = stream
        self._window_ns = round(settings.state.idempotency_window_s * 1e9)
        self._wall_clock = wall_clock
        quota = Quota.of(
            "state.idempotency_keys", settings.state.idempotency_keys, settings.limits.user_share, "idempotency keys"
        )
        self._shares: Shares[str] = Shares(quota.total, quota.share)
        self._of_owner: dict[str, OrderedDict[bytes, tuple[int, RememberedAnswer]]] = {}
        """Owner -> digest of a key -> time and answer, the oldest first."""
        self._order: OrderedDict[bytes, str] = OrderedDict()
        """Digest -> owner, the oldest first."""
        self._encode = msgspec.msgpack.Encoder().encode
        self._load()

    def find(self, owner: Owner, key: str) -> RememberedAnswer | None:
        """Return the answer of a key; None for a new key."""
        self._expire()
        own = self._of_owner.get(str(owner))
        found = None if own is None else own.get(_digest(owner, key))
        return None if found is None else found[1]

    def note(self, owner: Owner, key: str, remembered: RememberedAnswer) -> None:
        """Remember a key, in the log as well. Call it in ``together``, with its records.

        Raises:
            LogFull, LogFailed: the key is not remembered.
        """
        digest, now = _digest(owner, key), self._wall_clock()
        entry = _Entry(
            VERSION, digest, remembered.fingerprint, remembered.stream, list(remembered.seqs), remembered.messages
        )
        self._log.append(self._stream, now, [str(owner).encode()], [self._encode(entry)])
        self._keep(str(owner), digest, now, remembered)

    def _load(self) -> None:
        decoder, seq, end = msgspec.msgpack.Decoder(_Entry), 0, self._log.durable_end(self._stream)
        oldest = self._wall_clock() - self._window_ns
        while seq < end and (batches := self._log.read(self._stream, seq, READ_BYTES)):
            for data in batches:
                for record in records(data):
                    seq = record.seq + 1
                    if record.time < oldest:
                        continue
                    entry = _decoded(record.payload, decoder)
                    if entry is None:
                        continue
                    seqs = tuple((first, count) for first, count in entry.seqs)
                    remembered = RememberedAnswer(entry.fingerprint, entry.stream, seqs, entry.count)
                    self._keep(record.key.decode(), entry.digest, record.time, remembered)

    def _keep(self, owner: str, digest: bytes, time: int, remembered: RememberedAnswer) -> None:
        own = self._of_owner.setdefault(owner, OrderedDict())
        if digest in own:
            return
        while own and self._shares.is_own_share_full(owner):
            self._drop(next(iter(own)))
            self.counters.http_keys_forgotten += 1
            own = self._of_owner.setdefault(owner, OrderedDict())
        while self._order and self._shares.used >= self._shares.total:
            self._drop(next(iter(self._order)))
            self.counters.http_keys_forgotten += 1
            own = self._of_owner.setdefault(owner, OrderedDict())
        own[digest] = (time, remembered)
        self._order[digest] = owner
        self._shares.hold(owner)
        self.counters.http_keys = self._shares.used

    def _expire(self) -> None:
        oldest = self._wall_clock() - self._window_ns
        while self._order:
            digest, owner = next(iter(self._order.items()))
            if self._of_owner[owner][digest][0] >= oldest:
                break
            self._drop(digest)

    def _drop(self, digest: bytes) -> None:
        owner = self._order.pop(digest)
        own = self._of_owner[owner]
        del own[digest]
        if not own:
            del self._of_owner[owner]
        self._shares.free(owner)
        self.counters.http_keys = self._shares.used


def joined(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ascending runs of numbers, (first, count), with adjacent runs joined."""
    found: list[tuple[int, int]] = []
    for first, count in runs:
        if found and found[-1][0] + found[-1][1] == first:
            found[-1] = (found[-1][0], found[-1][1] + count)
        else:
            found.append((first, count))
    return found


def _decoded(payload: bytes, decoder: msgspec.msgpack.Decoder[_Entry]) -> _Entry | None:
    try:
        if msgspec.msgpack.decode(payload, type=_Beginning).version > VERSION:
            # Forgetting its keys would store repeated requests twice.
            raise UnsupportedVersion("a later release has written idempotency keys of this node: install that again")
        return decoder.decode(payload)
    except msgspec.MsgspecError as error:
        logger.error("an idempotency key cannot be read, and is forgotten: %s", error)
        return None


def _digest(owner: Owner, key: str) -> bytes:
    """Return a short form of a key: equal keys of two owners differ."""
    return hashlib.blake2b(f"{owner}\0{key}".encode(), digest_size=DIGEST_BYTES).digest()
