"""Tokens of the cluster log and of a file, as a hub process admits them: pure, with a clock that tests turn."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cloud_hub.facts.test_hub import SOON, declare, token
from tests.cloud_hub.http.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import until
from weft.cloud_hub.auth.tokens import NO_TOKEN, TokenIdentity, hash_token
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.facts import fact as documents
from weft.cloud_hub.facts import tenants as tenant_changes
from weft.cloud_hub.facts import tokens as facts
from weft.cloud_hub.facts.fact import TENANT, TOKEN, CannotDeclare, Decision, decode, encode
from weft.cloud_hub.facts.streams import expect_edges
from weft.cloud_hub.facts.tenants import Quotas, TenantDocument
from weft.cloud_hub.facts.tokens import (
    LOOK_S,
    WRITE_S,
    Credentials,
    Secret,
    TokenCache,
    TokenDocument,
    TokenUse,
    add_token,
    import_token,
    last_uses,
    remove_token,
    rotate_token,
)
from weft.cloud_hub.links import open_links
from weft.hub_api.rights import Scope
from weft.protocols.lane import valid_name
from weft.protocols.shard.completeness import UNREADABLE
from weft.replication.events import LinkState
from weft.storage import hub_keys
from weft.storage.cluster_log import ClusterState, Declaration, Fact
from weft.storage.object_store import Written
from weft.storage.object_store.directory import MemoryStore
from weft.storage.table.schemas import ExpectedEdges

DAY = 86_400 * 10**9


class Cluster:
    """A cluster log without a store, and a process that follows it."""

    def __init__(self, *, is_closed: bool = False) -> None:
        self.state = ClusterState(bytes(16))
        self.now = 1_000 * DAY
        self.credentials = Credentials(is_closed, lambda: self.now)

    def declare(self, decide: Decision) -> None:
        change = decide(self.state)
        if change is not None:
            self.write(*change)

    def write(self, kind: str, name: str, document: bytes | None) -> None:
        n = self.state.n + 1
        self.state.apply(Declaration(bytes(16), n, 0, 0, kind, name, document, self.now, "mara", "", n), n)
        self.credentials.refresh(self.state)

    def add(self, name: str, token: str, until: int | None = None, **more: Any) -> None:
        self.declare(add_token(identity(name, token, **more), until))


def identity(name: str, token: str, **more: Any) -> TokenIdentity:
    return TokenIdentity(name, hash_token(token), **{"scope": Scope.READER, **more})


def test_a_declared_token_opens_what_it_says_until_it_is_withdrawn() -> None:
    cluster = Cluster()
    assert not cluster.credentials.required
    cluster.declare(tenant_changes.set_tenant("acme", Quotas(), is_new=True))
    cluster.add("press", "secret", scope=Scope.EDGE, tenant="acme", edge="press-7")
    found = cluster.credentials.identify("secret")
    assert found == TokenIdentity("press", hash_token("secret"), Scope.EDGE, "acme", "press-7")
    assert cluster.credentials.revoked([found]) == []
    assert cluster.credentials.identify(hash_token("secret")) is None, "a hash is no token"
    cluster.declare(remove_token("press"))
    assert cluster.credentials.identify("secret") is None
    assert cluster.credentials.revoked([found]) == [found]
    assert cluster.credentials.required, "to withdraw the last token opens no hub"


def test_a_token_ends_by_the_clock() -> None:
    cluster = Cluster()
    cluster.add("guest", "secret", until=cluster.now + DAY)
    found = cluster.credentials.identify("secret")
    assert found is not None
    cluster.now += DAY - 1
    assert cluster.credentials.revoked([found]) == []
    cluster.now += 1
    assert cluster.credentials.identify("secret") is None
    assert cluster.credentials.revoked([found]) == [found]


def test_two_secrets_are_in_force_while_a_token_is_rotated() -> None:
    cluster = Cluster()
    cluster.add("press", "first", scope=Scope.EDGE, edge="press-7")
    first = cluster.credentials.identify("first")

    def rotate(secret: str, overlap: int, *, ends_oldest: bool = False) -> None:
        made = Secret(hash_token(secret))
        cluster.declare(rotate_token("press", made, cluster.now, cluster.now + overlap, ends_oldest=ends_oldest))

    rotate("second", 7 * DAY)
    second = cluster.credentials.identify("second")
    assert second is not None
    assert cluster.credentials.identify("first") == first
    assert cluster.credentials.revoked([first, second]) == [], "its link stays"
    with pytest.raises(CannotDeclare, match="2 secrets in force"):
        rotate("third", DAY)
    rotate("third", DAY, ends_oldest=True)
    assert [cluster.credentials.identify(each) is not None for each in ("first", "second", "third")] == [0, 1, 1]
    cluster.now += DAY
    assert [cluster.credentials.identify(each) is not None for each in ("second", "third")] == [0, 1]
    rotate("fourth", 0)
    assert [cluster.credentials.identify(each) is not None for each in ("third", "fourth")] == [0, 1]
    assert len(decode(cluster.state.facts(TOKEN)["press"].document, TokenDocument).secrets) == 1, "old ones are gone"


def test_the_overlap_never_lengthens_the_life_of_the_old_secret() -> None:
    cluster = Cluster()
    cluster.add("press", "first", until=cluster.now + DAY)
    rotation = rotate_token("press", Secret(hash_token("second")), cluster.now, cluster.now + 7 * DAY)
    cluster.declare(rotation)
    cluster.now += DAY
    assert cluster.credentials.identify("first") is None


def test_links_without_a_token_end_once_every_request_needs_one() -> None:
    cluster = Cluster()
    assert cluster.credentials.revoked([None]) == []
    cluster.add("press", "secret")
    assert cluster.credentials.revoked([None]) == [None]
    assert Cluster(is_closed=True).credentials.required


def test_a_damaged_entry_that_may_be_the_only_token_opens_no_hub() -> None:
    cluster = Cluster()
    cluster.state.skip("cluster/entry/1 is damaged")
    cluster.credentials.refresh(cluster.state)
    assert cluster.credentials.required
    assert cluster.credentials.revoked([None]) == [None]
    cluster.state = ClusterState(bytes(16))
    cluster.credentials.refresh(cluster.state)
    assert not cluster.credentials.required, "the entry was restored, and is of something else"


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"scope":"planet","secrets":[]}',
        b'{"scope":"admin"}',
        b"[" * 5000,
        b'{"scope":"admin","secrets":[{"sha256":"x"}]}',
        b'{"scope":"edge","secrets":[{"sha256":"%s"}]}' % (b"0" * 64),
        b'{"scope":"reader","tenant":"No Name","secrets":[{"sha256":"%s"}]}' % (b"0" * 64),
    ],
)
def test_a_broken_or_hostile_document_opens_nothing_and_harms_no_other(document: bytes) -> None:
    cluster = Cluster()
    cluster.add("good", "secret")
    cluster.write(TOKEN, "bad", document)
    good = cluster.credentials.identify("secret")
    assert good is not None
    assert cluster.credentials.revoked([good]) == []
    assert list(cluster.credentials.unusable) == ["bad"]
    cluster.declare(remove_token("bad"))
    assert cluster.credentials.unusable == {}


def test_an_entry_cannot_change_what_anothers_secret_opens() -> None:
    cluster = Cluster()
    cluster.add("press", "secret")
    stolen = TokenDocument(Scope.ADMIN, (Secret(hash_token("secret")),))
    cluster.write(TOKEN, "another", encode(stolen))
    found = cluster.credentials.identify("secret")
    assert found is not None
    assert found.name == "press"
    cluster.declare(remove_token("another"))
    assert cluster.credentials.identify("secret") == found


def test_a_secret_of_two_tokens_is_refused_and_outlives_the_older_one() -> None:
    cluster = Cluster()
    cluster.add("press", "secret")
    for decision in (add_token(identity("another", "secret"), None), import_token(identity("another", "secret"))):
        with pytest.raises(CannotDeclare, match="the secret of 'another' is that of token 'press'"):
            cluster.declare(decision)
    cluster.add("another", "its own")
    with pytest.raises(CannotDeclare, match="the secret of 'another' is that of token 'press'"):
        cluster.declare(rotate_token("another", Secret(hash_token("secret")), cluster.now, cluster.now))
    cluster.write(TOKEN, "another", encode(TokenDocument(Scope.READER, (Secret(hash_token("secret")),))))
    cluster.declare(remove_token("press"))
    found = cluster.credentials.identify("secret")
    assert found is not None
    assert found.name == "another", "as in a process that starts now"


def test_an_entry_that_a_restored_store_has_anew_counts() -> None:
    cluster = Cluster()
    cluster.add("press", "old")
    cluster.state = ClusterState(bytes(16))
    cluster.add("press", "new")
    assert cluster.credentials.identify("old") is None
    assert cluster.credentials.identify("new") is not None


def test_an_import_reads_each_document_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, known, count = Cluster(), TokenCache(), 40
    cluster.declare(tenant_changes.set_tenant("acme", Quotas(edges=count), is_new=True))
    decoded: list[bytes] = []
    original = documents.decode

    def counted(document: bytes, wanted: Any) -> Any:
        decoded.append(document)
        return original(document, wanted)

    monkeypatch.setattr(facts, "decode", counted)

    def imports(n: int) -> Decision:
        each = identity(f"t{n}", f"secret {n}", scope=Scope.EDGE, tenant="acme", edge=f"press-{n}")
        return import_token(each, known)

    for n in range(count):
        cluster.declare(imports(n))
    assert len(decoded) <= 2 * count, "a document of a token, and the tenant's, for each"
    with pytest.raises(CannotDeclare, match="has tokens for 40 edges, its quota"):
        cluster.declare(imports(count))
    cluster.declare(remove_token("t7"))
    cluster.declare(imports(count))
    with pytest.raises(CannotDeclare, match="has tokens for 40 edges, its quota"):
        cluster.declare(imports(count + 1))


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "remove", "rotate", "expire", "copy"])), max_size=30
    )
)
def test_the_process_that_follows_admits_what_one_that_starts_admits(steps: list[tuple[str, str]]) -> None:
    cluster, secrets = Cluster(), dict[str, str]()
    rng = random.Random(1)
    for name, step in steps:
        secret = f"{rng.getrandbits(64)}"
        try:
            if step == "add":
                cluster.add(name, secret, until=cluster.now + 3 * DAY)
            elif step == "remove":
                cluster.declare(remove_token(name))
            elif step == "rotate":
                made = Secret(hash_token(secret), cluster.now + 2 * DAY)
                cluster.declare(rotate_token(name, made, cluster.now, cluster.now + DAY))
            elif step == "copy":  # which no command writes
                named = rng.sample(sorted(secrets), min(2, len(secrets)))
                made_of = tuple(Secret(hash_token(each)) for each in named)
                cluster.write(TOKEN, name, encode(TokenDocument(Scope.READER, made_of)))
            else:
                cluster.now += DAY
        except CannotDeclare:
            continue
        secrets[secret] = name
        started = Credentials(False, lambda: cluster.now)
        started.refresh(cluster.state)
        for each in secrets:
            assert started.identify(each) == cluster.credentials.identify(each)


def test_facts_that_depend_on_each_other_are_checked() -> None:
    cluster = Cluster()
    with pytest.raises(CannotDeclare, match="there is no tenant 'acme': declare it first"):
        cluster.add("reader", "secret", tenant="acme")
    with pytest.raises(CannotDeclare, match="there is no tenant 'acme'"):
        cluster.declare(expect_edges(("acme", "telemetry"), ("a",)))
    cluster.declare(tenant_changes.set_tenant("acme", Quotas(edges=1), is_new=True))
    cluster.add("one", "1", scope=Scope.EDGE, tenant="acme", edge="press-1")
    cluster.add("again", "2", scope=Scope.EDGE, tenant="acme", edge="press-1")
    cluster.add("reader", "3", tenant="acme")
    with pytest.raises(CannotDeclare, match="has tokens for 1 edges, its quota"):
        cluster.add("two", "4", scope=Scope.EDGE, tenant="acme", edge="press-2")
    cluster.declare(tenant_changes.set_tenant("acme", Quotas(edges=2), is_new=False))
    cluster.add("two", "4", scope=Scope.EDGE, tenant="acme", edge="press-2")
    with pytest.raises(CannotDeclare, match="tenant acme has tokens: again, one, reader, two"):
        cluster.declare(tenant_changes.remove_tenant("acme"))
    for name in ("again", "one", "reader", "two"):
        cluster.declare(remove_token(name))
    cluster.declare(expect_edges(("acme", "telemetry"), ("a",)))
    with pytest.raises(CannotDeclare, match="edges of streams are declared: acme/telemetry"):
        cluster.declare(tenant_changes.remove_tenant("acme"))
    cluster.declare(expect_edges(("acme", "telemetry"), None))
    cluster.declare(tenant_changes.remove_tenant("acme"))
    assert not cluster.state.facts(TENANT)


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (remove_token("x"), "there is no token 'x' in the cluster log; there are: none"),
        (tenant_changes.remove_tenant("x"), "there is no tenant 'x'"),
        (tenant_changes.set_tenant("x", Quotas(), is_new=False), "there is no tenant 'x'"),
        (rotate_token("x", Secret("0" * 64), 0, 0), "there is no token 'x'"),
        (expect_edges(("default", "t"), None), "declares no edges of stream default/t"),
    ],
)
def test_what_is_not_there_cannot_be_changed(decision: Decision, message: str) -> None:
    with pytest.raises(CannotDeclare, match=message):
        Cluster().declare(decision)


def test_names_are_checked_before_anything_is_written() -> None:
    with pytest.raises(CannotDeclare, match="is not a valid name"):
        tenant_changes.set_tenant("No Name", Quotas(), is_new=True)
    for stream, edge in (("t", "press *"), ("No", "press")):
        with pytest.raises(CannotDeclare, match="is not a valid name"):
            expect_edges(("default", stream), (edge,))


def test_fields_of_a_later_release_stay_in_a_document() -> None:
    cluster = Cluster()
    cluster.write(TENANT, "acme", b'{"quotas":{"edges":3},"region":"north"}')
    cluster.declare(tenant_changes.set_tenant("acme", Quotas(streams=5), is_new=False))
    document = cluster.state.facts(TENANT)["acme"].document
    assert msgspec.json.decode(document)["region"] == "north"
    assert decode(document, TenantDocument).quotas == Quotas(edges=3, streams=5)
    cluster.declare(tenant_changes.set_tenant("acme", Quotas(), frozenset(["edges"]), is_new=False))
    assert decode(cluster.state.facts(TENANT)["acme"].document, TenantDocument).quotas == Quotas(streams=5)
    before = cluster.state.n
    cluster.declare(tenant_changes.set_tenant("acme", Quotas(streams=5), is_new=False))
    assert cluster.state.n == before, "nothing to change"


def test_streams_are_read_again_after_an_entry_about_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, expected = Cluster(), ExpectedEdges()
    cluster.declare(expect_edges(("default", "a"), ("oven",)))
    expected.refresh(cluster.state)
    read: list[str] = []
    original = ClusterState.facts

    def counted(state: ClusterState, kind: str) -> Mapping[str, Fact]:
        read.append(kind)
        return original(state, kind)

    cluster.add("press", "secret")
    with monkeypatch.context() as watched:
        watched.setattr(ClusterState, "facts", counted)
        expected.refresh(cluster.state)
        assert read == []
    cluster.declare(expect_edges(("default", "b"), ("press",)))
    with monkeypatch.context() as watched:
        watched.setattr(ClusterState, "facts", counted)
        expected.refresh(cluster.state)
    assert (read, dict(expected)) == (["stream"], {("default", "a"): ("oven",), ("default", "b"): ("press",)})
    cluster.state = ClusterState(bytes(16))
    cluster.declare(expect_edges(("default", "a"), ("kiln",)))
    cluster.declare(expect_edges(("default", "a"), ("oven",)))
    cluster.declare(expect_edges(("default", "c"), ("oven",)))
    assert cluster.state.last("stream") == 3
    expected.refresh(cluster.state)
    assert set(expected) == {("default", "a"), ("default", "c")}, "of a restored store"


def test_a_declaration_that_cannot_be_read_expects_an_edge_that_never_comes() -> None:
    cluster, expected = Cluster(), ExpectedEdges()
    cluster.declare(expect_edges(("default", "a"), ("oven-1", "oven-2")))
    cluster.write("stream", "default/b", b'{"expected_edges": 7}')
    expected.refresh(cluster.state)
    assert dict(expected) == {("default", "a"): ("oven-1", "oven-2"), ("default", "b"): (UNREADABLE,)}
    assert not valid_name(UNREADABLE)
    assert list(expected.unusable) == ["default/b"]


# --- The end of a token: its reason, the clock that decides, the warning before, and its links


YEAR = 365 * DAY


def test_an_ended_token_is_refused_with_its_name_and_the_moment() -> None:
    cluster = Cluster()
    cluster.add("guest", "secret", until=cluster.now + DAY)
    found = cluster.credentials.identify("secret")
    assert found is not None
    assert cluster.credentials.until(found) == cluster.now + DAY
    cluster.now += DAY
    refusal = cluster.credentials.refusal("secret")
    assert refusal.error == "the token 'guest' ended at 1972-09-28T00:00:00.000000000Z"
    assert "weft hub token rotate CONFIG guest" in refusal.advice
    assert cluster.credentials.why_over(found) == refusal, "its links are told the same"
    cluster.declare(remove_token("guest"))
    assert cluster.credentials.why_over(found).error == "the token 'guest' was revoked"
    for unknown in (None, "", "secret", "forged", "x" * 100_000):
        assert cluster.credentials.refusal(unknown) == NO_TOKEN


def test_the_next_end_is_that_of_a_token_without_a_later_secret() -> None:
    cluster = Cluster()
    assert cluster.credentials.seconds_to_next_end == math.inf
    cluster.add("endless", "1")
    cluster.add("later", "2", until=cluster.now + 9 * DAY)
    cluster.add("guest", "3", until=cluster.now + 2 * DAY)
    assert cluster.credentials.next_end == ("guest", cluster.now + 2 * DAY)
    assert cluster.credentials.ends(3 * DAY, 9) == [("guest", cluster.now + 2 * DAY)], (
        "others end later, or have a later secret"
    )
    cluster.now += DAY
    assert cluster.credentials.seconds_to_next_end == 86_400.0
    rotated = rotate_token("guest", Secret(hash_token("4")), cluster.now, cluster.now + DAY)
    cluster.declare(rotated)
    assert cluster.credentials.next_end == ("later", cluster.now + 8 * DAY), "the guest has a secret without an end"
    cluster.now += 9 * DAY
    assert cluster.credentials.next_end is None, "what has ended is no warning for ever"


@pytest.mark.parametrize("off", [YEAR, -YEAR])
def test_a_wrong_clock_neither_ends_nor_lengthens_a_token_and_is_named(off: int) -> None:
    cluster, boot = Cluster(), 10**12
    true = cluster.now
    cluster.add("valid", "valid", until=true + 90 * DAY)
    cluster.add("ended", "ended", until=true - DAY)
    clock = HubClock(lambda: true + off, lambda: boot, lambda: False)
    clock.wrote(boot, boot, Written(true, by_store=True))
    credentials = Credentials(False, clock.agreed, clock.doubted)
    credentials.refresh(cluster.state)
    valid = credentials.identify("valid")
    assert valid is not None
    assert credentials.revoked([valid]) == [], "nor does its link end"
    assert credentials.identify("ended") is None
    side = "ahead of" if off > 0 else "behind"
    assert f"this machine's clock is 365.0 days {side} the store's, and was" in credentials.refusal("ended").error


@pytest.mark.slow
async def test_a_link_ends_with_its_token_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_links, "LOOK_INTERVAL_S", 0.02)
    store = MemoryStore()
    async with running_hub(store, tokens_required=True, **SOON) as hub:
        await declare(hub, store, token("ops", "admin"))
        end = time.time_ns() + 3_600_000_000_000
        press = TokenIdentity("press", hash_token("edge"), Scope.EDGE, edge="press-1")
        await declare(hub, store, add_token(press, end))
        assert (await get(hub, "/v1/whoami", "edge"))[1]["until"].startswith("20")
        assert (await get(hub, "/v1/status", "admin"))[1]["cluster_log"]["next_end"]["token"] == "press"
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        epochs = MemoryEpochs()
        async with running_link(hub, log, EDGE, "edge", epochs) as link:
            await log.until_released(1)
            monkeypatch.setattr(hub._declared.credentials, "_now", lambda: end)
            await until(lambda: link.state is not LinkState.CONNECTED)
            assert "the token 'press' ended at 20" in link.last_error
            log.append(*records(1, [b"b"]))
            await until(lambda: "(401): the token 'press' ended at 20" in link.last_error)
            assert link.state is LinkState.REFUSED
        async with aiohttp.ClientSession() as session:
            answer = await session.get(f"{hub.url}/v1/whoami", headers={"Authorization": "Bearer edge"})
            assert answer.status == 401
            assert "the token 'press' ended" in (await answer.json())["detail"].replace('"', "'")
            assert answer.headers["WWW-Authenticate"].startswith('Bearer error="invalid_token", error_description="the')
            assert (await session.get(f"{hub.url}/v1/whoami")).headers["WWW-Authenticate"] == "Bearer"
        assert "weft_hub_token_next_end_seconds +Inf" in (await get(hub, "/metrics", "admin"))[1]
        await declare(hub, store, rotate_token("press", Secret(hash_token("new")), time.time_ns(), 0))
        async with running_link(hub, log, EDGE, "new", epochs):
            await log.until_released(2)


# --- When a token was last used is known to the hour, at the cost of a write an hour, however many tokens are used


class Process:
    def __init__(self, store: MemoryStore, declared: set[str]) -> None:
        self.used: dict[str, int] = {}
        self.now = 0.0
        self.use = TokenUse(store, lambda: self.used, declared.__contains__, lambda: self.now)

    async def minute(self) -> None:
        self.now += LOOK_S
        await self.use.look()


class CountingStore(MemoryStore):
    writes = 0

    async def create(self, key: str, data):  # type: ignore[no-untyped-def]
        self.writes += 1
        return await super().create(key, data)

    async def swap(self, key: str, data, expected_etag: str):  # type: ignore[no-untyped-def]
        self.writes += 1
        return await super().swap(key, data, expected_etag)


async def test_a_first_use_is_known_in_a_minute_and_later_ones_within_the_hour() -> None:
    store = MemoryStore()
    one, two = Process(store, {"press", "ops"}), Process(store, {"press", "ops"})
    one.used["press"] = 1
    await one.minute()
    assert await last_uses(store) == {"press": 1}
    two.used |= {"press": 5, "ops": 3}
    await two.minute()
    one.used["press"] = 4
    for _ in range(int(WRITE_S / LOOK_S) + 1):
        await one.minute()
    assert await last_uses(store) == {"press": 5, "ops": 3}, "the latest of all processes"


async def test_a_day_of_a_thousand_tokens_is_a_write_an_hour() -> None:
    store = CountingStore()
    names = [f"edge-{n}" for n in range(1_000)]
    process = Process(store, set(names))
    for minute in range(24 * 60):
        process.used = dict.fromkeys(names, minute)
        await process.minute()
    assert store.writes <= 25


async def test_a_withdrawn_token_leaves_the_object() -> None:
    store, declared = MemoryStore(), {"press", "ops"}
    process = Process(store, declared)
    process.used |= {"press": 1, "ops": 2}
    await process.minute()
    declared.discard("press")
    process.used = {"ops": 3}
    for _ in range(int(WRITE_S / LOOK_S) + 1):
        await process.minute()
    assert await last_uses(store) == {"ops": 3}


async def test_an_object_that_cannot_be_read_begins_again() -> None:
    store = MemoryStore()
    await store.create(hub_keys.LAST_USES, b"nonsense")
    assert await last_uses(store) == {}
    process = Process(store, {"press"})
    process.used["press"] = 7
    await process.minute()
    assert await last_uses(store) == {"press": 7}
