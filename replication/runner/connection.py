"""One connection of a link's sending end: socket, log and ``Sender`` joined."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator

import aiohttp

from weft.protocols.chunk_index import LaneFlag
from weft.protocols.errors import CodecError
from weft.protocols.link import (
    CONFIG,
    DOWN,
    FEATURES,
    PROTOCOL_VERSION,
    PULL,
    ConfigDesired,
    ConfigState,
    Hello,
    Messages,
    Outcomes,
    Pulls,
    PullState,
    RefuseCode,
)
from weft.replication.attempts import ConnectionEnd, refused_by_hub
from weft.replication.events import (
    Acked,
    ConnectionLost,
    Fault,
    LaneEnded,
    LaneTaken,
    LinkState,
    ReadRequest,
    Refusal,
    SenderEvent,
    Unreadable,
    Welcomed,
)
from weft.replication.flow_control import SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.policy import Order
from weft.replication.runner.control import Drain, LinkControl
from weft.replication.runner.progress import HubTime, LinkLog, Progress
from weft.replication.runner.settings import ClockSource, ConfigReceiver, LinkIdentity, MessageTaker, Puller, Stopping
from weft.replication.sender import Sender
from weft.replication.source import Epochs, LogSource, OfferedLane

STATUS_INTERVAL = SECOND
LAST_WORDS_S = 1.0


class SenderConnection:
    """One connection of a link at the sending end. Runs once."""

    def __init__(
        self,
        source: LogSource,
        identity: LinkIdentity,
        settings: SenderSettings,
        epochs: Epochs,
        progress: Progress,
        *,
        link_log: LinkLog,
        clock: Callable[[], int],
        wall_clock: Callable[[], int],
        stay: bool = False,
        clocks: ClockSource | None = None,
        stopping: Stopping | None = None,
        config: ConfigReceiver | None = None,
        control: LinkControl,
        taker: MessageTaker | None = None,
        puller: Puller | None = None,
    ) -> None:
        self._puller, self._config = puller, config
        self._control = control
        self._stopping = stopping or Stopping()
        self._taker = taker
        self._is_ending = False
        self._stay = stay
        self._clocks = clocks
        self._source = source if puller is None else puller.over(source)
        self._identity = identity
        self._settings = settings
        self._epochs = epochs
        self._progress = progress
        self._status = progress.status
        self._link_log = link_log
        self._clock = clock
        self._wall_clock = wall_clock
        self._wake = asyncio.Event()
        self._touched: set[int] = set()
        """Lanes with commits since they were offered."""
        self._all_touched = True
        self._offered: dict[int, OfferedLane] = {}
        self._outcome: ConnectionEnd | None = None
        self._withdraw, self._next_status = False, 0
        self._status_stale = True
        """True when something happened since the figures of the status were counted."""
        self._drain, self._arrival = Drain(None), Drain(None)
        self._asked_at: int | None = None
        """Time of the last check whether bytes still leave this machine."""
        self._delivered = False
        self._taken_at: int | None = None
        self._time = HubTime(clocks, self._status.url, clock)
        self._held: ReadRequest | None = None
        """A request that waits for the time of this boot."""

    def proven(self, after: int) -> bool:
        """Return whether the hub accepted not only the link but also data, or kept the link up for ``after`` ns."""
        return self._delivered or (self._taken_at is not None and self._clock() - self._taken_at >= after)

    @contextlib.contextmanager
    def metered(self) -> Iterator[None]:
        """Count the bytes of what is done inside, the attempt to connect included."""
        try:
            yield
        finally:
            self._control.attempt_ended()
            self._control.describe(self._status)

    async def run(self, socket: aiohttp.ClientWebSocketResponse) -> ConnectionEnd:
        """Replicate over an open socket until the connection is over; the caller closes the socket."""
        tcp = socket.get_extra_info("socket")
        self._drain, self._arrival = Drain(tcp), Drain(tcp)
        self._control.opened(tcp)
        try:
            epoch = await asyncio.to_thread(self._epochs.propose)
        except (OSError, ValueError) as error:
            return ConnectionEnd(LinkState.WAITING, f"the link's epoch cannot be stored: {error}")
        sender = Sender(
            self._hello(),
            epoch,
            self._settings,
            self._wall_clock,
            self._clock(),
            high_watermark=self._source.high_watermark,
            policy=self._control.policy,
        )
        if self._puller is not None:
            sender.expected |= {Pulls}  # the hub may send it with its WELCOME
        self._control.set_ping_interval(self._settings.ping_interval)
        self._control.listen(self._on_order)
        unsubscribe = self._source.listen(self._on_commit)
        reader = asyncio.create_task(self._read(socket, sender))
        pump = asyncio.create_task(self._pump(socket, sender))
        stop = asyncio.create_task(self._stopping.wait())
        stop.add_done_callback(lambda _: self._wake.set())
        try:
            await asyncio.wait({reader, pump}, return_when=asyncio.FIRST_COMPLETED)
            if pump.done() and not sender.closed and not self._is_ending:
                # The write failed, but the hub may have sent the reason before it closed.
                await asyncio.wait({reader}, timeout=LAST_WORDS_S)
        finally:
            unsubscribe()
            reader.cancel()
            pump.cancel()
            stop.cancel()
            results = await asyncio.gather(reader, pump, return_exceptions=True)
            self._status.connected_since, self._status.is_taken = None, False
            if self._config is not None:
                self._config.closed()
            if self._puller is not None:
                self._puller.closed()
        self._handle_events(sender)
        outcome = self._outcome or _failure(results, socket.close_code)
        if self._withdraw:
            await asyncio.to_thread(self._epochs.withdraw, epoch)
        return outcome

    def _hello(self) -> Hello:
        tenant, edge, log_id, software, boot = self._identity
        return Hello(
            PROTOCOL_VERSION,
            tenant,
            edge,
            log_id,
            boot,
            self._wall_clock(),
            software,
            [each for each in FEATURES if self._takes(each)],
            self._stay,
            self._clocks is not None and self._clocks.is_synchronised,
        )

    def _takes(self, feature: str) -> bool:
        pulls = self._puller if self._puller is not None and self._puller.is_offered else None
        return {CONFIG: self._config, PULL: pulls}.get(feature, True) is not None

    def _is_of_pull(self, lane: int) -> bool:
        return lane not in self._offered or self._offered[lane].is_background

    def _on_commit(self, lanes: Collection[int] | None) -> None:
        if lanes is None:
            self._all_touched = True
        else:
            self._touched.update(lanes)
        self._status_stale = True
        self._wake.set()

    def _on_order(self) -> None:
        self._next_status = 0
        self._wake.set()

    def _offer_touched(self, sender: Sender, now: int) -> None:
        """Offer the state of the lanes that commits touched, and of those whose marks are due."""
        if self._all_touched:
            self._all_touched = False
            self._follow_lanes(sender)
            self._touched.update(self._offered)
        self._touched.update(sender.stale_lanes(now))
        if self._touched:
            touched, self._touched = self._touched & self._offered.keys(), set()
            for lane, state in self._source.states(touched).items():
                sender.offer(lane, state)

    def _follow_lanes(self, sender: Sender) -> None:
        """Open and close lanes as the source's change."""
        lanes = {lane.lane: lane for lane in self._source.lanes()}
        if lanes == self._offered:
            return
        for key, lane in self._offered.items():
            if lanes.get(key) != lane:
                sender.close_lane(key)
        new = [lane for key, lane in lanes.items() if self._offered.get(key) != lane]
        states = self._source.states([lane.lane for lane in new])
        for lane in new:
            sender.open_lane(lane, states[lane.lane])
        self._offered = lanes

    async def _read(self, socket: aiohttp.ClientWebSocketResponse, sender: Sender) -> None:
        """Read messages. Also the watchdog: the pump may be stuck in a write that the peer does not read."""
        while not sender.closed:
            try:
                message = await socket.receive(timeout=self._settings.silence / SECOND)
            except TimeoutError:
                sender.handle_timeout(self._clock())
                continue
            if message.type is not aiohttp.WSMsgType.BINARY:
                return
            # The lanes' states are offered again first: otherwise records that another link sent meanwhile would look
            # like records that this log never had.
            if opening := sender.opening:
                for lane, state in self._source.states(opening).items():
                    sender.offer(lane, state)
            sender.receive_data(message.data, self._clock())
            self._status_stale = True
            self._wake.set()

    async def _pump(self, socket: aiohttp.ClientWebSocketResponse, sender: Sender) -> None:
        while not sender.closed:
            self._wake.clear()
            now = self._clock()
            await self._control.look(now)
            if self._stopping.is_set() and not self._is_ending:
                self._is_ending = self._all_touched = True
            self._offer_touched(sender, now)
            is_over = self._is_ending and (not sender.connected or sender.end(self._stopping.renamed_to))
            self._pass_time(sender, now)
            if now >= self._next_status:
                await self._update_status(sender, now)
            request = self._handle_events(sender) or self._held
            if self._time.follow(sender):
                self._all_touched = True
                self._offer_touched(sender, now)
            self._held = request if self._time.is_awaited(now) else None
            if self._held is not None:
                request = None
            if sender.connected and not sender.opening:
                self._status.is_compared = True
            if request is not None:
                try:
                    sender.feed(request.lane, await self._source.read(*request))
                except (OSError, CodecError) as error:
                    self._outcome = ConnectionEnd(LinkState.WAITING, f"the log cannot be read: {error}")
                    return
            try:
                while ends := sender.named_ends():
                    await self._source.prepare_to_send(sender.cluster_id, ends)
            except OSError as error:
                self._outcome = ConnectionEnd(
                    LinkState.WAITING, f"the positions given to this hub cannot be saved: {error}"
                )
                return
            data = sender.data_to_send()
            if data:
                await self._write(socket, sender, data)
                self._control.sent(len(data))
                self._progress.sent(len(data), sender)
                await asyncio.sleep(0)  # a backlog in memory must not keep the event loop from serving devices
            elif is_over:
                self._outcome = ConnectionEnd(LinkState.STOPPED, "this node stops")
                return
            elif request is None:
                await self._sleep(sender, now)

    def _pass_time(self, sender: Sender, now: int, *, is_writing: bool = False) -> None:
        """Let time pass for the machine. A hub that cannot have all that was sent owes no answer to it."""
        patience = sender.patience
        again = patience.since == self._asked_at
        if patience.is_over(now) and self._drain.continues(again=again, is_writing=is_writing):
            self._asked_at = now
            patience.still_sending(now)
        if sender.beats.is_due(now):
            receives = self._arrival.receives(again=sender.beats.silent_looks > 0)
            if self._arrival.continues(again=True, is_writing=is_writing) or receives:
                sender.beats.heard(now, sender.round_trip)
        sender.handle_timeout(now)

    async def _write(self, socket: aiohttp.ClientWebSocketResponse, sender: Sender, data: bytes) -> None:
        """Send a message. The time passes meanwhile: a hub that is stopped reads nothing, and the write has no end."""
        writing = asyncio.ensure_future(socket.send_bytes(data))
        try:
            while not sender.closed:
                due = sender.beats.deadline
                wait_s = None if due is None else max(0, due - self._clock()) / SECOND
                if (await asyncio.wait({writing}, timeout=wait_s))[0]:
                    return await writing
                self._pass_time(sender, self._clock(), is_writing=True)
        finally:
            writing.cancel()

    async def _sleep(self, sender: Sender, now: int) -> None:
        deadline = sender.deadline()
        if deadline is not None:
            # An idle link sleeps for a minute. Figures from before the last acknowledgement must not be shown that
            # long.
            if self._status_stale:
                deadline = min(deadline, self._next_status)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0, deadline - now) / SECOND):
                    await self._wake.wait()

    async def _update_status(self, sender: Sender, now: int) -> None:
        self._next_status = now + STATUS_INTERVAL
        self._status_stale = False
        self._control.describe(self._status)
        self._progress.is_in_order = self._control.policy.rules.order is Order.STRICT
        await self._progress.refresh(sender, now)
        # The age of waiting records grows by itself.
        self._status_stale |= self._status.pending_records > 0
        if (hub := sender.liveness.peer_clock) is not None:
            offset = self._status.clock_offset_ns = hub.offset(now, self._wall_clock())
            self._status.clock_error_ns = hub.error
            self._link_log.clock(offset / SECOND, now / SECOND)

    def _handle_events(self, sender: Sender) -> ReadRequest | None:
        request = None
        for event in sender.events():
            if isinstance(event, ReadRequest):
                request = event
            else:
                self._handle(event, sender)
        return request

    def _connected(self, sender: Sender) -> None:
        """Note that the hub accepted a lane, and with it the epoch, which the WELCOME alone does not imply."""
        status = self._status
        self._taken_at = self._clock()
        status.state = LinkState.CONNECTED
        status.connected_since = self._wall_clock()
        status.is_taken, status.conflict = True, ""
        status.connections += 1
        self._link_log.connected(status.url, sender.cluster_id, self._taken_at / SECOND)

    def _send(self, sender: Sender, message: ConfigState | Outcomes | PullState) -> None:
        sender.send_frame(message)
        self._wake.set()

    def _handle(self, event: SenderEvent, sender: Sender) -> None:
        status = self._status
        match event:
            case Acked(lane, ranges, by_opening, newly, time):
                self._source.released(lane, ranges)
                if not by_opening:
                    self._delivered = True
                    status.attempts_failed = 0
                    status.records_acked += newly
                    status.last_ack_time = self._wall_clock()
                    if time is not None:
                        status.delivery_seconds = max(0, status.last_ack_time - time) / SECOND
            case Welcomed():
                status.cluster_id = event.cluster_id
                if self._taker is not None and DOWN in sender.peer_features:
                    sender.expected |= {Messages}
                    sender.send_frame(self._taker.opening(event.cluster_id))
                if self._puller is not None and PULL in sender.peer_features:
                    self._puller.opened(event.cluster_id, lambda message: self._send(sender, message))
                if all(lane.flags & LaneFlag.RELAY for lane in self._offered.values()):
                    self._connected(sender)  # lanes that are relayed claim no epoch, so none has to be accepted
                if self._config is not None and CONFIG in sender.peer_features:
                    sender.expected |= {ConfigDesired}
                    sender.send_frame(self._config.opened(sender.cluster_id, lambda state: self._send(sender, state)))
            case ConfigDesired() if self._config is not None:
                self._config.desire(event, sender.cluster_id)
            case LaneTaken(lane):
                if not self._is_of_pull(lane):
                    self._progress.taken(sender, self._offered[lane])
                    self._offered[lane].answered(event)
                if self._taken_at is None:
                    self._connected(sender)
            case LaneEnded(lane, _, message, _) if self._puller is not None and self._is_of_pull(lane):
                self._puller.lane_ended(message)
            case Pulls(pulls) if self._puller is not None:
                self._puller.take(pulls)
            case LaneEnded(lane, _, message, advice):
                if lane in self._offered:  # or the source has withdrawn it since
                    offered = self._offered[lane]
                    self._progress.failed(f"stream {offered.stream} is not replicated: {message}; {advice}")
                    offered.answered(event)
            case Refusal(code, message, advice, by_peer, url):
                # An epoch that a hub accepted for one lane is used up: if proposed again, it would be refused each
                # time.
                self._withdraw = by_peer and code == RefuseCode.IDENTITY_CONFLICT and self._taken_at is None
                self._outcome = refused_by_hub(code, message, advice, url)
                if self._outcome.state is LinkState.CONFLICT:
                    status.conflict = self._outcome.reason
            case Messages(messages) if self._taker is not None:
                self._taker.take(sender.cluster_id, messages, lambda message: self._send(sender, message))
            case Unreadable(lane, first, end):
                self._progress.failed(
                    f"the log does not give seq {first} to {end} of lane {lane}, though it holds them"
                )
            case ConnectionLost(fault, reason):
                self._outcome = ConnectionEnd(LinkState.WAITING, reason, is_silent=fault is not Fault.LOCAL)


def _failure(results: Iterable[BaseException | None], close_code: int | None) -> ConnectionEnd:
    for result in results:
        if isinstance(result, aiohttp.ClientError | OSError):
            return ConnectionEnd(LinkState.WAITING, f"the connection broke: {result}")
        if isinstance(result, Exception):
            raise result
    if close_code is None or close_code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE:
        return ConnectionEnd(
            LinkState.WAITING, "the connection broke: the hub or the network disappeared without closing the connection"
        )
    return ConnectionEnd(LinkState.WAITING, f"the hub closed the connection (WebSocket code {close_code})")
