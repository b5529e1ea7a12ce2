"""Take-overs: the copy of a node that is away goes to the hubs under the names of that node's lanes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from weft.config.models import EdgeConfig
from weft.edge_node.check.streams import carried_streams
from weft.edge_node.links.links import Links, link_settings, rules_of
from weft.edge_node.pair.copies import Copy, StreamFacts
from weft.protocols.batch import decode_header
from weft.protocols.chunk_index import LaneFlag, Mark
from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import SEQ_END, RangeSet
from weft.replication.events import LaneEnded, LaneTaken, LinkStatus
from weft.replication.runner import run_link
from weft.replication.runner.control import LinkControl
from weft.replication.source import Epochs, LaneSnapshot, OfferedLane, Party, ReleaseLedger
from weft.storage.segment_log import LogError

logger = logging.getLogger(__name__)

LINGER_S = 15.0
"""Time for which a take-over continues when hubs have all records, so that the last mark gets there."""

# A copy as the source of a link: its node's lanes, as another hub would relay them.


class CopySource:
    """The lanes of a copy for one link of this node (``replication.source.LogSource``).

    They claim no epoch and fence no one: the hub takes the union of what it gets from here and from the node itself.

    Args:
        carries: whether the link carries a stream.
        released: called with the stream and numbers that the hub has.
        compared: leave out numbers that hubs may have for other records (``Copy.compared_end``).
        ends: stream -> end of what goes to the hub; None for all. A node that is there adds records to the copy as
            fast as the hub gets them.
    """

    def __init__(
        self,
        copy: Copy,
        carries: Callable[[str], bool],
        released: Callable[[str, RangeSet], None],
        *,
        compared: bool = False,
        ends: Mapping[str, int] | None = None,
    ) -> None:
        self._copy, self._carries, self._released = copy, carries, released
        self._end = partial(copy.end_to_bring, compared=compared, ends=ends)
        self._pages = copy.log.page_reader()
        self._names = {number: name for name, number in copy.log.streams().items() if carries(name)}
        self._answered: set[int] = set()
        """Lanes whose hub now says what it has."""
        self.had = self.brought = 0
        """Records that the hub had when it was asked, and that it took since."""

    def lanes(self) -> list[OfferedLane]:
        """Return the lanes that the link carries."""
        about, log = self._copy.about, self._copy.log
        found = []
        for number, name in self._names.items():
            said = about.streams.get(name) or StreamFacts([], PayloadKind.BYTES)
            found.append(
                OfferedLane(
                    number,
                    name,
                    tuple(said.topics),
                    PayloadKind(said.payload) if said.payload in list(PayloadKind) else PayloadKind.BYTES,
                    Lane(*self._copy.owner, log.log_id, name),
                    LaneFlag.RELAY,
                    about.origins.get,
                    clock=about.clocks.get,
                    # The hub may have more from the node itself.
                    continues_hub=True,
                    answered=partial(self._note_answer, number),
                )
            )
        return found

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        """Return all records of the copy, with the node's own last mark: a hub that was restored to an earlier state
        gets back what it had.

        Records that a mark covers and the copy lacks hold it back at the hub: it claims nothing that the hub cannot
        see for itself. A mark that counts numbers which the hub may have for other records is not repeated, since
        these would make it true in the hub's eyes. The node's notices of loss go with their reasons.
        """
        found = {}
        for lane in lanes:
            name = self._names[lane]
            held, said = self._copy.log.ranges(lane), self._copy.about.streams.get(name)
            last = self._end(name)
            held.remove(last, SEQ_END)
            gaps = [gap for gap in self._copy.lost(name) if gap.end <= last]
            mark = None if said is None or said.mark is None else Mark(*said.mark)
            if mark is not None and mark.seq > min(last, self._copy.compared_end(name)):
                mark = None
            end = max([min(last, self._copy.log.next_seq(lane)), *(gap.end for gap in gaps)])
            found[lane] = LaneSnapshot(held, end, gaps, mark)
        return found

    def _note_answer(self, lane: int, answer: LaneTaken | LaneEnded) -> None:
        if isinstance(answer, LaneTaken):
            # The hub's ranges come with the next event, in the same step.
            self._answered.add(lane)
            asyncio.get_running_loop().call_soon(self._answered.discard, lane)

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        """Return batches as stored, of numbers that ``states`` has.

        Raises:
            OSError: the copy cannot be read.
        """
        try:
            batches = (await self._pages.read(lane, seq, bytes_max)).batches
        except LogError as error:
            raise OSError(str(error)) from error
        # A page has batches beyond the range, too.
        end = self._end(self._names[lane])
        return [batch for batch in batches if decode_header(batch).end_seq <= end]

    def high_watermark(self, hub: str, lane: int) -> int:  # noqa: ARG002 - of the contract
        """Return the end of all numbers: the hub may have more from the node itself."""
        return SEQ_END

    async def prepare_to_send(self, hub: str, ends: Mapping[int, int]) -> None:
        """Return at once: the node itself keeps account of what hubs can have of its log."""

    def released(self, lane: int, ranges: RangeSet) -> None:
        """Note what the hub has. Under numbers that were not offered it may have other records: those stay."""
        name, kept = self._names[lane], self._copy.log.kept(lane)[0]
        ranges = ranges.copy()
        ranges.remove(self._end(name), SEQ_END)
        count = sum(end - first for run in ranges for first, end in kept.within(*run))
        if lane in self._answered:
            self.had += count
        else:
            self.brought += count
        self._released(name, ranges)

    def listen(self, callback: Callable[[Collection[int] | None], None]) -> Callable[[], None]:
        """Call ``callback`` after each commit of the copy, and when some of it was forgotten."""
        forgotten = lambda: callback(None)  # noqa: E731
        self._copy.listeners.append(forgotten)
        unlisten = self._copy.log.listen_to_streams(callback)

        def end() -> None:
            self._copy.listeners.remove(forgotten)
            unlisten()

        return end


@dataclass
class _TakeOver:
    """A copy that goes to the hubs."""

    is_ordered: bool
    """True if an operator wants all of it there, and not only what the node had compared with its hubs."""
    ends: dict[str, int] | None = None
    """Stream -> end of the records that go; None for all."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    statuses: list[LinkStatus] = field(default_factory=list)
    sources: list[CopySource] = field(default_factory=list)
    controls: dict[str, LinkControl] = field(default_factory=dict)
    """Link -> its control here."""
    done_at: float | None = None
    """Time from which hubs had all records."""


