"""Positions of a query, as its checkpoint keeps them.

In Spark's they are ``{"0": 1200, "1": 0, "chunks": {"0": [17, 3735928559, 1700000001000000000]}}``: of each shard the
offset of the next record, and of shards with records below it the chunk with the last of them: its number, the checksum
of its footer, and when the hub made it (ns since 1970).
Spark takes positions for new data when their text is another, so one that does not move keeps its text, with or without
a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_sinks.errors import ReadError
from spark_sinks.source.history import KeptPosition, WentBack, Witness
from spark_sinks.source.positions import CHUNKS, Offsets, from_json, of_checkpoint, to_json
from spark_sinks.source.stream_log import StreamLog
from spark_sinks.source.tables import TableSnapshot

Places = dict[int, KeptPosition]
"""Shard -> position."""
_NUMBERS = 3
CLOCKS_NS = 300 * 1_000_000_000
"""Nanoseconds by which the clocks of two nodes of a hub may differ."""


def decode(value: Any) -> Places:
    """Return positions from a checkpoint. Those of earlier releases have no chunks.

    Raises:
        ReadError: they are something else.
    """
    try:
        offsets = from_json(value)
        chunks = {int(shard): _witness(pair) for shard, pair in value.get(CHUNKS, {}).items()}
        if chunks.keys() - offsets.keys():
            raise ValueError("a chunk has no offset")
    except (ValueError, AttributeError):
        raise ReadError(
            f"checkpoint: expected offsets by shard, got {str(value)[:200]}. It is of another query, or of a later "
            "release"
        ) from None
    return {shard: KeptPosition(offset, chunks.get(shard)) for shard, offset in offsets.items()}


def encode(places: Mapping[int, KeptPosition]) -> dict[str, Any]:
    """Return the form for the checkpoint: the same positions give the same text."""
    found: dict[str, Any] = dict(to_json(offsets_of(places)))
    chunks = {str(shard): list(chunk) for shard, chunk in sorted(chunks_of(places).items())}
    return found | ({CHUNKS: chunks} if chunks else {})


def chunks_of(places: Mapping[int, KeptPosition]) -> dict[int, tuple[int, int, int]]:
    """Return number, checksum and time of the chunks, where they are known."""
    known = {shard: kept.witness for shard, kept in places.items() if kept.witness is not None}
    return {shard: (each.n, each.footer_crc, each.created or 0) for shard, each in known.items()}


def offsets_of(places: Mapping[int, KeptPosition]) -> Offsets:
    """Return the offsets alone."""
    return {shard: kept.end for shard, kept in places.items()}


def _witness(pair: Any) -> Witness:
    if not isinstance(pair, list) or len(pair) != _NUMBERS or not all(type(n) is int and n >= 0 for n in pair):
        raise ValueError("no chunk")
    return Witness(*pair)


class Bookmarks:
    """The positions of one run of a query, compared with the log that it reads.

    A position that comes from a checkpoint is compared once, before anything is read from there: one GET for each
    shard. Those that this run made need no comparison, as long as its view of the log goes on: each chunk that is
    added to it names the one before.
    """

    def __init__(self, log: StreamLog) -> None:
        self._log = log
        self._known: Places = {}
        """The highest positions that are of this log."""
        self._loads = log.loads

    async def compared(self, given: Any) -> Places:
        """Return positions of Spark's checkpoint for every shard of the log; a shard that was made later begins at 0.

        Raises:
            ReadError: they are no positions; otherwise as ``compare``.
        """
        return await self.compare(decode(given))

    async def compare(self, places: Mapping[int, KeptPosition]) -> Places:
        """Return positions for every shard of the log, once they are found to be of this log.

        Raises:
            ReadError: they are of another store.
            WentBack: they are of this store before it was restored to an earlier state.
        """
        whole = of_checkpoint(offsets_of(places), self._log.heads)
        found = {shard: places.get(shard, KeptPosition(offset, None)) for shard, offset in whole.items()}
        if self._loads != self._log.loads:
            self._loads, self._known = self._log.loads, {}
        new = {shard: kept for shard, kept in found.items() if self._is_new(shard, kept)}
        stream = self._log.options.stream
        try:
            # The log's end has been looked at, which is all that can be done without a chunk.
            deleted = await self._log.history.check(
                {(stream, shard): kept for shard, kept in new.items() if kept.witness is not None}
            )
            if deleted:
                check_rows(self._log.table(), {shard: kept for (_, shard), kept in deleted.items()})
        except WentBack as error:
            raise WentBack(
                f"checkpoint: it goes up to {error}. The hub's store was restored to an earlier state, and gives these "
                "offsets to other records. Move the checkpoint away, and what the query has written; the query makes "
                "both again from the log"
            ) from None
        self._known |= new
        return found

    def _is_new(self, shard: int, kept: KeptPosition) -> bool:
        return shard not in self._known or kept.end > self._known[shard].end

    async def moved(self, ends: Offsets, start: Mapping[int, KeptPosition]) -> Places:
        """Return positions at the ends of a micro-batch, as ``moved``. This run has made them."""
        places = await moved(self._log, ends, start)
        self._known |= places
        return places


def check_rows(table: TableSnapshot | None, places: Mapping[int, KeptPosition]) -> None:
    """Check rows of the table whose chunks the hub has deleted: none can have come after its chunk was made.

    Raises:
        WentBack: one did, so it was given the offset again after a restore.
    """
    for shard, (end, witness) in places.items():
        if table is None or witness is None or witness.created is None:
            continue
        received = table.received(shard, end - 1)
        if received is not None and received > witness.created + CLOCKS_NS:
            raise WentBack(f"offset {end} of shard {shard}, and the record before it came later")


async def moved(log: StreamLog, ends: Offsets, start: Mapping[int, KeptPosition]) -> Places:
    """Return positions at the ends of a micro-batch, with their chunks.

    Costs nothing where a running query has seen the chunks come; otherwise some GETs for each shard that moved.

    Args:
        start: where it starts. A position that does not move stays what it is.

    Raises:
        ReadError: the store does not answer.
    """
    moving = {shard: end for shard, end in ends.items() if shard not in start or end != start[shard].end}
    found = await log.witnesses({shard: end for shard, end in moving.items() if end > 0})
    places = {shard: KeptPosition(end, found.get(shard)) for shard, end in moving.items()}
    return places | {shard: start[shard] for shard in ends.keys() - moving.keys()}
