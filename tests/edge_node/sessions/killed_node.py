"""A process that keeps state and says on its output what is durable, until it is killed (``test_sigkill``)."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
import time

from weft.bounds import Refusals
from weft.config.streams import State
from weft.edge_node.sessions.broker_state import BrokerState
from weft.edge_node.sessions.records import SessionRecord, StateCounters, StateSettings
from weft.edge_node.timing import clock_reader, wall_clock
from weft.protocols.batch import Flag
from weft.protocols.mqtt.packets import NO_PROPERTIES
from weft.storage.segment_log import LogSettings, SegmentLog

LOG = LogSettings(segment_bytes=1 << 20, budget_bytes=64 << 20)
SETTINGS = StateSettings(state=State(save_interval_s=0.08, save_bytes=1))


def open_state(directory: str, post) -> tuple[SegmentLog, BrokerState]:  # type: ignore[no-untyped-def]
    log = SegmentLog.open(
        directory, LOG, wall_clock=wall_clock, clock_reading=clock_reader(), random_bits=random.getrandbits, post=post
    )
    state = BrokerState(
        directory, log, SETTINGS, StateCounters(), wall_clock=wall_clock, post=post, refusals=Refusals(time.monotonic)
    )
    return log, state


def say(text: str) -> None:
    os.write(1, (text + "\n").encode())


async def run(directory: str, life: int) -> None:
    loop = asyncio.get_running_loop()
    log, state = open_state(directory, loop.call_soon_threadsafe)
    state.start()
    stream, journal = log.stream("telemetry"), state.journal
    sessions = {record.client_id: record for record in journal.recover()}
    session = sessions.get("pi")
    if session is None:
        session = SessionRecord(client_id="pi", version=5, expiry_interval=1000)
        journal.opened(session)
    say("started")
    for packet_id in sorted(session.received):
        journal.released("pi", [packet_id])
    for number in itertools.count(1):
        payload = b"%d/%d" % (life, number)
        packet_id = number % 60_000 + 1
        with journal.together():
            log.append(stream, wall_clock(), [b"t"], [payload], None, {0: int(Flag.PUBLISHED_QOS2)})
            journal.received("pi", [packet_id])

        def received(error: BaseException | None, packet_id: int = packet_id, payload: bytes = payload) -> None:
            say(f"received {packet_id} {payload.decode()}")

        log.on_durable(received)
        if number % 3 == 0:
            journal.released("pi", [packet_id - 2])

            def released(error: BaseException | None, packet_id: int = packet_id - 2) -> None:
                say(f"released {packet_id}")

            log.on_durable(released)
        state.retained.set(b"retained/%d" % (number % 7), payload, 1, NO_PROPERTIES, wall_clock())

        def retained(error: BaseException | None, number: int = number) -> None:
            say(f"retained {number % 7} {life} {number}")

        state.retained.on_durable(retained)
        await asyncio.sleep(0)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