class TakeOvers:
    """Copies on their way to the hubs, by the links of this node's configuration."""

    def __init__(self, links: Links, config: EdgeConfig) -> None:
        self._links = links
        self._config = config
        self._running: dict[str, _TakeOver] = {}
        self._results: dict[str, tuple[int, int]] = {}
        """Copy -> records that hubs had at the last take-over, and that they took."""
        self._now = asyncio.get_running_loop().time

    def __contains__(self, name: object) -> bool:
        return name in self._running

    async def adopt(self, config: EdgeConfig) -> None:
        """Use the links of another configuration from now on: those that run end, and ``begin`` is for the caller."""
        if config is not self._config:
            self._config = config
            await self.close()

    def not_carried(self, copy: Copy) -> dict[str, int]:
        """Return stream -> number of its records that no link of this node carries."""
        return {name: count for name, count in copy.waiting().items() if not self._carriers(name)}

    def unsent(self, copy: Copy, *, is_ordered: bool = False, ends: Mapping[str, int] | None = None) -> int:
        """Return the number of a copy's records that a take-over has to bring to the hubs."""
        waiting = copy.waiting(compared=not is_ordered, ends=ends)
        return sum(count for stream, count in waiting.items() if self._carriers(stream))

    def unsent_of(self, name: str, copy: Copy) -> int:
        """Return the number of records that a take-over which runs has still to bring; 0 if none runs."""
        running = self._running.get(name)
        return 0 if running is None else self.unsent(copy, is_ordered=running.is_ordered, ends=running.ends)

    def _carriers(self, stream: str) -> list[str]:
        links = self._config.links.items()
        return [name for name, link in links if link.streams is None or stream in carried_streams(link, self._config)]

    def begin(self, name: str, copy: Copy, *, is_ordered: bool, ends: dict[str, int] | None = None) -> None:
        """Offer a copy to the hubs of all links: the records before ``ends``."""
        logger.warning(
            "taking over %s: the hubs get what this node has of it, %d records as far as it knows",
            copy.owner,
            sum(copy.waiting(compared=not is_ordered, ends=ends).values()),
        )
        streams = copy.log.streams()
        parties = {
            number: [Party("link", link) for link in self._carriers(stream)] for stream, number in streams.items()
        }
        names = {number: stream for stream, number in streams.items()}
        ledger = ReleaseLedger(parties, lambda number, ranges: copy.forget(names[number], ranges))
        running = self._running[name] = _TakeOver(is_ordered, ends)
        for link, settings in self._config.links.items():
            party, status = Party("link", link), LinkStatus(f"{link}, for {copy.owner}")

            def released(stream: str, ranges: RangeSet, party: Party = party) -> None:
                ledger.released(party, streams[stream], ranges)

            def carries(stream: str, link: str = link) -> bool:
                return link in self._carriers(stream)

            source = CopySource(copy, carries, released, compared=not is_ordered, ends=ends)
            if source.lanes():
                own = self._links.orders.control(link, settings).policy
                # The month's bytes are those of the link itself, which stores them.
                control = LinkControl(
                    rules_of(settings), wall_clock=self._links.wall_clock, is_paused=own.is_paused, counts=own.count
                )
                running.controls[link] = control
                running.sources.append(source)
                running.statuses.append(status)
                running.tasks.append(
                    asyncio.create_task(
                        run_link(
                            source,
                            self._links.identity,
                            link_settings(settings),
                            Epochs("memory", lambda: b"0", lambda _: None),
                            status,
                            wall_clock=self._links.wall_clock,
                            control=control,
                        ),
                        name=f"take-over-{name}-{link}",
                    )
                )

    async def look(self, name: str, copy: Copy) -> bool:
        """Follow the orders to the links; return whether hubs have had everything for a while that a link carries."""
        running = self._running[name]
        for link, control in running.controls.items():
            own = self._links.orders.control(link, self._config.links[link]).policy
            if own.is_paused != control.policy.is_paused:
                await control.pause(own.is_paused)
        self._results[name] = sum(each.had for each in running.sources), sum(each.brought for each in running.sources)
        if self.unsent_of(name, copy):
            running.done_at = None
        elif running.done_at is None:
            running.done_at = self._now()
        return running.done_at is not None and self._now() - running.done_at >= LINGER_S

    def runs(self, name: str, *, is_ordered: bool, ends: dict[str, int]) -> bool:
        """Return whether one runs that ``begin`` would make of these arguments."""
        running = self._running.get(name)
        return running is not None and (running.is_ordered, running.ends) == (is_ordered, ends)

    def is_ordered(self, name: str) -> bool:
        """Return whether one that runs is an operator's."""
        return self._running[name].is_ordered

    def results(self, name: str) -> tuple[int, int]:
        """Return the records of a copy that hubs had at the last take-over, and that they took."""
        return self._results.get(name, (0, 0))

    def trouble(self, name: str) -> str:
        """Return why links do not get on with a copy; empty if they do."""
        running = self._running.get(name)
        late = [] if running is None else [each for each in running.statuses if each.pending_records]
        why = {status.name: status.last_error or status.hold for status in late}
        return "; ".join(f"link {name}: {each}" for name, each in why.items() if each)

    async def end(self, name: str) -> None:
        """End one."""
        if (running := self._running.pop(name, None)) is not None:
            for task in running.tasks:
                task.cancel()
            await asyncio.gather(*running.tasks, return_exceptions=True)

    async def close(self) -> None:
        """End all."""
        for name in list(self._running):
            await self.end(name)
