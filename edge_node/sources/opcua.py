"""An OPC UA server as a source: a subscription whose every change is a record, or lies in a gap that has a name.

A notification is acknowledged, with which the server forgets it, once its values are on disk and the position file
says so. The subscription outlives connections, and runs of the node: the next one asks for what the server still has
(Republish), and names what it has not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import struct
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec
from asyncua import ua

from weft.config.log_lines import left_out
from weft.config.sources import OpcuaNode, OpcuaSource, Source
from weft.edge_node.ingest.ingest import Pause
from weft.edge_node.sources.connection import (
    SETTLE_TIMEOUT_S,
    AnyConnection,
    Runner,
    SourceConnection,
    SourceContext,
    SourceDown,
    Topics,
)
from weft.edge_node.sources.credentials import read_password
from weft.edge_node.sources.notices import GapNotice, gap_topic
from weft.edge_node.sources.opcua_client import Session, failure_text
from weft.edge_node.sources.opcua_space import (
    EVENTS_LOST,
    REFRESH_BEGINS,
    REFRESH_ENDS,
    Found,
    Item,
    Missing,
    Space,
    believed,
    facts,
    is_overflow,
    is_plausible,
    iso_of,
    nanoseconds,
)
from weft.edge_node.sources.opcua_subscription import (
    NAMED_MAX,
    Away,
    Fill,
    OpcuaMemory,
    Position,
    StateFiles,
    Subscription,
    ahead,
    digest,
    following,
    items_of,
    kept_of,
    made_of,
    of_earlier_run,
    parameters_of,
    preceding,
    request_for,
    status_change,
)
from weft.edge_node.sources.status import Rate, SourceStatus
from weft.edge_node.sources.writes import TOO_LATE, ReadBack, Value, WriteRefused, WriteUnconfirmed, exact
from weft.protocols.batch import Flag, HeaderPairs
from weft.protocols.message_headers import CONTENT_TYPE, SENT

log = logging.getLogger(__name__)

PUBLISHES = 3
"""Publish requests that wait at the server: it answers each with one notification, and needs one for each."""
SAVE_INTERVAL_S = 0.5
"""Shortest time between two writes of the position, each of which lets the server forget what was stored."""
THROUGH_INTERVAL_NS = 60 * 10**9
"""Time after which a position is written though nothing has changed, so that a gap after a crash is not longer."""
MISSED_MAX = 1000
"""Notifications that are asked for again one by one. More are a gap."""
FILL_TRIES = 2
TIMEOUTS_MAX = 2
"""Tries without an answer after which another session is made."""
RESUMES_MAX = 2
"""Connections in a row on which a resumed subscription may say nothing, before another one takes its place."""
REFRESH_INTERVAL_S = 10.0
"""Shortest time between two requests for the state of all conditions, which fills the server's queue of events."""
MISSING_INTERVAL_S = 60.0
"""Interval at which nodes that the server does not have are looked for again."""
_ANSWER = struct.Struct(">IB")
"""Sequence number of a notification, and 1 for the last value in it."""


