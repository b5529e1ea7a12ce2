"""A tenant's records harm its own tables only: others' tables are as new as before, whatever it sends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from tests.cloud_hub.tables.logs import LANE, LogWriter, Run
from tests.hostile.good_client import at_most
from tests.hostile.hub import HOSTILE, GuardedHub
from tests.hostile.link_client import GoodLink, LinkEnded, link_to, records, sparse
from tests.support.processes import weft
from tests.support.slices import SLICE
from tests.support.speed import Stopwatch
from tests.support.waiting import PATIENCE_S, wait_until
from weft.proofs.audit.audit import audit
from weft.protocols import batch
from weft.protocols.link import Ack, Data, LaneOpened
from weft.storage.object_store import open_store

pytestmark = pytest.mark.processes
INTERVAL_S = 1.0
"""Between table steps, as ``GuardedHub`` has it."""
CALM_S = 6.0
ATTACK_S = SLICE.amount(ci=8.0, night=15.0)


class Lateness(threading.Thread):
    """Asks again and again when what the other tenant's edge has sent is in its table. A context."""

    def __init__(self, hub: GuardedHub, good: GoodLink) -> None:
        super().__init__(daemon=True)
        self._hub, self._good = hub, good
        self._stopping = threading.Event()
        self.rows_s: list[float] = []
        """Times from an acknowledgement to the row."""
        self.answers_s: list[float] = []
        """Times that the API took for an answer."""

    def run(self) -> None:
        sent, since, asked = self._good.sent, Stopwatch(self._hub.pid), Stopwatch(self._hub.pid)
        while not self._stopping.wait(0.05):
            asked.start()
            status, body = self._hub.get("/v1/streams/telemetry", self._hub.token("good"), timeout_s=60)
            self.answers_s.append(asked.seconds())
            rows = 0 if status != 200 else _rows(body)
            if rows >= sent:
                self.rows_s.append(since.seconds())
                sent = self._good.sent
                since.start()

    def __enter__(self) -> Lateness:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join(PATIENCE_S)


def _rows(body: bytes) -> int:
    return int(json.loads(body)["table_rows"] or 0)


async def many_streams(hub: GuardedHub, count: int) -> None:
    """Give the hostile tenant streams of one record each."""
    async with link_to(hub, HOSTILE) as link:
        await link.greet()
        answers = await link.open(*(link.opening(n, f"s{n}") for n in range(1, count + 1)))
        assert all(isinstance(answer, LaneOpened) for answer in answers), answers
        await link.send(*(Data(n, records(0, lane=n)) for n in range(1, count + 1)))
        for _ in range(count):
            await link.hear(Ack)


@pytest.mark.search(turns=4)
@pytest.mark.parametrize("count", SLICE.some([120, 1000], ci=1))
async def test_many_streams_of_one_tenant_leave_the_others_tables_as_new_as_before(hub: GuardedHub, count: int) -> None:
    with GoodLink(hub) as good, Lateness(hub, good) as late:
        await asyncio.sleep(3)
        before = max(late.rows_s)
        late.rows_s.clear()
        await many_streams(hub, count)
        await asyncio.sleep(6)
        assert late.rows_s, "no rows at all"
        at_most(2 * before + 1, max(late.rows_s))
        good.take()


