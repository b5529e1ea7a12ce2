"""What a token of a region opens at the other hub, and what it does not."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from tests.cloud_hub.live import get, running_hub, running_link
from tests.cloud_hub.regions.fabric import LANE, NODE, has, log_of, to
from tests.support.epochs import MemoryEpochs
from tests.support.tokens import create_token
from tests.support.waiting import until
from weft.cloud_hub.auth.tokens import TokensUnusable, read_tokens
from weft.cloud_hub.hub import Hub
from weft.hub_api.rights import Scope
from weft.protocols.chunk_index import LaneFlag
from weft.protocols.lane import AUDIT_STREAM, AUDIT_TENANT, DOWN_STREAM, Lane
from weft.protocols.link import (
    CONFIG,
    PROTOCOL_VERSION,
    PULL,
    Frame,
    FrameDecoder,
    FrameEncoder,
    Hello,
    LaneClosed,
    LaneOpen,
    LaneOpened,
    Refuse,
    RefuseCode,
    Welcome,
)
from weft.replication.runner import LINK_PATH
from weft.storage.object_store.directory import MemoryStore

RELAY = int(LaneFlag.RELAY)
_ANSWERS = Welcome, Refuse, LaneClosed, LaneOpened


async def said(hub: Hub, token: str, hello: Hello, *openings: LaneOpen) -> list[Frame]:
    """What the hub answers to a HELLO, and to each lane."""
    found: list[Frame] = []
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.ws_connect(hub.url + LINK_PATH, headers=headers) as socket:
        await socket.send_bytes(FrameEncoder().encode([hello, *openings]))
        decoder = FrameDecoder()
        while len(found) < 1 + len(openings) and not any(isinstance(each, Refuse) for each in found):
            message = await socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                break
            found += [each for each in decoder.decode(message.data) if isinstance(each, _ANSWERS)]
    return found


def hello(tenant: str = "default", features: tuple[str, ...] = ()) -> Hello:
    return Hello(PROTOCOL_VERSION, tenant, "region-east-0", 1, 1, 0, "weft", list(features))


def opening(lane: Lane, flags: int = RELAY, number: int = 1) -> LaneOpen:
    return LaneOpen(number, *lane, 0 if flags & RELAY else 5, [], [], flags=flags)


async def test_a_link_with_a_token_of_a_region_relays_and_is_no_edge(tmp_path: Path) -> None:
    tokens, token_file = str(tmp_path / "tokens.yaml"), tmp_path / "token"
    token_file.write_text(create_token(tokens, "west", Scope.REGION, "*"))
    reader = create_token(tokens, "reader", Scope.READER)
    async with (
        running_hub(MemoryStore(), tokens=tokens) as east,
        running_hub(MemoryStore(), regions=to(east.url, token_file=str(token_file))) as west,
        running_link(west, log_of(0, 6), NODE, epochs=MemoryEpochs(1)),
    ):
        await until(lambda: has(east, 6))
        edges = (await get(east, "/v1/edges", reader))[1]["edges"]
        assert [each["edge"] for each in edges] == ["press-1"], "the region itself is none"
        assert (await get(east, "/v1/streams", token_file.read_text()))[0] == 403, "it reads nothing"


async def test_a_region_relays_lanes_of_its_tenant_and_does_nothing_else(tmp_path: Path) -> None:
    tokens = str(tmp_path / "tokens.yaml")
    of_one = create_token(tokens, "one", Scope.REGION, "default")
    of_all = create_token(tokens, "all", Scope.REGION, "*")
    edge = create_token(tokens, "edge", Scope.EDGE, "default", "press-2")
    other = LANE._replace(tenant="other")
    async with running_hub(MemoryStore(), tokens=tokens) as hub:
        _, opened, own, foreign, down, acts, beside = await said(
            hub,
            of_all,
            hello(),
            opening(LANE),
            opening(LANE._replace(stream="own"), 0, 2),
            opening(other, RELAY, 3),
            opening(LANE._replace(stream=DOWN_STREAM), RELAY, 4),
            opening(Lane(AUDIT_TENANT, "e", 1, AUDIT_STREAM), RELAY, 5),
            opening(Lane(AUDIT_TENANT, "e", 1, "telemetry"), RELAY, 6),
        )
        answers = {each.lane: each for each in (opened, own, foreign, down, acts, beside)}  # type: ignore[union-attr]
        assert isinstance(answers[1], LaneOpened)
        assert isinstance(answers[3], LaneOpened)
        refusals = {2: RefuseCode.UNAUTHORISED} | dict.fromkeys((4, 5, 6), RefuseCode.BAD_HELLO)
        for number, code in refusals.items():
            closed = answers[number]
            assert isinstance(closed, LaneClosed)
            assert closed.code == code
        _, refused = await said(hub, of_one, hello(), opening(other))
        assert isinstance(refused, LaneClosed)
        assert "does not allow to relay lanes of stream telemetry of tenant other" in refused.message
        for denied, greeting in (
            (of_one, hello("other")),
            (of_all, hello(features=(CONFIG,))),
            (of_all, hello(features=(PULL,))),
            (edge, hello()),
        ):
            [refusal] = await said(hub, denied, greeting)
            assert isinstance(refusal, Refuse)
            assert refusal.code == RefuseCode.UNAUTHORISED
        greeting = Hello(PROTOCOL_VERSION, "default", "press-2", 1, 1, 0, "weft")
        _, by_edge = await said(hub, edge, greeting, opening(LANE))
        assert isinstance(by_edge, LaneClosed)
        assert by_edge.code == RefuseCode.UNAUTHORISED, "an edge relays for no other"


def test_all_tenants_is_for_regions_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens.yaml")
    create_token(path, "west", Scope.REGION, "*")
    with pytest.raises(TokensUnusable, match="tenant and edge need"):
        create_token(path, "reader", Scope.READER, "*")
    with pytest.raises(TokensUnusable, match="must not have one"):
        create_token(path, "east", Scope.REGION, "default", "press-1")
    [identity] = read_tokens(Path(path).read_bytes(), path)
    assert identity.rights.texts == ["relay:*"]
