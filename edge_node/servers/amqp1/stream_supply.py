"""Messages of a stream for one link, read from the log: from now on, or from an offset or a time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from weft.bounds import Owner
from weft.edge_node.access.identity import Identity
from weft.edge_node.servers.amqp1.items import Item, Outcome, Outlet
from weft.edge_node.sessions.log_readers import LogReaders
from weft.edge_node.subscriptions.log_records import LogRecord
from weft.edge_node.subscriptions.message import Message
from weft.protocols.batch import Flag, decode_header, records
from weft.protocols.message_headers import EXPIRES
from weft.storage.segment_log import LogFailed, SegmentLog
from weft.storage.segment_log.read.pages import PageReader

FETCHED_MAX = 64
"""Number of messages read at a time that a former link did not settle."""
RETRY_S = 1.0
"""Wait after a failed read of the disk."""

log = logging.getLogger(__name__)


class StreamSupply:
    """The ``Supply`` of a stream's link. Belongs to the event loop's thread."""

    def __init__(  # noqa: PLR0917
        self,
        link: Outlet,
        name: str,
        stream: int,
        identity: Identity,
        owner: Owner,
        segment_log: SegmentLog,
        readers: LogReaders,
        pages: PageReader,
        client: str,
    ) -> None:
        """Wait for ``start``.

        Args:
            name: the clients' name of the stream.
            stream: its number in the log.
            owner: owner in whose turns it is read.
            client: for log lines.
        """
        self._link = link
        self._name = name
        self._stream = stream
        self._identity = identity
        self._log = segment_log
        self._read_page, self._fetch, self._turn = readers.read_page, readers.fetch, readers.turn_of(owner)
        self._pages = pages
        self._client = client
        self._again: deque[Item] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._told_of_loss = False
        self.position = 0
        """First unsent seq."""
        self.owed: list[int] = []
        """Numbers of earlier messages that are sent first: a former connection did not settle them."""
        self.doubtful = 0
        """Number below which messages may have been sent before a crash: they are marked as redelivered."""
        self.find: Callable[[], int] | None = None
        """Function that finds the position, in a thread, before the first message is sent."""
        self.on_done: Callable[[], None] = lambda: None
        """Called each time that messages were settled."""
        self.on_stop: Callable[[bool], None] = lambda _: None
        """Called at the end."""
        self.is_idle = False

    # --- Supply

    def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def room(self) -> None:
        """Resume sending: there may be room again."""
        self._wake.set()

    def again(self, item: Item) -> None:
        """Send a message once more, before any newer one."""
        self._again.append(item)
        self._wake.set()

    def done(self, item: Item, outcome: Outcome) -> None:  # noqa: ARG002 - a stream keeps no dead letters
        """Note that a message was settled."""
        self.on_done()

    def stop(self, unsettled: list[Item], *, for_good: bool) -> None:
        """Stop sending."""
        if self._task is not None:
            self._task.cancel()
        self.owed = sorted({*self.owed, *(item.message.seq for item in (*unsettled, *self._again))})
        self._again.clear()
        self.on_stop(for_good)

    def may_go_on(self) -> bool:
        """Return True: each topic is checked when it is read."""
        return True

    def not_settled(self) -> list[int]:
        """Return the numbers of messages before the position that the client has not settled."""
        return sorted({*self.owed, *(item.message.seq for item in (*self._link.unsettled, *self._again))})

    # --- reading

    async def _run(self) -> None:
        while True:
            try:
                if self.find is not None:
                    self.position = await asyncio.to_thread(self.find)
                    self.find = None
                await self._send_owed()
                while True:
                    await self._pass()
            except (OSError, LogFailed) as error:
                log.warning("could not read stream %s for %s: %s; trying again", self._name, self._client, error)
                await asyncio.sleep(RETRY_S)

    async def _send_owed(self) -> None:
        while self.owed:
            seqs = self.owed[:FETCHED_MAX]
            found = await self._fetch(self._stream, seqs)
            for seq in seqs:
                await self._room()
                self.owed.remove(seq)
                record = found.get(seq)
                if record is not None and self._may_read(record.topic):
                    self._send(self._item(record, attempts=1))
            self._flush()

    async def _pass(self) -> None:
        while self._again:
            await self._room()
            self._send(self._again.popleft())
        await self._turn()
        page = await self._read_page(self._stream, self.position, self._may_read, self._turn)
        if page.lost:
            self._lost(page.lost)
        if page.next_seq == self.position:
            await self._more()
            return
        for record in page.records:
            await self._room()
            self.position = record.seq + 1
            self._send(self._item(record, attempts=int(record.seq < self.doubtful)))
        self.position = max(self.position, page.next_seq)
        self._flush()

    async def _room(self) -> None:
        """Return once one more message can be sent."""
        while not self._link.has_room:
            self._flush()
            self._wake.clear()
            await self._wake.wait()

    async def _more(self) -> None:
        """Return once there is more to send."""
        self.is_idle = True
        self._link.idle()
        self._flush()
        self._wake.clear()
        waiting = asyncio.ensure_future(self._pages.more(self._stream, self.position))
        waiting.add_done_callback(lambda _: self._wake.set())
        try:
            while not waiting.done() and not self._again:
                await self._wake.wait()
                self._wake.clear()
            if waiting.done():
                waiting.result()
        finally:
            self.is_idle = False
            waiting.cancel()

    def _send(self, item: Item) -> None:
        if not self._link.send(item):
            self.on_done()

    def _flush(self) -> None:
        self._link.flush()

    def _may_read(self, topic: bytes) -> bool:
        return self._identity.unrestricted or self._identity.may_read(topic)

    def _item(self, record: LogRecord, attempts: int) -> Item:
        expires = next((value for name, value in record.headers if name == EXPIRES and isinstance(value, int)), 0)
        qos = 0 if record.flags & Flag.PUBLISHED_QOS0 else 1
        message = Message(
            record.topic, record.payload, qos, expires_ns=expires, stream=self._stream, seq=record.seq,
            headers=record.headers,
        )  # fmt: skip
        return Item(message, attempts, (self._name, record.seq))

    def _lost(self, count: int) -> None:
        if not self._told_of_loss:
            self._told_of_loss = True
            log.warning(
                "%s reads stream %s: the log has deleted %d records before it read them",
                self._client, self._name, count,
            )  # fmt: skip


def first_since(segment_log: SegmentLog, stream: int, time_ns: int) -> int:
    """Return the first seq of a stream that was stored at a time or later. Blocks on the disk.

    With a clock that was set back, older records with later times may be missed.

    Raises:
        OSError, LogFailed: the log cannot be read.
    """
    end = segment_log.durable_end(stream)
    held = list(segment_log.ranges(stream))
    low, high = (held[0][0] if held else end), end
    before: bytes | None = None
    while low < high:
        middle = (low + high) // 2
        batches = segment_log.read(stream, middle, 1)
        if not batches or (header := decode_header(batches[0])).base_seq >= high:
            high = middle
        elif header.first_time >= time_ns:
            high = min(header.base_seq, middle)
        else:
            low, before = header.end_seq, batches[0]
    if before is not None:
        for record in records(before):
            if record.time >= time_ns:
                return record.seq
    return low
