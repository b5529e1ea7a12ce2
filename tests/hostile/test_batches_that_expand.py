"""A batch of some hundred bytes stands for no more rows than a table can take: it is refused at the door."""

from __future__ import annotations

import struct

import pytest

from tests.hostile.hub import GuardedHub
from tests.hostile.link_client import GoodLink, encoded, link_to, sparse
from tests.hostile.waits import at_most
from tests.support.waiting import wait_until
from weft.protocols import batch
from weft.protocols.link import Ack, LaneClosed, Refuse

pytestmark = pytest.mark.processes


def shared_key(count: int, key: bytes) -> bytes:
    return sparse(0, count, key)


def headers(count: int, pairs: int) -> bytes:
    times = struct.pack(f"<{count}q", *range(count))
    each = tuple(("", None) for _ in range(pairs))
    records = batch.columns_from_lists(times, [b"k"] * count, [b""] * count, dict.fromkeys(range(count), each))
    return encoded(0, records, level=19)


@pytest.fixture
def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacker's own encoder refuses nothing."""
    monkeypatch.setattr(batch, "check_expanded", lambda *_: None)


@pytest.mark.slow
@pytest.mark.usefixtures("unbounded")
async def test_what_would_be_terabytes_of_rows_is_refused_and_harms_nobody(hub: GuardedHub) -> None:
    bombs = {
        "a key too long": shared_key(1, b"k" * (batch.KEY_BYTES_MAX + 1)),
        "a key of 30 MiB for every record": shared_key(1_000_000, b"k" * (30 << 20)),
        "a key for every record": shared_key(1_000_000, b"k" * batch.KEY_BYTES_MAX),
        "headers": headers(10_000, 1024),
    }
    with GoodLink(hub) as good:
        for what, bomb in bombs.items():
            assert len(bomb) < 64 << 10, what
            async with link_to(hub, level=19) as link:
                await link.greet()
                await link.open(link.opening())
                answer = await link.deliver(bomb)
                assert isinstance(answer, LaneClosed | Refuse), what
        async with link_to(hub) as link:
            await link.greet()
            await link.open(link.opening())
            assert isinstance(await link.deliver(shared_key(500, b"k" * 60_000)), Ack)
        at_most(5, good.take().longest)
    assert hub.memory_bytes() < 1 << 30

    def rows() -> int:
        streams = hub.json("/v1/streams", hub.token("good"))["streams"]
        return int(streams[0]["table_rows"] or 0)

    wait_until(lambda: rows() == good.sent, what="the other tenant's table")
    hub.restart()
    wait_until(lambda: rows() == good.sent, what="the other tenant's table after a restart")
