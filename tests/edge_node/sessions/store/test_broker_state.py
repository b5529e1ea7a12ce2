"""The state of a broker on a real log, a real file and a real loop."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.edge_node.sessions.store.helpers import record
from tests.support.waiting import PATIENCE_S
from weft.bounds import Refusals
from weft.config.streams import State
from weft.edge_node.sessions.broker_state import BrokerState
from weft.edge_node.sessions.database import DatabaseFailed
from weft.edge_node.sessions.records import StateCounters, StateSettings
from weft.edge_node.timing import clock_reader, wall_clock
from weft.protocols.mqtt.packets import NO_PROPERTIES, Subscription
from weft.storage.segment_log import LogSettings, SegmentLog

QUICK = StateSettings(state=State(save_interval_s=0.02))


async def opened(directory: Path, settings: StateSettings = QUICK) -> tuple[SegmentLog, BrokerState]:
    loop = asyncio.get_running_loop()

    def post(callback: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(callback)

    log = SegmentLog.open(
        str(directory),
        LogSettings(),
        wall_clock=wall_clock,
        clock_reading=clock_reader(),
        random_bits=random.getrandbits,
        post=post,
    )
    state = BrokerState(
        str(directory),
        log,
        settings,
        StateCounters(),
        wall_clock=wall_clock,
        post=post,
        refusals=Refusals(time.monotonic),
    )
    state.start()
    return log, state


async def durable(log: SegmentLog) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    log.on_durable(lambda error: done.set_exception(error) if error else done.set_result(None))
    await done


async def closed(log: SegmentLog, state: BrokerState) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await state.close()
    await asyncio.to_thread(log.close)


async def test_it_saves_by_itself(tmp_path: Path) -> None:
    log, state = await opened(tmp_path)
    state.journal.opened(record())
    await durable(log)
    async with asyncio.timeout(PATIENCE_S):
        while state.counters.journal_bytes:  # noqa: ASYNC110 - a task in the background
            await asyncio.sleep(0.01)
    assert state.counters.sessions_saved == 1
    await closed(log, state)


async def test_closing_while_it_saves_waits_and_keeps_everything(tmp_path: Path) -> None:
    log, state = await opened(tmp_path)
    for number in range(50):
        state.journal.opened(record(f"client-{number}"))
        state.retained.set(b"t/%d" % number, b"x", 1, NO_PROPERTIES, 1)
        await durable(log)
    saves = [asyncio.ensure_future(state.save()) for _ in range(3)]
    await asyncio.sleep(0)
    await closed(log, state)
    ends = await asyncio.gather(*saves, return_exceptions=True)
    assert all(end is None or isinstance(end, DatabaseFailed) for end in ends), (
        ends
    )  # the journal has what is not saved
    log, state = await opened(tmp_path)
    assert len(state.journal.recover()) == len(state.retained) == 50
    await closed(log, state)


async def test_a_database_that_was_destroyed_costs_what_it_held_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, state = await opened(tmp_path)
    state.journal.opened(record())
    await durable(log)
    await closed(log, state)
    for path in tmp_path.glob("mqtt.sqlite3*"):
        path.write_bytes(b"this is not a database" * 500)
    log, state = await opened(tmp_path)
    assert "set aside" in caplog.text
    # The journal still stands in the log, as long as its room is not needed.
    assert [session.client_id for session in state.journal.recover()] == ["pi"]
    await closed(log, state)


@pytest.mark.slow
@pytest.mark.parametrize("saved", [False, True])
async def test_ten_thousand_sessions_recover_quickly(tmp_path: Path, saved: bool) -> None:
    log, state = await opened(tmp_path, StateSettings(state=State(save_interval_s=3600)))
    for number in range(10_000):
        filters = {f"plant/{number}/{each}/#": Subscription(f"plant/{number}/{each}/#", 1) for each in range(5)}
        state.journal.opened(record(f"client-{number}", subscriptions=filters, positions={1: 5, 2: 7}))
    await durable(log)
    if saved:
        await state.save()
    await asyncio.to_thread(state._database.close)
    state._task.cancel()  # type: ignore[union-attr]
    await asyncio.to_thread(log.close)
    started, cpu = time.perf_counter(), time.process_time()
    log, state = await opened(tmp_path)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    assert len(state.journal.recover()) == 10_000
    print(f"10,000 sessions, {'database' if saved else 'journal'}: {seconds:.2f} s, {cpu:.2f} s of them CPU")
    assert cpu < 5  # the wall clock depends on what else the machine does
    await closed(log, state)