class OpcuaConnection(SourceConnection):
    """A connection of one session. After ``open``, values come until ``ended``."""

    memory: OpcuaMemory

    def __init__(  # noqa: PLR0917
        self,
        node: SourceContext,
        status: SourceStatus,
        topics: Topics,
        memory: OpcuaMemory,
        settings: OpcuaSource,
        session: Session,
        files: StateFiles,
    ) -> None:
        super().__init__(node, status, topics, memory)
        self._settings = settings
        self._session = session
        self._files = files
        self.space = Space(session.services, status.name, settings)
        self._going = asyncio.Event()
        """Set while nothing pauses the source."""
        self._going.set()
        self._wake = asyncio.Event()
        self._to_fill = asyncio.Event()
        self._heard = self._loop.time()
        self._has_heard = False
        self._publishes = PUBLISHES
        self._ahead: deque[ua.PublishResult] = deque()
        """Answers that came during a pause: as many as there are Publish requests."""
        self._present: set[int] = set()
        """Handles of variables whose next value may be one that came before, since the subscription is resumed."""
        self._turn = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    # --- the subscription

    async def open(self, *, is_same_session: bool) -> None:
        """Resume the subscription, or create another one, and begin to publish.

        Raises:
            SourceDown, OSError, TimeoutError: there is none.
        """
        self.join()
        try:
            await self._open(is_same_session)
        except ua.UaError as error:
            raise SourceDown(failure_text(error)) from None
        if self.ended.done():
            raise SourceDown(self.ended.result())
        self._begin()

    async def _open(self, is_same_session: bool) -> None:
        memory = self.memory
        await self._settled()
        kept, position = await asyncio.to_thread(self._files.read)
        subscription, why = memory.subscription, "the subscription was lost"
        former = 0
        if subscription is None and kept is not None and position is not None:
            memory.away = memory.away or Away(position.through - self._margin(), "the node was not running")
            subscription, why = of_earlier_run(kept, position, self._settings, self._session.url)
            if subscription is None and kept.url == self._session.url:
                former = kept.id
        self.space.expected = kept.namespaces if kept is not None else ()
        before = subscription
        if subscription is not None and subscription.saved is None:
            await self._delete(subscription.id)
            before, why, subscription = subscription.before, subscription.why or why, None
        elif subscription is not None and subscription.stale:
            why, subscription = subscription.stale, None
        if subscription is not None:
            # What the log refused comes again.
            subscription.taken = subscription.durable
            try:
                found = await self._resumed(subscription, is_same_session)
            except ua.UaStatusCodeError as error:
                found = failure_text(error)
            if not found:
                memory.subscription = subscription
                if self.ended.done():
                    raise SourceDown(self.ended.result())
                self._back()
                return
            why = found
        memory.subscription = None
        await self._subscribe(before, why if kept is not None else "")
        # Of another run of the server, the id may be that of another subscription, also of the new one.
        is_same_run = kept is not None and bool(self.space.started) and kept.started == self.space.started
        made = memory.subscription
        if former and is_same_run and made is not None and made.id != former:
            await self._end_former(former)

    async def _resumed(self, subscription: Subscription, is_same_session: bool) -> str:
        """Take what the server kept of a subscription. Return why that is not possible; empty if it is."""
        services = self._session.services
        if subscription.silent >= RESUMES_MAX:
            return f"no notification of the subscription on {RESUMES_MAX} connections"
        subscription.silent += 1
        available: list[int] | None = None
        await self.space.look()
        if self.space.started != subscription.started:
            # Another run of the server has its own subscriptions with the same ids, and perhaps other clients'.
            return "the server has restarted"
        if not self.space.started and not is_same_session:
            return "the server does not say when it started: it may be another run of it"
        if not is_same_session:
            parameters = ua.TransferSubscriptionsParameters([ua.UInt32(subscription.id)], False)
            (result,) = await services.transfer_subscriptions(parameters)
            if not result.StatusCode.is_good():
                return f"the server does not hand over the subscription: {result.StatusCode.name}"
            available = list(result.AvailableSequenceNumbers or [])[:MISSED_MAX]
        if subscription.namespaces and self.space.namespaces != subscription.namespaces:
            return "the server has changed its table of namespaces"
        await self.space.learn(subscription.items)
        sequence, why = self.memory.unreadable
        if sequence and sequence == following(subscription.taken):
            self._skip(subscription, why)
        expected = following(subscription.taken)
        missed = [each for each in available or () if ahead(each, expected) > 0]
        if available and expected not in available and missed:
            # What is between was acknowledged by no one: the server has thrown it away.
            subscription.taken = preceding(min(missed, key=lambda each: ahead(each, expected)))
            self._lost(
                "sequence", "the server no longer has notifications", subscription.through, self.node.wall_clock()
            )
        for _ in range(MISSED_MAX):
            if self.is_held or self.ended.done():
                return ""  # the others are asked for before the next one is taken
            message = await self._republished(subscription, following(subscription.taken))
            if message is None:
                break
            await self._take(subscription, message)
        subscription.resent = False  # later ones were never sent to an earlier run
        if is_same_session:
            # Some servers send the present values once more when a session is activated on another connection:
            # node-opcua does (2.186).
            self._present = set(range(len(subscription.items)))
        return ""

    def _skip(self, subscription: Subscription, why: str) -> None:
        """Pass over a notification that cannot be read: it would come again on each connection."""
        subscription.taken = following(subscription.taken)
        self._lost("unreadable", why, subscription.through, self.node.wall_clock(), sequence=subscription.taken)

    async def _republished(self, subscription: Subscription, sequence: int) -> ua.NotificationMessage | None:
        """Return a notification that the server kept; None if it did not."""
        session = self._session.transport.session
        try:
            message = await session.republish(subscription.id, sequence)
        except ua.UaStatusCodeError as error:
            if ua.StatusCode(error.code).name in ("BadMessageNotAvailable", "BadNotFound"):
                return None
            raise
        except Exception as error:
            if self._session.transport.problem or not isinstance(error, OSError | TimeoutError):
                self.memory.unreadable = sequence, self._session.transport.problem or failure_text(error)
                raise SourceDown(self.memory.unreadable[1]) from None
            raise
        return message if message.SequenceNumber == sequence and message.NotificationData else None

    def _back(self) -> None:
        """Note the time in which the server was away, and that the subscription lasted."""
        away, self.memory.away = self.memory.away, None
        if away is not None:
            self._notice("away", away.why, away.since, self.node.wall_clock(), lost="none")

    async def _subscribe(self, before: Subscription | None, why: str) -> None:
        """Make a subscription.

        Args:
            why: reason of the gap before it; empty at the first start of a source.
        """
        await self.space.look()
        found, missing = await self.space.resolve(self._settings.nodes)
        subscription = await self._created()
        subscription.before, subscription.why = before, why
        self.memory.subscription = subscription
        since = before.through - before.margin if before is not None and before.through else 0
        missing += await self._monitor(subscription, found)
        until = subscription.through = subscription.through or self.node.wall_clock()
        self._name_missing(missing)
        self.memory.is_resolved = True
        away, self.memory.away = self.memory.away, None
        if why:
            reason = f"{why}; {away.why}" if away is not None else why
            since = min(filter(None, (since, away.since if away is not None else 0)), default=0)
            self._lost("subscription", reason, since, until, sequence=0)
        elif away is not None:
            self._notice("away", away.why, away.since, until, lost="none")
        if not subscription.items:
            raise SourceDown(f"the server has none of the nodes: {self._missing_text()}")
        await self._refresh(subscription)
        if not why:
            # Before the first value: a crash behind it would leave nothing that says of a gap.
            await self._write(subscription, Position(subscription.id, 0, subscription.through))
        subscription.stored.append(0)
        self._wake.set()
        if before is not None and before.id != subscription.id:
            await self._delete(before.id)

    async def _refresh(self, subscription: Subscription) -> None:
        """Have the state of all conditions sent again where it is due.

        It comes before the position is written: after a crash in between, the gap is there again, and this.
        """
        now, former = self._loop.time(), subscription.refreshed_at
        if not subscription.refresh:
            return
        if former is not None and now < former + REFRESH_INTERVAL_S:
            self._loop.call_at(former + REFRESH_INTERVAL_S, self._wake.set)
            return
        subscription.refreshed_at, subscription.refresh = now, False
        subscription.refreshing.clear()
        try:
            await self.space.refresh(subscription.id)
        except (ua.UaStatusCodeError, TimeoutError) as error:
            if isinstance(error, ua.UaStatusCodeError) and error.code == ua.StatusCodes.BadRefreshInProgress:
                subscription.refresh = True
                self._loop.call_later(REFRESH_INTERVAL_S, self._wake.set)
            else:
                self._say("refresh", f"alarms are known with their next event only: {failure_text(error)}")
        except BaseException:
            subscription.refresh = True
            raise

    async def _delete(self, subscription: int) -> None:
        """Have the server forget a subscription that is not resumed; one of another session ends by its lifetime."""
        request = ua.DeleteSubscriptionsRequest()
        request.Parameters.SubscriptionIds = [ua.UInt32(subscription)]
        with contextlib.suppress(ua.UaStatusCodeError):
            await self._asked(request, ua.DeleteSubscriptionsResponse)

    async def _end_former(self, subscription: int) -> None:
        """Have the server forget a subscription of an earlier run whose settings were others."""
        with contextlib.suppress(ua.UaStatusCodeError):
            parameters = ua.TransferSubscriptionsParameters([ua.UInt32(subscription)], False)
            (result,) = await self._session.services.transfer_subscriptions(parameters)
            if result.StatusCode.is_good():
                await self._delete(subscription)

    def _margin(self) -> int:
        return int(max(self._settings.publishing_s, self._settings.sampling_s) * 1e9)

    async def _write(self, subscription: Subscription, position: Position) -> None:
        try:
            if not subscription.is_written:
                kept = kept_of(subscription, self._settings, self._session.url)
                subscription.is_written = True
                await asyncio.to_thread(self._files.write, "subscription", kept)
            await asyncio.to_thread(self._files.write, "position", position)
        except OSError as error:
            subscription.is_written = False
            raise SourceDown(f"the position of the source cannot be written: {error}") from None
        subscription.saved, subscription.before = position, None

    async def _created(self) -> Subscription:
        request = ua.CreateSubscriptionRequest()
        request.Parameters = parameters_of(self._settings)
        # Not by the library's own call, which would begin a loop that acknowledges what is in memory.
        made = await self._asked(request, ua.CreateSubscriptionResponse)
        return made_of(made.Parameters, self._settings, self.space)

    async def _monitor(self, subscription: Subscription, found: Sequence[Found]) -> list[Missing]:
        """Monitor variables; return those that the server refuses."""
        items, refused, slowest = await self.space.items(found), list[Missing](), (0.0, 0.0)
        await self.space.learn(items)
        pairs, at_a_time = list(zip(found, items, strict=True)), self.space.at_a_time
        for first in range(0, len(pairs), at_a_time):
            part = pairs[first : first + at_a_time]
            # Known before the request: values may come before its answer, and after a crash of the node.
            handles = await self._handles(subscription, [item for _, item in part])
            requests = [
                request_for(each, handle, self._settings) for (each, _), handle in zip(part, handles, strict=True)
            ]
            request = ua.CreateMonitoredItemsRequest()
            request.Parameters = ua.CreateMonitoredItemsParameters(
                ua.UInt32(subscription.id), ua.TimestampsToReturn.Both, requests
            )
            answer = await self._asked(request, ua.CreateMonitoredItemsResponse)
            results, sent = answer.Results, answer.ResponseHeader.Timestamp
            # Not the server's `CurrentTime`, which some renew once a second only.
            if is_plausible(sent, self.node.wall_clock()):
                subscription.through = max(subscription.through, nanoseconds(sent))
            if len(results) != len(part):
                raise SourceDown(f"the server answered {len(results)} of {len(part)} monitored items")
            for (each, _), handle, result in zip(part, handles, results, strict=True):
                if result.StatusCode.is_good():
                    subscription.items[handle].monitored = True
                    subscription.is_written = False
                    subscription.refresh |= each.settings.events
                    asked = self._settings.sampling_s if each.settings.sampling_s is None else each.settings.sampling_s
                    if (slower := result.RevisedSamplingInterval / 1000) > asked * 1.01 + 0.001:
                        slowest = max(slowest, (slower, asked))
                else:
                    one = OpcuaNode(id=self.space.text(each.id), topic=each.topic, **_overrides(each.settings))
                    refused.append(Missing(each.topic, f"{result.StatusCode.name}: {result.StatusCode.doc}", one))
        self.status.nodes = sum(item.monitored for item in subscription.items)
        if slowest[0]:
            looks = f"the server looks at variables every {slowest[0]:g} s, not every {slowest[1]:g} s (`sampling`)"
            self.space.problems.append(f"{looks}: it does not see changes in between")
        return refused

    async def _handles(self, subscription: Subscription, items: Sequence[Item]) -> list[int]:
        """Return the handles of items that are to be monitored: those that they had when the server refused them."""
        refused = {(each.node, each.topic): at for at, each in enumerate(subscription.items) if not each.monitored}
        handles = list[int]()
        for item in items:
            handle = refused.pop((item.node, item.topic), None)
            if handle is None:
                handle = len(subscription.items)
                item.monitored, subscription.is_written = False, False
                subscription.items.append(item)
            handles.append(handle)
        if not subscription.is_written and subscription.saved is not None:
            await self._write(subscription, subscription.saved)
        return handles

    async def _asked(self, request: Any, answer: Any) -> Any:
        """Return the answer to a request with its header, which the library keeps to itself."""
        data = await self._session.transport._send_request(request)
        response = ua.ua_binary.struct_from_binary(answer, data)
        response.ResponseHeader.ServiceResult.check()
        return response

    # --- nodes that are not there

    def _name_missing(self, missing: list[Missing]) -> None:
        memory = self.memory
        known = {each.topic for each in memory.missing}
        now, gone = self.node.wall_clock(), {each.topic for each in missing}
        for each in missing:
            if each.topic not in known:
                self._notice("node", each.why, now, None, [each.topic])
        for each in memory.missing:
            if each.topic not in gone:
                self._notice("node", "the server has it again", None, now, [each.topic])
        self.node.ingest.batch.store()
        if self._is_refused:
            return  # the log has no room for a notice: it is made again on the next connection
        memory.missing = missing
        self.status.nodes_missing = len(missing)
        if missing or self.space.problems:
            self._say("missing", self._missing_text())

    def _missing_text(self) -> str:
        missing = self.memory.missing
        texts = [f"{each.topic}: {each.why}" for each in missing[:3]]
        more = [f"{len(missing) - 3} nodes more"] if len(missing) > 3 else []
        return "; ".join([*texts, *more, *self.space.problems])

    def _say(self, what: str, text: str) -> None:
        """Note what an operator should see, though the source is connected."""
        self.status.last_error, self.status.last_error_time = text[:1000], self.node.wall_clock()
        if (count := self.memory.lines.due(what, self._loop.time())) is not None:
            log.warning("source %s: %s%s", self.status.name, text[:1000], left_out(count))

    async def _look_for_missing(self) -> None:
        memory = self.memory
        while True:
            subscription = memory.subscription
            # After a restart of the node it is not known which ones were missing.
            nodes = [each.settings for each in memory.missing] if memory.is_resolved else self._settings.nodes
            if nodes and subscription is not None:
                found, missing = await self.space.resolve(nodes)
                known = {item.node for item in subscription.items if item.monitored}
                missing += await self._monitor(
                    subscription, [each for each in found if self.space.text(each.id) not in known]
                )
                self._name_missing(missing)
                memory.is_resolved = True
                self._wake.set()
            await asyncio.sleep(MISSING_INTERVAL_S)

    # --- publishing

    def _begin(self) -> None:
        subscription = self.memory.subscription
        assert subscription is not None
        self._heard = self._loop.time()
        self.status.nodes = sum(item.monitored for item in subscription.items)
        jobs = {
            "positions": self._save(),
            "silence": self._watch(subscription),
            "missing nodes": self._look_for_missing(),
            "history": self._fill(),
            **{f"publish {number}": self._publish(subscription) for number in range(PUBLISHES)},
        }
        for name, job in jobs.items():
            task = asyncio.create_task(self._guarded(job), name=f"{self.publisher} {name}")
            self._tasks.append(task)
        self._session.lost.add_done_callback(lambda lost: self.end(lost.result()))
        self._wake.set()
        self._to_fill.set()

    async def _guarded(self, job: Any) -> None:
        try:
            await job
        except SourceDown as error:
            self.end(str(error))
        except (ua.UaError, OSError, TimeoutError) as error:
            self.end(self._session.transport.problem or failure_text(error))
        except Exception as error:
            log.exception("source %s failed", self.status.name)
            self.end(f"internal fault: {type(error).__name__}")

    async def _publish(self, subscription: Subscription) -> None:
        """Keep one Publish request at the server."""
        session = self._session.transport.session
        while not self.ended.done():
            await self._going.wait()
            acks, subscription.acks = subscription.acks, []
            try:
                response = await session.publish(
                    [ua.SubscriptionAcknowledgement(ua.UInt32(subscription.id), ua.UInt32(each)) for each in acks]
                )
                response.ResponseHeader.ServiceResult.check()
            except ua.UaStatusCodeError as error:
                subscription.acks = acks + subscription.acks
                name = ua.StatusCode(error.code).name
                if name == "BadTooManyPublishRequests" and self._publishes > 1:
                    self._publishes -= 1
                    return
                if name == "BadTimeout":
                    continue
                raise
            except ua.UaError as error:
                subscription.acks = acks + subscription.acks
                # Asked for again by its number, it is known which one it is.
                raise SourceDown(f"a notification could not be read: {error.__cause__ or error}") from None
            except BaseException:
                subscription.acks = acks + subscription.acks
                raise
            result = response.Parameters
            if result.SubscriptionId != subscription.id:
                continue
            self._heard, self._has_heard, subscription.silent = self._loop.time(), True, 0
            self._ahead.append(result)
            async with self._turn:
                await self._take_all(subscription)

    async def _take_all(self, subscription: Subscription) -> None:
        """Handle answers in their order."""
        while self._ahead and not self.is_held and not self.ended.done():
            message = self._ahead[0].NotificationMessage
            await self._recover(subscription, message)
            if self.is_held or self.ended.done():
                return  # the log has refused some, and this one comes again
            self._ahead.popleft()
            if message.NotificationData:
                await self._take(subscription, message)
            else:
                self._kept_alive(subscription, message)

    def _kept_alive(self, subscription: Subscription, message: ua.NotificationMessage) -> None:
        if subscription.taken == subscription.durable:
            subscription.through = max(subscription.through, believed(message.PublishTime, self.node.wall_clock()))
            saved = subscription.saved
            if saved is not None and subscription.through - saved.through > THROUGH_INTERVAL_NS:
                self._wake.set()

    async def _recover(self, subscription: Subscription, message: ua.NotificationMessage) -> None:
        """Ask for the notifications that are missing before one; name those that the server does not have."""
        missed = ahead(message.SequenceNumber, following(subscription.taken))
        lost, since = 0, subscription.through
        while missed > 0 and not self.ended.done():
            if missed > MISSED_MAX:
                lost += missed
                subscription.taken = preceding(message.SequenceNumber)
                break
            again = await self._republished(subscription, following(subscription.taken))
            if again is None:
                lost += 1
                subscription.taken = following(subscription.taken)
            else:
                await self._take(subscription, again)
                if self.is_held:
                    break
            missed = ahead(message.SequenceNumber, following(subscription.taken))
        if lost:
            until = believed(message.PublishTime, self.node.wall_clock())
            self._lost("sequence", f"the server does not have {lost} notifications any more", since, until)

    async def _take(self, subscription: Subscription, message: ua.NotificationMessage) -> None:
        """Store the values of a notification."""
        sequence, at = message.SequenceNumber, believed(message.PublishTime, self.node.wall_clock())
        if ahead(sequence, subscription.taken) <= 0:
            # One that was taken before comes again as it was. A clock that was never set tells nothing about it.
            if at > subscription.through and is_plausible(message.PublishTime, self.node.wall_clock()):
                subscription.stale = "the server gives a later notification the number of an earlier one"
                self.end(subscription.stale)
            return
        ended, values = status_change(message), list(items_of(message))
        if any(handle >= len(subscription.items) for handle, _ in values):
            subscription.stale = "the server sends values of variables that the node did not ask for"
            self.end(subscription.stale)
            return
        flags = Flag.DUPLICATE_SUSPECTED if subscription.resent else 0
        for left, (handle, value) in zip(range(len(values) - 1, -1, -1), values, strict=True):
            answer = _ANSWER.pack(sequence, not left)
            if isinstance(value, ua.DataValue):
                self._take_value(subscription, handle, value, answer, int(flags))
            else:
                self._take_event(subscription, handle, value, answer, int(flags))
            if self._is_refused or self.ended.done():
                return
        if not values:
            self._answered(_ANSWER.pack(sequence, 1))
        subscription.taken = sequence
        subscription.through = max(subscription.through, at)
        self.node.ingest.batch.gathered()
        if ended is not None:
            self.memory.subscription = None if ended.is_bad() else self.memory.subscription
            self.end(f"the server ended the subscription: {ended.name}")

    def _take_value(
        self, subscription: Subscription, handle: int, value: ua.DataValue, answer: bytes, flags: int
    ) -> None:
        item, now, status = subscription.items[handle], self.node.wall_clock(), value.StatusCode or ua.StatusCode()
        time = value.SourceTimestamp or value.ServerTimestamp
        at = believed(time, now)
        if is_overflow(status):
            self.status.overflows = (self.status.overflows or 0) + 1
            since = item.last or subscription.through - subscription.margin
            why = "the server's queue of the variable was full. Raise `queue`, or publish more often"
            self._lost("overflow", why, since, at, handles=(handle,))
        if not status.is_good():
            self.status.bad_values = (self.status.bad_values or 0) + 1
        payload = facts(item, value, now, self.space.definitions)
        if item.is_first:
            payload["initial"] = True
        if handle in self._present:
            self._present.discard(handle)
            if at == item.last or not is_plausible(time, now):
                flags |= int(Flag.DUPLICATE_SUSPECTED)
        item.is_first, item.last = False, max(at, item.last)
        self._store(handle, item, payload, value.SourceTimestamp, answer, flags)

    def _take_event(
        self, subscription: Subscription, handle: int, fields: Sequence[ua.Variant], answer: bytes, flags: int
    ) -> None:
        payload, item = self.space.event(fields), subscription.items[handle]
        time = next((field.Value for field in fields if isinstance(field.Value, datetime)), None)
        at = believed(time, self.node.wall_clock())
        kind = payload.get("type")
        if kind in (REFRESH_BEGINS, REFRESH_ENDS):
            (subscription.refreshing.add if kind == REFRESH_BEGINS else subscription.refreshing.discard)(handle)
            self._answered(answer)
            return
        if kind in EVENTS_LOST:
            self.status.overflows = (self.status.overflows or 0) + 1
            since = item.last or subscription.through - subscription.margin
            self._lost("overflow", EVENTS_LOST[kind], since, at, handles=(handle,))
            subscription.refresh = True
        elif handle in subscription.refreshing and "condition_node" in payload:
            payload["refresh"] = True
        item.is_first, item.last = False, max(at, item.last)
        self._store(handle, item, payload, time, answer, flags)

    def _store(  # noqa: PLR0917
        self, handle: int, item: Item, payload: dict[str, Any], time: datetime | None, answer: bytes, flags: int
    ) -> None:
        """Store a value or event with its time at the source, or name why it is not stored."""
        at = nanoseconds(time)
        headers: HeaderPairs = ((CONTENT_TYPE, "application/json"),)
        if time is not None and is_plausible(time, self.node.wall_clock()):
            headers = (*headers, (SENT, at))
        self._timed(time)
        why_not = self.take(item.topic.encode(), msgspec.json.encode(payload), answer, flags, headers)
        if why_not is not None:
            self._answered(answer)
            if "bytes" in why_not:
                at = believed(time, self.node.wall_clock())
                self._lost("size", why_not, at, at, handles=(handle,))

    def _timed(self, time: datetime | None) -> None:
        """Count a value, and note its source time."""
        status = self.status
        assert status.values is not None
        status.values.count(1, self._loop.time())
        if time is None:
            return
        is_set = is_plausible(time, self.node.wall_clock())
        status.implausible_time = None if is_set else time
        if is_set:
            status.value_time = max(nanoseconds(time), status.value_time or 0)

    def _answered(self, answer: bytes) -> None:
        """Answer for what is not stored, behind what was."""
        self.node.ingest.batch.answer(self, answer)
        self.status.unacknowledged += 1

    # --- gaps

    def _lost(  # noqa: PLR0917
        self,
        kind: str,
        why: str,
        since: int,
        until: int | None,
        handles: tuple[int, ...] | None = None,
        sequence: int | None = None,
    ) -> None:
        """Name a gap, and have it filled from history.

        Args:
            handles: variables; None for all.
            sequence: number that is done with once the notice is on disk.
        """
        subscription = self.memory.subscription
        items = subscription.items if subscription is not None else []
        topics = None if handles is None else [items[handle].topic for handle in handles]
        if until is not None:
            since = min(since, until)  # the server's clock may have been set back
        self._notice(kind, why, since or None, until, topics, sequence=sequence)
        if subscription is not None and handles is None and any(each.events for each in self._settings.nodes):
            subscription.refresh = True
        if since and self._settings.history:
            chosen = range(len(items)) if handles is None else handles
            kept = tuple(items[handle] for handle in chosen if items[handle].has_history and items[handle].monitored)
            if kept:
                self.memory.fills.append(Fill(kept, since, until or self.node.wall_clock()))
                self._to_fill.set()

    def _notice(  # noqa: PLR0917
        self,
        kind: str,
        why: str,
        since: int | None,
        until: int | None,
        topics: Sequence[str] | None = None,
        lost: Literal["possible", "none"] = "possible",
        sequence: int | None = None,
        values: int | None = None,
    ) -> None:
        """Store a gap notice."""
        notice = GapNotice(
            source=self.status.name,
            kind=kind,
            reason=why,
            lost=lost,
            from_=None if since is None else iso_of(since),
            to=None if until is None else iso_of(until),
            items=None if topics is None else tuple(topics[:NAMED_MAX]),
            items_more=max(0, len(topics or ()) - NAMED_MAX),
            values=values,
        )
        if lost == "possible":
            self.status.gaps = (self.status.gaps or 0) + 1
            self._say(kind, f"values may be lost ({kind}): {why}")
        answer = b"" if sequence is None else _ANSWER.pack(sequence, 1)
        headers: HeaderPairs = ((CONTENT_TYPE, "application/json"),)
        taken = self.take(gap_topic(self.status.name), msgspec.json.encode(notice), answer, 0, headers)
        if taken is not None and answer:
            self._answered(answer)
        self.node.ingest.batch.gathered()

    async def _fill(self) -> None:
        """Read from the server's history what gaps lack."""
        while True:
            await self._to_fill.wait()
            memory = self.memory
            if not memory.fills:
                self._to_fill.clear()
                continue
            fill = memory.fills[0]
            count, problem = 0, ""
            # Counted before: an answer that is too long ends the connection, and would end each of them.
            memory.fill_tries += 1
            for item in fill.items if memory.fill_tries <= FILL_TRIES else ():
                try:
                    count += await self._filled(item, fill)
                except (LookupError, ua.UaStatusCodeError, TimeoutError) as error:
                    problem = failure_text(error)
            if memory.fill_tries > FILL_TRIES:
                problem = f"the history could not be read in {FILL_TRIES} connections"
            memory.fills.popleft()
            memory.fill_tries = 0
            why = problem or "values of the server's history"
            topics = [item.topic for item in fill.items]
            self._notice("filled", why, fill.since, fill.until, topics, lost="none", values=count)

    async def _filled(self, item: Item, fill: Fill) -> int:
        """Store the values of one variable; return their number."""
        count = 0
        async for value in self.space.history(item, fill.since, fill.until):
            await self._going.wait()
            payload = facts(item, value, self.node.wall_clock(), self.space.definitions) | {"filled": True}
            headers: HeaderPairs = ((CONTENT_TYPE, "application/json"), (SENT, nanoseconds(value.SourceTimestamp)))
            self.take(item.topic.encode(), msgspec.json.encode(payload), b"", 0, headers)
            self.node.ingest.batch.gathered()
            count += 1
        return count

    # --- acknowledgements

    def acknowledge(self, answers: bytes) -> None:
        """Note which notifications are on disk: everything before the answers is."""
        subscription = self.memory.subscription
        count = len(answers) // _ANSWER.size
        self.status.acknowledged += count
        self.status.unacknowledged = max(0, self.status.unacknowledged - count)
        if subscription is None:
            return
        for sequence, is_last in _ANSWER.iter_unpack(answers):
            if is_last and sequence:
                subscription.durable = sequence
                subscription.stored.append(sequence)
        self._wake.set()

    async def _save(self) -> None:
        """Write the position, and let the server forget what it covers."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            subscription = self.memory.subscription
            if subscription is None:
                return
            # What is on disk by now: the gap notice before a new subscription among it.
            await self._settled()
            if self._is_refused:
                return  # perhaps the notice of the gap before it: it is made again
            await self._refresh(subscription)
            stored = list(subscription.stored)
            position = Position(subscription.id, subscription.durable, subscription.through)
            if subscription.taken != subscription.durable and subscription.saved is not None:
                position = Position(subscription.id, subscription.durable, subscription.saved.through)
            if stored or subscription.saved is None or not subscription.is_written:
                await self._write(subscription, position)
                for sequence in stored:
                    subscription.stored.popleft()
                    if sequence:
                        subscription.acks.append(sequence)
            await asyncio.sleep(SAVE_INTERVAL_S)

    async def _settled(self) -> None:
        """Wait until everything that was stored is on disk, or refused."""
        self.node.ingest.batch.store()
        done: asyncio.Future[None] = self._loop.create_future()
        self.node.ingest.on_durable(lambda _: None if done.done() else done.set_result(None))
        await done
        # The callbacks of a commit come before its answers: one more turn.
        await asyncio.sleep(0)
        self.node.ingest.batch.answer_all()

    # --- pauses, silence and the end

    def pause(self) -> None:
        """Ask for no more: the server keeps what changes."""
        self._going.clear()

    def resume(self) -> None:
        """Handle what came meanwhile, and ask for more."""
        self._heard = self._loop.time()
        self._going.set()
        subscription = self.memory.subscription
        if self._ahead and subscription is not None:
            self._tasks.append(asyncio.create_task(self._guarded(self._resume_taking(subscription))))

    async def _resume_taking(self, subscription: Subscription) -> None:
        async with self._turn:
            await self._take_all(subscription)

    async def _watch(self, subscription: Subscription) -> None:
        """End a connection on which the server says nothing, not even a keep-alive."""
        while True:
            await asyncio.sleep(subscription.silence_s / 4)
            silence = self._loop.time() - self._heard
            if silence > subscription.silence_s and not self.is_held:
                self.end(f"the server was silent for {silence:.0f} s; keep-alives were due twice")

    async def close(self, *, is_last: bool) -> None:
        """Write down what is on disk, and close the session.

        Args:
            is_last: no later run resumes the subscription, so that the server need not keep it.
        """
        self.hold(Pause.FAIRNESS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await self._settled()
        for task in self._tasks:
            task.cancel()
        await self._session.close(with_subscriptions=is_last)
        self.end("the source stops")
        subscription = self.memory.subscription
        if subscription is not None and subscription.saved is not None:
            through = subscription.through if subscription.taken == subscription.durable else subscription.saved.through
            position = Position(subscription.id, subscription.durable, through)
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._files.write, "position", position)

    def end(self, reason: str) -> None:
        """End the connection, once. The session and the subscription stay at the server."""
        if self.ended.done():
            return
        super().end(reason)
        if self.memory.away is None and self._tasks:
            self.memory.away = Away(self.node.wall_clock(), reason)
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._session.disconnect()


def _overrides(settings: OpcuaNode) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in ("events", "sampling_s", "queue", "deadband", "deadband_percent")}


class OpcuaRunner(Runner):
    """The connections of one OPC UA source, one after the other, and the session that outlives them."""

    memory: OpcuaMemory
    # Browsing takes a round trip for each node: what bounds it is their number, and the time of each answer.
    connect_timeout_s = None

    def __init__(  # noqa: PLR0917
        self,
        settings: OpcuaSource,
        status: SourceStatus,
        node: SourceContext,
        rng: random.Random,
        session_name: str,
        files: StateFiles,
    ) -> None:
        """Use checked settings.

        Args:
            session_name: name of the session at the server.
        """
        super().__init__(settings, settings.url, status, node, rng)
        self.memory = OpcuaMemory()
        self._opcua = settings
        self._session_name = session_name
        self._files = files
        self._session: Session | None = None
        self._timeouts = 0
        """Number of tries in a row that the server has left without an answer."""
        status.gaps = status.overflows = status.bad_values = status.nodes = status.nodes_missing = 0
        status.values = Rate()

    async def connect(self, url: str) -> SourceConnection:
        """Connect, and resume the subscription.

        Raises:
            SourceDown, OSError, TimeoutError, CredentialsUnusable: there is no connection.
        """
        session = self._session
        if session is None or session.url != url:
            password = await asyncio.to_thread(read_password, self._opcua)
            session = self._session = Session(url, self._opcua, self._session_name, password)
        try:
            is_same = await session.open(self.node.wall_clock())
        except TimeoutError:
            # Perhaps the server's certificate or the password has changed: a new session reads them again.
            self._timeouts += 1
            if self._timeouts >= TIMEOUTS_MAX:
                self._session, self._timeouts = None, 0
            raise
        except OSError:
            raise  # the network: the session may last
        except BaseException:
            self._session = None
            raise
        self._timeouts = 0
        connection = OpcuaConnection(
            self.node, self.status, self.topics, self.memory, self._opcua, session, self._files
        )
        try:
            await connection.open(is_same_session=is_same)
        except BaseException as error:
            self._session, made = None, self.memory.subscription
            # Servers have few sessions, and keep each for ``lifetime``.
            is_useless = made is not None and made.saved is None
            await session.close(with_subscriptions=self.is_last or is_useless)
            connection.end(str(error))
            raise
        return connection

    def replaced(self, by: Source | None) -> None:
        """Have the subscription end with this run, unless one with the settings ``by`` resumes it."""
        after = None if by is None else by.opcua
        self.is_last = after is None or after.url != self._opcua.url or digest(after) != digest(self._opcua)

    def kind(self, name: str) -> str:
        """Return the type of a variable that messages may write."""
        return self._opcua.writes[name].type

    async def write(self, name: str, value: Value, not_after: float) -> ReadBack:
        """Write a variable, and read it back. As ``Writable``."""
        if not isinstance(self.connection, OpcuaConnection) or self._session is None:
            raise SourceDown("the source is not connected")
        if self._loop.time() > not_after:
            raise WriteRefused(TOO_LATE)
        wanted = self._opcua.writes[name]
        sent = exact(value, wanted.type, wanted)
        try:
            return await self._session.write(self.connection.space.node_id(wanted.node), wanted.type, sent)
        except LookupError as error:
            raise WriteRefused(str(error)) from None
        except (ua.UaError, OSError, TimeoutError) as error:
            raise WriteUnconfirmed(failure_text(error)) from None

    async def close(self, connection: AnyConnection) -> None:
        """Stop, write down which values are on disk, and close the session. It takes seconds at most."""
        assert isinstance(connection, OpcuaConnection)
        await connection.close(is_last=self.is_last)
