"""Codes of pairings at a real hub: once, in time, for one edge, and strangers learn nothing."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest

from tests.cloud_hub.facts.test_hub import SOON, declare
from tests.cloud_hub.facts.test_tokens import DAY, Cluster
from tests.cloud_hub.http.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import PATIENCE_S, until
from weft.cloud_hub.auth.tokens import TokenIdentity, hash_token
from weft.cloud_hub.facts.fact import TOKEN, CannotDeclare, decode
from weft.cloud_hub.facts.tokens import NotPaired, Pairing, TokenDocument, pair_token
from weft.cloud_hub.facts.tokens import redeem as declare_redeem
from weft.cloud_hub.http import process
from weft.cloud_hub.hub import Hub
from weft.hub_api.rights import Scope
from weft.protocols.link import CODE_CHARACTERS, PAIR_PATH, PairAnswer, code_of, spoken
from weft.storage.object_store.directory import MemoryStore

CODE = "K7QF-9XDM-2RPT"
HASH = hash_token(spoken(CODE))
NOBODY = None, None
PRESS = TokenIdentity("press-7", HASH, Scope.EDGE, EDGE.tenant, EDGE.edge)


class Paired(Cluster):
    """A cluster log in memory with a code for an edge."""

    def __init__(self) -> None:
        super().__init__()
        self.declare(pair_token(PRESS, Pairing(HASH, self.now + DAY)))

    def redeem(self, secret: str, asks_for: tuple[str | None, str | None] = NOBODY) -> None:
        self.declare(declare_redeem("press-7", HASH, hash_token(secret), asks_for, self.now))

    @property
    def document(self) -> TokenDocument:
        return decode(self.state.facts(TOKEN)["press-7"].document, TokenDocument)


def test_a_code_gives_a_secret_once() -> None:
    cluster = Paired()
    assert cluster.credentials.required, "a token that is to be paired closes the hub"
    assert cluster.credentials.paired_by(HASH) == "press-7"
    cluster.redeem("mine")
    found = cluster.credentials.identify("mine")
    assert found is not None
    assert (found.scope, found.tenant, found.edge) == (Scope.EDGE, EDGE.tenant, EDGE.edge)
    before = cluster.state.n
    cluster.redeem("mine")
    assert cluster.state.n == before, "an edge that asks again after a lost answer has its token"
    with pytest.raises(NotPaired):
        cluster.redeem("another")
    assert cluster.credentials.identify("another") is None


def test_a_code_ends() -> None:
    cluster = Paired()
    cluster.now += DAY
    with pytest.raises(NotPaired):
        cluster.redeem("mine")
    assert cluster.document.secrets == ()


@pytest.mark.parametrize("asks_for", [("other", EDGE.edge), (EDGE.tenant, "other"), ("", "")])
def test_a_code_is_for_one_edge(asks_for: tuple[str, str]) -> None:
    cluster = Paired()
    with pytest.raises(NotPaired):
        cluster.redeem("mine", asks_for)
    cluster.redeem("mine", (EDGE.tenant, EDGE.edge))


def test_another_code_replaces_the_one_before_and_its_use_ends_the_old_token() -> None:
    cluster = Paired()
    cluster.redeem("old machine")
    again = hash_token("NEW")
    cluster.declare(pair_token(PRESS, Pairing(again, cluster.now + DAY, token_until=cluster.now + 9 * DAY)))
    assert cluster.credentials.identify("old machine") is not None, "it counts until the new machine is there"
    assert cluster.credentials.paired_by(HASH) is None
    with pytest.raises(NotPaired):
        cluster.redeem("with the code before")
    cluster.declare(declare_redeem("press-7", again, hash_token("new machine"), NOBODY, cluster.now))
    assert cluster.credentials.identify("old machine") is None
    found = cluster.credentials.identify("new machine")
    assert found is not None
    assert cluster.credentials.until(found) == cluster.now + 9 * DAY


def test_the_token_of_another_edge_is_not_paired() -> None:
    cluster = Paired()
    others = TokenIdentity("press-7", HASH, Scope.EDGE, EDGE.tenant, "press-8")
    with pytest.raises(CannotDeclare, match="give the new one another name"):
        cluster.declare(pair_token(others, Pairing(HASH, cluster.now + DAY)))


def test_a_secret_of_another_token_is_refused() -> None:
    cluster = Paired()
    cluster.add("press-8", "mine")
    with pytest.raises(CannotDeclare, match="is that of token 'press-8'"):
        cluster.redeem("mine")


def test_a_code_is_known_however_a_person_writes_it() -> None:
    code = code_of(secrets.token_bytes(CODE_CHARACTERS))
    assert len(spoken(code)) == CODE_CHARACTERS
    assert spoken(code) == spoken(f" {code.lower().replace('-', ' ').replace('0', 'o').replace('1', 'l')} ")
    assert len({code_of(bytes([each] * CODE_CHARACTERS)) for each in range(32)}) == 32


async def ask(hub: Hub, **body: Any) -> tuple[int, dict[str, Any], Any]:
    headers = body.pop("headers", {})
    async with (
        aiohttp.ClientSession() as session,
        session.post(hub.url + PAIR_PATH, json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.json(), answer.headers


async def paired_hub(hub: Hub, store: MemoryStore) -> None:
    await declare(hub, store, pair_token(PRESS, Pairing(HASH, 1 << 62)))


async def test_an_edge_links_with_the_token_that_its_code_gave_it() -> None:
    store = MemoryStore()
    async with running_hub(store, **SOON) as hub:
        await paired_hub(hub, store)
        status, reported, _ = await ask(
            hub, code=CODE.lower(), sha256=hash_token("mine"), tenant="default", edge=EDGE.edge
        )
        assert (status, reported) == (
            200,
            msgspec.to_builtins(PairAnswer(tenant=EDGE.tenant, edge=EDGE.edge, token="press-7", until=None)),
        )
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        async with running_link(hub, log, EDGE, "mine", MemoryEpochs()):
            await log.until_released(1)


async def test_wrong_codes_are_told_nothing_and_are_few() -> None:
    store = MemoryStore()
    async with running_hub(store, **SOON) as hub:
        await paired_hub(hub, store)
        # A code that is not there, and the right one for another edge: the same words.
        answers = [
            (await ask(hub, code="0000-0000-0000", sha256=hash_token("x")))[:2],
            (await ask(hub, code=CODE, sha256=hash_token("x"), edge="press-8"))[:2],
        ]
        assert answers[0] == answers[1]
        assert answers[0][0] == 403
        for _ in range(process.WRONG_BURST - 1):
            assert (await ask(hub, code="1111-1111-1111", sha256=hash_token("x")))[0] == 403
        status, _, headers = await ask(hub, code=CODE, sha256=hash_token("x"))
        assert (status, int(headers["Retry-After"]) > 0) == (429, True)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"code": CODE}, 400),
        ({"code": CODE, "sha256": "secret"}, 400),
        ({"code": CODE * 100, "sha256": "a" * 64}, 413),
        ({"code": CODE, "sha256": "a" * 64, "headers": {"Origin": "https://evil.example"}}, 403),
    ],
)
async def test_what_is_no_pairing_is_refused(body: dict[str, Any], status: int) -> None:
    async with running_hub(MemoryStore()) as hub:
        assert (await ask(hub, **body))[0] == status


async def held_back(hub: Hub, source: str, count: int) -> Counter[int]:
    """Send wrong codes whose bodies all come once all requests have begun; return the statuses."""
    body = msgspec.json.encode({"code": "1111-1111-1111", "sha256": hash_token("x")})
    head = f"POST {PAIR_PATH} HTTP/1.1\r\nHost: hub\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    port = urlsplit(hub.url).port
    peers = [await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0)) for _ in range(count)]
    for _, writer in peers:
        writer.write(head)
    await until(lambda: len(hub._listener.server._busy) == count)
    for _, writer in peers:
        writer.write(body)
    found: Counter[int] = Counter()
    for reader, writer in peers:
        found[int((await asyncio.wait_for(reader.readline(), PATIENCE_S)).split()[1])] += 1
        writer.close()
    return found


async def test_wrong_codes_of_strangers_stop_nobody_s_pairing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "ALL_WRONG_BURST", process.WRONG_BURST)
    monkeypatch.setattr(process, "ALL_WRONG_PER_S", 0.01)
    store = MemoryStore()
    async with running_hub(store, **SOON) as hub:
        await paired_hub(hub, store)
        assert await held_back(hub, "127.0.0.2", 40) == {403: process.WRONG_BURST + 1, 429: 29}
        assert await held_back(hub, "127.0.0.3", 5) == {403: 1, 429: 4}, "as many came as all may send"
        status, _, _ = await ask(hub, code=CODE, sha256=hash_token("mine"))
        assert status == 200, "an address without a wrong code"