@pytest.mark.slow
async def test_records_that_cannot_become_rows_stop_one_table_until_they_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier release took them in."""
    log = await LogWriter.open(open_store(str(tmp_path / "store")), 1)
    evil = LANE._replace(tenant="evil")
    with monkeypatch.context() as lenient:
        lenient.setattr(batch, "check_expanded", lambda *_: None)
        poison = Run(evil, 2, 3, key=b"k" * (batch.KEY_BYTES_MAX + 1))
        await log.append(0, Run(evil, 0, 2), poison, Run(evil, 5, 4), Run(evil._replace(stream="alarms"), 0, 6))
    hub = GuardedHub(tmp_path)
    token = tmp_path / "admin"
    token.write_text(hub.admin)
    hub.start()
    try:
        with GoodLink(hub):
            wait_until(lambda: hub.metrics().get("weft_hub_stopped_tables") == 1, what="the stopped table")
            wait_until(lambda: _rows_of(hub, "good", "telemetry") > 20, what="the other tenant's rows")
        assert (_rows_of(hub, "evil", "telemetry"), _rows_of(hub, "evil", "alarms")) == (2, 6)
        said = await command("hub", "status", hub.config_path, "--token-file", token)
        assert "STOPPED: the table of evil/telemetry waits behind offsets 2 to 4 of shard 0: a record's key" in said
        advice = next(line for line in said.splitlines() if "weft hub skip" in line)
        await command(*advice.split("weft ", 1)[1].replace("'...'", "bomb").split(), "--yes")
        wait_until(lambda: _rows_of(hub, "evil", "telemetry") == 9, what="the table behind them")
        wait_until(lambda: hub.metrics()["weft_hub_skipped_records"] == 3, what="the idle shard to read its log")
        assert hub.metrics()["weft_hub_stopped_tables"] == 0
        reported = hub.json("/v1/streams/telemetry/completeness", hub.token("evil"))["skipped"]
        assert [(each["first_offset"], each["end_offset"], each["reason"]) for each in reported] == [(2, 5, "bomb")]
        assert reported[0]["records"] == [{"edge": "press-1", "log": "0000000000000007", "first": 2, "end": 5}]
        assert "STOPPED" not in await command("hub", "status", hub.config_path, "--token-file", token)
    finally:
        hub.stop()
    report = await audit(log.store, "evil", "telemetry")
    assert report.agrees, report.problems
    assert (report.total("table_records"), report.total("skipped")) == (6, 3)


async def command(*arguments: object) -> str:
    """Run a command, which has a loop of its own, and return what it says."""
    result = await asyncio.to_thread(weft, *arguments)
    assert result.exit_code == 0, result.output
    return result.output


def _rows_of(hub: GuardedHub, tenant: str, stream: str) -> int:
    status, body = hub.get(f"/v1/streams/{stream}", hub.token(tenant))
    return _rows(body) if status == 200 else 0


async def expand(hub: GuardedHub, batches: int) -> None:
    """Send small batches that stand for as many bytes of rows as the hub takes."""
    async with link_to(hub, HOSTILE, level=19) as link:
        await link.greet()
        await link.open(link.opening(1, "bombs"))
        for at in range(batches):
            assert isinstance(await link.deliver(sparse(2000 * at, 2000, b"k" * 60_000)), Ack)


async def crowd(hub: GuardedHub, lanes: int = 1500) -> None:
    """Offer more lanes than an edge may have, with the longest topic patterns that it may tell."""
    topics = ["/".join(f"{{level{n}}}" for n in range(128)), "plant/" + "x" * 30_000]
    async with link_to(hub, HOSTILE, level=19) as link:
        await link.greet()
        await link.open(*(link.opening(n, f"s{n}", topics if n % 100 == 0 else ()) for n in range(1, lanes + 1)))
        taken = [Data(n, records(0, lane=n)) for n in range(1, lanes + 1)]
        await link.send(*taken[:1000])


class Target(NamedTuple):
    """Of a hub what an attacker knows."""

    url: str
    own_token: str

    def token(self, *_: object) -> str:
        return self.own_token


def attack(target: Target, seconds: float) -> None:
    """Attack for some time. In a process of its own, so that only the hub can hold up its other clients."""

    async def attacks() -> None:
        hub, until = cast(GuardedHub, target), time.monotonic() + seconds
        await asyncio.gather(
            again(partial(expand, hub, 20), until), again(partial(crowd, hub), until), again(partial(crowd, hub), until)
        )

    asyncio.run(attacks())


async def again(attack: Callable[[], Coroutine[None, None, None]], until: float) -> None:
    while time.monotonic() < until:
        with contextlib.suppress(LinkEnded, TimeoutError, OSError, AssertionError):
            await attack()
        await asyncio.sleep(0.05)


def p90(times: list[float]) -> float:
    assert times, "nothing was measured"
    return sorted(times)[int(len(times) * 0.9)]


@pytest.mark.search(turns=4)
async def test_expanding_batches_crowds_of_lanes_and_patterns_at_once_harm_nobody_else(hub: GuardedHub) -> None:
    """Acknowledgements, rows and answers of the other tenant stay within twice what they take undisturbed."""
    with GoodLink(hub) as good, Lateness(hub, good) as late:
        await asyncio.sleep(CALM_S)
        acks, rows, answers = good.take(), max(late.rows_s), p90(late.answers_s)
        late.rows_s.clear()
        late.answers_s.clear()
        target = Target(hub.url, hub.token(*HOSTILE))
        attacker = multiprocessing.get_context("spawn").Process(target=attack, args=(target, ATTACK_S))
        attacker.start()
        memory = 0
        while attacker.is_alive():
            memory = max(memory, hub.memory_bytes())
            await asyncio.sleep(0.2)
        assert attacker.exitcode == 0
        attacked = good.take()
        # Twice what it was, and what the attackers cost by themselves, who run on the same cores.
        assert attacked.acknowledged / ATTACK_S >= acks.acknowledged / CALM_S / 2
        at_most(2 * acks.p99 + 0.5, attacked.p99)
        at_most(2 * rows + 1, max(late.rows_s))
        at_most(2 * answers + 0.1, p90(late.answers_s))
        assert memory < 1536 << 20
    hub.restart()
    with GoodLink(hub) as good, Lateness(hub, good) as late:
        await asyncio.sleep(6)
        at_most(2 * rows + 1, max(late.rows_s))
