"""The pair as a part of the node: who may connect to its listener, and which copies go to hubs when."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.edge_node.pair.test_copies import connect, log_of, send, started
from tests.storage.segment_log.helpers import put
from tests.support.certificates import Authority
from weft.bounds import Refusals
from weft.config.links import Link, Pair, PairTls
from weft.config.models import EdgeConfig
from weft.edge_node.links.links import Links
from weft.edge_node.pair.copies import Copy
from weft.edge_node.pair.part import PairPart, PeerListener
from weft.edge_node.pair.take_over import _TakeOver
from weft.network.reload import Reloads
from weft.protocols.batch import decode_header
from weft.protocols.chunk_index import LaneFlag
from weft.protocols.ranges import RangeSet
from weft.replication.runner import LINK_PATH

TOKEN = "a-token-of-the-pair-of-two-nodes-at-a-site"


async def answer(port: int, authorization: bytes, trust: ssl.SSLContext | None) -> int:
    """The status of the answer to a request for a link, without the handshake of a WebSocket."""
    reader, writer = await asyncio.open_connection("localhost", port, ssl=trust)
    writer.write(b"GET %s HTTP/1.1\r\nHost: b\r\n%s\r\n" % (LINK_PATH.encode(), authorization))
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_who_has_not_the_token_writes_no_copy(tmp_path: Path, *, is_encrypted: bool) -> None:
    token, authority = tmp_path / "token", Authority(tmp_path)
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    pem = authority.sign("localhost")
    tls = PairTls(certificate=pem.certificate, key=pem.key) if is_encrypted else None
    trust = ssl.create_default_context(cafile=authority.path) if is_encrypted else None
    pair = Pair(listen="localhost:0", peer=("http://localhost:1",), token_file=str(token), tls=tls)
    async with started(tmp_path / "pair") as copies:
        listener = PeerListener(pair, copies, "disk", software="weft")
        await listener.start(Refusals(asyncio.get_running_loop().time), Reloads(cast("Any", SimpleNamespace())))
        refused = [b"", b"Authorization: Bearer other\r\n", b"Authorization: Bearer \xff\r\n"]
        assert [await answer(listener.port, each, trust) for each in refused] == [401, 401, 401]
        assert await answer(listener.port, b"Authorization: Bearer %s\r\n" % TOKEN.encode(), trust) == 400
        await listener.close()
        assert not copies.open


@asynccontextmanager
async def with_two_copies(folder: Path) -> AsyncIterator[tuple[PairPart, str, Copy]]:
    """A node whose peer has a new disk since it copied one record: its part, and name and copy of the earlier log."""
    pair = Pair(listen="127.0.0.1:0", peer=("http://127.0.0.1:1",), budget_bytes=8 << 20)
    links = {"hub": Link(to=("http://127.0.0.1:1",))}
    config = EdgeConfig(node="b", data_dir=str(folder), links=links, pair=pair)

    loop = asyncio.get_running_loop()
    part = PairPart(
        config,
        pair,
        Links(config, log_of(77), wall_clock=lambda: 123),
        software="weft",
        answered=lambda: None,
        post=lambda callback: cast("None", loop.call_soon_threadsafe(callback)),
    )
    await part.copies.start()
    for log in (log_of(5, b"one"), log_of(6, b"two")):
        link, session = await connect(part.copies, log, 1)
        await send(link, session, log)
        if log.log_id == 5:
            link.closed("burnt")
    ((name, copy),) = [(name, copy) for name, copy in part.copies.open.items() if copy.log.log_id == 5]
    try:
        yield part, name, copy
    finally:
        await part.close()
        await part.copies.close()


async def test_an_earlier_copy_stays_until_its_take_over_has_ended(tmp_path: Path) -> None:
    """It continues for a while when hubs have all records, for the last mark."""
    async with with_two_copies(tmp_path) as (part, name, copy):
        await part.take_over()
        copy.forget("s", RangeSet([(0, 1)]))
        await part.copies.tidy(part._take_overs)
        assert part.copies.open[name] is copy
        await part._take_overs.end(name)
        await part.copies.tidy(part._take_overs)
        assert name not in part.copies.open


async def test_an_order_that_comes_while_a_take_over_ends_begins_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_two_copies(tmp_path) as (part, name, _):
        is_looking, may_go_on = asyncio.Event(), asyncio.Event()

        async def look(*_: object) -> bool:
            is_looking.set()
            await may_go_on.wait()
            return True

        monkeypatch.setattr(part._take_overs, "look", look)
        part._take_overs._running[name] = _TakeOver(is_ordered=False)
        part.start()
        await is_looking.wait()
        order = asyncio.create_task(part.take_over())
        await asyncio.sleep(0)
        may_go_on.set()
        await order
        for _ in range(3):  # the look ends
            await asyncio.sleep(0)
        assert part._take_overs.is_ordered(name)


async def test_an_order_brings_hubs_no_numbers_that_a_node_which_is_there_has_not_compared(tmp_path: Path) -> None:
    """A hub that had them before the node has compared its log would take that for a restored old copy."""
    async with with_two_copies(tmp_path) as (part, _, _):
        log = log_of(9, b"one")
        link, session = await connect(part.copies, log, 1, flags=int(LaneFlag.UNCOMPARED))
        await send(link, session, log)
        ((name, copy),) = [(name, each) for name, each in part.copies.open.items() if each.log.log_id == 9]
        for other in list(part.copies.open.values()):
            if other is not copy:
                other.session = cast("Any", session)
        await part.take_over()
        (source,) = part._take_overs._running[name].sources
        assert list(source.states([1])[1].held) == []
        link.closed("for a moment")
        await part.take_over()
        (source,) = part._take_overs._running[name].sources
        assert list(source.states([1])[1].held) == [], "the order was for a node that was there"
        part._asked.clear()
        await part.take_over()
        (source,) = part._take_overs._running[name].sources
        assert list(source.states([1])[1].held) == [(0, 1)]


async def test_an_order_beside_a_node_that_goes_on_ends_with_what_the_copy_had(tmp_path: Path) -> None:
    async with with_two_copies(tmp_path) as (part, _, _):
        ((name, copy),) = [(name, each) for name, each in part.copies.open.items() if each.log.log_id == 6]
        now = 0.0
        part._take_overs._now = lambda: now
        await part.take_over()
        part._asked.clear()
        await part._take_overs.end(name)
        for other in part.copies.open.values():
            other.session = copy.session
        await part.take_over()
        assert part.facts()["pair"]["copies"][name]["unsent"] == 1
        log = log_of(6, b"two")
        session = cast("Any", copy.session)
        for number in range(1, 60):
            put(log, 1, b"more")
            copy.log.append_stored("s", [(decode_header(batch), batch) for batch in log.read(1, number, 1)])
            await copy.log.durable()
            if number == 5:
                (source,) = part._take_overs._running[name].sources
                assert list(source.states([1])[1].held) == [(0, 1)]
                assert len(await source.read(1, 0, 1 << 20)) == 1
                source.released(1, RangeSet([(0, 6)]))
            now += 0.5
            await part._look_at_copies()
            assert copy.session is session
        assert name not in part._take_overs
        assert copy.waiting() == {"s": 59}, "the node brings what came after the order"
        assert part.facts()["pair"]["copies"][name]["unsent"] == 0
