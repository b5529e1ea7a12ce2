"""Tokens of an issuer: what is taken, and what is refused with which reason."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import os
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey

from tests.cloud_hub.http.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.certificates import Authority
from tests.support.speed import Stopwatch
from tests.support.tokens import ISSUER, Key, KeySetServer, claims, key_of, key_set, settings, signed
from tests.support.waiting import until
from weft.cloud_hub.auth import jwt
from weft.cloud_hub.auth.claims import JwtIdentity, JwtRefused
from weft.cloud_hub.auth.jwt import CHECKED_MAX, Issuer, Jwts, KeySetUnusable, read_key_set
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.links import open_links
from weft.hub_api.rights import Scope
from weft.hub_api.status import KeysOfIssuer
from weft.network.tls import TlsFiles, server_context
from weft.replication.runner import LinkIdentity
from weft.storage.object_store.directory import MemoryStore

KEYS: dict[str, Key] = {each: key_of(each, f"{each}-1") for each in ("ES256", "EdDSA")}
KEY = KEYS["ES256"]
NOW_S = 1_800_000_000.0


class World:
    """A hub's check of tokens with a clock of its own."""

    def __init__(self, path: Path, **more: Any) -> None:
        self.now_s = NOW_S
        self.monotonic_s = 1000.0
        self.path = path / "keys.json"
        self.path.write_bytes(key_set(*KEYS.values()))
        rules = settings(**{"jwks_file": str(self.path), **more})
        self.jwts = Jwts(rules, lambda: int(self.now_s * 1e9), lambda: None, lambda: self.monotonic_s)

    def claims(self, seconds: float = 3600, **more: Any) -> dict[str, Any]:
        return claims(seconds, lambda: self.now_s, **more)

    def token(self, seconds: float = 3600, **more: Any) -> str:
        return signed(KEY, "ES256", self.claims(seconds, **more))

    async def identity(self, token: str) -> JwtIdentity:
        return await self.jwts.check(token)

    async def refusal(self, token: str) -> str:
        with pytest.raises(JwtRefused) as caught:
            await self.jwts.check(token)
        assert token not in f"{caught.value.error} {caught.value.advice}", "no word of the token is told"
        return caught.value.error


@contextlib.asynccontextmanager
async def world_of(path: Path, **more: Any) -> AsyncIterator[World]:
    world = World(path, **more)
    try:
        yield world
    finally:
        await world.jwts.close()


def part(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


async def test_tokens_of_every_algorithm_open_what_their_claims_say(tmp_path: Path) -> None:
    rsa = key_of("RS256", "RS256-1")
    async with world_of(tmp_path, tenant="acme") as world:
        world.path.write_bytes(key_set(rsa, *KEYS.values()))
        for algorithm, key in {"RS256": rsa, **KEYS}.items():
            found = await world.identity(signed(key, algorithm, world.claims(scope="read:press-* edges openid")))
            assert (found.name, found.tenant, found.scope) == ("jwt:press-1", "acme", Scope.GRANTED)
            assert found.rights.texts == ["read:press-*", "edges"]
        renamed = signed(KEYS["EdDSA"], "Ed25519", world.claims())
        assert (await world.identity(renamed)).rights.texts == ["read:*", "edges"]
        edge = await world.identity(world.token(scope=["write:telemetry"]))
        assert (edge.edge, edge.rights.texts) == ("press-1", ["write:telemetry"])


async def test_forged_tokens_are_refused(tmp_path: Path) -> None:
    async with world_of(tmp_path) as world:
        good = world.token()
        await world.identity(good)
        header, body, signature = good.split(".")
        stranger = key_of("ES256", KEY.kid or "")
        assert await world.refusal(signed(stranger, "ES256", world.claims())) == "the signature of the JWT is wrong"
        changed = part(world.claims(sub="admin"))
        assert await world.refusal(f"{header}.{changed}.{signature}") == "the signature of the JWT is wrong"
        assert await world.refusal(f"{header}.{body}.") == "the signature of the JWT is wrong"
        for name in ("none", "None", "HS256", "HS512", "ES384", "", 7, None, ["ES256"]):
            token = f"{part({'alg': name, 'kid': KEY.kid})}.{body}.{signature}"
            assert await world.refusal(token) == "the algorithm of the JWT is not allowed", name
        # The classic: the public key, which everyone knows, as the secret of an HMAC.
        secret = KEY.as_pem(private=False)
        text = f"{part({'alg': 'HS256', 'kid': KEY.kid})}.{body}"
        forged = part(hmac.new(secret, text.encode(), hashlib.sha256).digest())
        assert await world.refusal(f"{text}.{forged}") == "the algorithm of the JWT is not allowed"
        # An algorithm that is allowed, with the key of another one.
        mixed = f"{part({'alg': 'EdDSA', 'kid': KEY.kid})}.{body}.{signature}"
        assert await world.refusal(mixed) == "the issuer has no such key as the JWT names"


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "' OR 1=1 --", "http://127.0.0.1/", "\x00", "", "ES256-2", "x" * 300]
)
async def test_a_key_is_only_looked_for_by_its_name(tmp_path: Path, name: str) -> None:
    async with world_of(tmp_path) as world:
        await world.identity(world.token())
        token = signed(key_of("ES256", name), "ES256", world.claims(), kid=name)
        assert await world.refusal(token) in (
            "the issuer has no such key as the JWT names",
            "the JWT names no key",
            "this is not a JWT",
        )


async def test_a_key_that_a_token_brings_along_counts_for_nothing(tmp_path: Path) -> None:
    stranger = key_of("ES256", KEY.kid or "")
    public = {"kty": "EC", **stranger.as_dict(private=False)}
    async with world_of(tmp_path) as world:
        for more in ({"jwk": public}, {"jku": "http://127.0.0.1:9/keys"}, {"x5u": "http://127.0.0.1:9/chain"}):
            token = signed(stranger, "ES256", world.claims(), **more)
            assert await world.refusal(token) == "the signature of the JWT is wrong"
        demanding = f"{part({'alg': 'ES256', 'kid': KEY.kid, 'crit': ['b64'], 'b64': False})}.e30.AAAA"
        assert await world.refusal(demanding) == "the JWT requires extensions that this hub does not support"


@pytest.mark.parametrize(
    ("seconds", "more", "why"),
    [
        (-6, {}, "the JWT of 'press-1' expired at 2027-01-15T07:59:54.000000000Z"),
        (60, {"nbf": NOW_S + 6}, "the JWT of 'press-1' is not valid before 2027-01-15T08:00:06.000000000Z"),
        (60, {"iss": "https://login.test/other"}, "the JWT has another issuer"),
        (60, {"iss": None}, "the JWT has no claim 'iss'"),
        (60, {"aud": "grafana"}, "the JWT of 'press-1' is for another audience"),
        (60, {"aud": ["grafana", "jenkins"]}, "the JWT of 'press-1' is for another audience"),
        (60, {"aud": {"weft-hub": 1}}, "the JWT of 'press-1' is for another audience"),
        (60, {"aud": None}, "the JWT has no claim 'aud'"),
        (60, {"exp": None}, "the JWT has no claim 'exp'"),
        (60, {"exp": "tomorrow"}, "the claim 'exp' of the JWT of 'press-1' is not a time"),
        (60, {"exp": True}, "the claim 'exp' of the JWT of 'press-1' is not a time"),
        (60, {"exp": float("inf")}, "the claim 'exp' of the JWT of 'press-1' is not a time"),
        (60, {"exp": float("nan")}, "the claim 'exp' of the JWT of 'press-1' is not a time"),
        (60, {"exp": 10**400}, "the claim 'exp' of the JWT of 'press-1' is not a time"),
        (60, {"sub": None}, "the JWT has no claim 'sub'"),
        (60, {"sub": "a\nb"}, "the claim 'sub' of the JWT is not 1 to 1024 printable characters"),
        (60, {"scope": None}, "the JWT of 'press-1' has no claim 'scope'"),
        (60, {"scope": "openid email"}, "the claim 'scope' of the JWT of 'press-1' has no right at this hub"),
        (60, {"scope": "admin status acts"}, "the claim 'scope' of the JWT of 'press-1' has no right at this hub"),
        (60, {"scope": 7}, "the claim 'scope' of the JWT of 'press-1' is not a list of rights"),
        (60, {"scope": "edge", "sub": "no edge!"}, "the claim 'sub' of the JWT of 'no edge!' names no edge"),
    ],
)
async def test_what_does_not_fit_is_refused_with_the_reason(
    tmp_path: Path, seconds: float, more: dict[str, Any], why: str
) -> None:
    async with world_of(tmp_path) as world:
        assert await world.refusal(world.token(seconds, **more)) == why


async def test_the_leeway_is_for_the_clocks_of_both(tmp_path: Path) -> None:
    async with world_of(tmp_path) as world:
        late = await world.identity(world.token(-4, nbf=world.now_s + 4))
        assert world.jwts.why_over(late) is None
        world.now_s += 1
        why = world.jwts.why_over(late)
        assert why is not None
        assert why.error == "the JWT of 'press-1' expired at 2027-01-15T07:59:56.000000000Z"


DEEP = part(b'{"alg":' + b"[" * 3000) + ".e30.AA"


@pytest.mark.parametrize(
    "token", ["eyJ.e30.", "eyJ..", "eyJhbGciOiJFUzI1NiJ9.!.AA", "eyJ9.e30.AA", "eyJ.eyJ.eyJ", DEEP]
)
async def test_what_is_no_jwt_is_refused(tmp_path: Path, token: str) -> None:
    async with world_of(tmp_path) as world:
        assert await world.refusal(token) in ("this is not a JWT", "the algorithm of the JWT is not allowed")


async def test_a_token_that_is_too_long_costs_no_more_than_a_look(tmp_path: Path) -> None:
    async with world_of(tmp_path) as world:
        assert "more than 8,000" in await world.refusal(world.token(more="x" * 8000))


async def test_claims_name_tenant_and_edge_and_roles_have_rights(tmp_path: Path) -> None:
    rules: dict[str, Any] = {
        "tenant_claim": "https://weft.test/tenant",
        "edge_claim": "device.name",
        "rights_claim": "realm_access.roles",
        "roles": {
            "operators": ("admin",),
            "presses": ("edge",),
            "line 1": ("read:press-1-*", "edges"),
            "shift": ("viewer",),
        },
    }
    async with world_of(tmp_path, **rules) as world:

        def token(*roles: str, **more: Any) -> str:
            named = {"https://weft.test/tenant": "acme", "realm_access": {"roles": list(roles)}, **more}
            return world.token(**named)

        found = await world.identity(token("presses", "unknown", device={"name": "press-7"}))
        assert (found.tenant, found.edge, found.rights.texts) == ("acme", "press-7", ["write:*"])
        reader = await world.identity(token("line 1"))
        assert (reader.scope, reader.rights.texts) == (Scope.GRANTED, ["read:press-1-*", "edges"])
        assert (await world.identity(token("shift"))).rights.texts == ["read:*", "edges"]
        assert (await world.identity(token("operators"))).scope is Scope.ADMIN
        assert "no claim 'device.name'" in await world.refusal(token("presses"))
        assert "no right at this hub" in await world.refusal(token("reader")), "only roles count where there are some"
        assert "names no tenant" in await world.refusal(token("line 1", **{"https://weft.test/tenant": "a/b"}))
        for role in ("shift", "operators", "presses"):
            of_hub = token(role, **{"https://weft.test/tenant": "weft-audit"}, device={"name": "press-7"})
            assert "names the hub's own tenant weft-audit" in await world.refusal(of_hub), (
                "which has acts of all tenants"
            )


async def test_checked_tokens_are_remembered_within_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.cloud_hub.auth.jwt.CHECKED_MAX", 4)
    assert CHECKED_MAX >= 1000
    async with world_of(tmp_path) as world:
        tokens = [world.token(sub=f"reader-{number}") for number in range(5)]
        for token in [*tokens, *tokens[1:]]:
            await world.identity(token)
        assert verified(world.jwts) == 5, "the last four were known"
        await world.identity(tokens[0])
        assert verified(world.jwts) == 6, "the first was forgotten"
        world.now_s += 3606
        assert "expired" in await world.refusal(tokens[0]), "what is remembered ends, too"


def verified(jwts: Jwts) -> int:
    return jwts.figures()[2]


async def test_a_withdrawn_key_ends_its_tokens(tmp_path: Path) -> None:
    async with world_of(tmp_path) as world:
        token = world.token()
        found = await world.identity(token)
        world.path.write_bytes(key_set(KEYS["EdDSA"]))
        world.monotonic_s += 100
        assert await world.jwts.issuer.look()
        why = world.jwts.why_over(found)
        assert why is not None
        assert why.error == "the issuer withdrew the key of the JWT of 'press-1'"
        assert await world.refusal(token) == "the issuer has no such key as the JWT names"


async def test_keys_that_cannot_be_read_again_count_until_a_moment_that_is_said(tmp_path: Path) -> None:
    async with world_of(tmp_path, keep_s=600.0) as world:
        token = world.token()
        await world.identity(token)
        world.path.unlink()
        world.monotonic_s += 590
        world.now_s += 590
        await world.jwts.issuer.look()
        view = world.jwts.view()
        assert view.kept_until == "2027-01-15T08:10:00.000000000Z"
        assert "no such file" in (view.trouble or "")
        await world.identity(token)
        unknown = signed(key_of("ES256", "new"), "ES256", world.claims())
        with pytest.raises(JwtRefused) as caught:
            await world.jwts.check(unknown)
        assert caught.value.retry_s, "it may be right: the issuer was not asked"
        world.monotonic_s += 20
        with pytest.raises(JwtRefused) as caught:
            await world.jwts.check(token)
        assert caught.value.error == "the hub has no keys of the issuer"
        assert caught.value.retry_s


async def test_a_token_that_is_newer_than_the_known_keys_may_be_right(tmp_path: Path) -> None:
    async with world_of(tmp_path, unknown_key_s=600.0) as world:
        rotated = key_of("ES256", "ES256-2")
        forged = signed(rotated, "ES256", world.claims(), kid="forged")
        assert await world.refusal(forged) == "the issuer has no such key as the JWT names"  # the keys were just read
        world.path.write_bytes(key_set(KEY, rotated))
        world.now_s += 60
        world.monotonic_s += 60
        token = signed(rotated, "ES256", world.claims())
        with pytest.raises(JwtRefused) as caught:
            await world.jwts.check(token)
        assert caught.value.retry_s, "the issuer may not be asked again yet, and the key may be new"
        assert await world.refusal(forged) == "the issuer has no such key as the JWT names"
        world.now_s += 600
        world.monotonic_s += 600
        assert (await world.identity(token)).name == "jwt:press-1"


async def test_an_unknown_key_has_the_issuer_asked_once_in_an_interval() -> None:
    async with KeySetServer(key_set(KEY)).running() as server:
        at = [0.0]
        jwts = Jwts(settings(server.url), lambda: int(NOW_S * 1e9), lambda: None, lambda: at[0])
        usual = claims(now=lambda: NOW_S)
        forged = [signed(KEY, "ES256", usual, kid=f"forged-{each}") for each in range(30)]
        answers = await asyncio.gather(*map(jwts.check, forged), return_exceptions=True)
        assert {str(each) for each in answers} == {"the issuer has no such key as the JWT names"}
        assert server.asked == 1, "all waited for one answer"
        at[0] += 11
        rotated = key_of("ES256", "ES256-2")
        server.document = key_set(KEY, rotated)
        for _ in range(3):
            assert (await jwts.check(signed(rotated, "ES256", usual))).name == "jwt:press-1"
        assert server.asked == 2
        foreign = signed(key_of("ES256", "theirs"), "ES256", {**usual, "iss": f"{ISSUER}/other"})
        at[0] += 11
        with pytest.raises(JwtRefused, match="has another issuer"):
            await jwts.check(foreign)
        assert server.asked == 2, "the issuer cannot have the key of another one"
        await jwts.close()


# --- Key sets: which keys count, and the bounds of what an issuer may answer


ALL = ("RS256", "ES256", "EdDSA")
KEYS_KEY = key_of("ES256", "1")
PUBLIC = KEYS_KEY.as_dict(private=False)


def document(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


def test_only_keys_for_signatures_of_allowed_algorithms_count() -> None:
    others: list[Any] = [
        *(
            {**PUBLIC, **each}
            for each in (
                {"use": "enc"},
                {"key_ops": ["sign"]},
                {"alg": "ES384"},
                {"alg": "HS256"},
                {"kid": 7},
                {"x": "AAAA"},
                {"x": None},
                {"crv": ["P-256"]},
            )
        ),
        {"kty": "EC"},
        {},
        7,
        None,
        "key",
        {"kty": ["EC"]},
        {"kty": "RSA"},
        {"kty": "RSA", "n": 7, "e": None},
        OctKey.generate_key(256).as_dict(),
        ECKey.generate_key("P-384").as_dict(private=False),
        {"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "short"},
    ]
    found = read_key_set(document(*others, {**PUBLIC, "use": "sig", "alg": "ES256", "key_ops": ["verify"]}), ALL)
    assert [(each.name, each.algorithm) for each in found.keys] == [("1", "ES256")]
    assert found.passed_over == len(others)
    with pytest.raises(KeySetUnusable, match="none of its 1 keys is for signatures of RS256"):
        read_key_set(document(PUBLIC), ("RS256",))


def test_a_private_key_that_an_issuer_shows_is_taken_for_its_public_part() -> None:
    (found,) = read_key_set(document(KEYS_KEY.as_dict(private=True)), ALL).keys
    assert not found.key.is_private


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"<html>", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no key set"),
        (b'{"keys": {}}', "no key set"),
        (b'{"keys": []}', "none of its 0 keys"),
        (document(*[PUBLIC] * 65), "65 keys, more than 64"),
        (b" " * ((256 << 10) + 1), "more than 256 KiB"),
    ],
)
def test_what_is_no_key_set_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(KeySetUnusable, match=why):
        read_key_set(data, ALL)


def test_a_key_whose_check_would_take_long_is_passed_over() -> None:
    exponent = RSAKey.generate_key(2048).as_dict(private=False)
    exponent["e"] = f"{exponent['n']}"[:-4] + "AAAB"
    assert read_key_set(document(exponent, PUBLIC), ALL).passed_over == 1


def test_a_token_without_the_name_of_a_key_has_to_leave_no_choice() -> None:
    one, two = key_of("ES256", "1"), key_of("ES256", "2")
    alone, both = (read_key_set(key_set(*keys), ALL) for keys in ([one], [one, two]))
    assert alone.find(None, "ES256") is not None
    assert both.find(None, "ES256") is None
    assert alone.find(None, "RS256") is None
    second = both.find("2", "ES256")
    assert second is not None
    assert second.name == "2"


@pytest.mark.parametrize(
    ("status", "data", "why"),
    [
        (404, b"", "the issuer answered with HTTP status 404"),
        (302, b"", "the issuer answered with HTTP status 302"),
        (200, b" " * (1 << 20), "more than 256 KiB"),
        (200, b"\xff\xfe", "not JSON"),
    ],
)
async def test_an_issuer_may_answer_anything(status: int, data: bytes, why: str) -> None:
    async with KeySetServer(data).running() as server:
        server.status = status
        issuer = Issuer(settings(server.url), lambda: 0.0, lambda: 0)
        assert not await issuer.look()
        assert issuer.trouble == why
        assert (issuer.count, issuer.kept_until()) == (0, None)
        await issuer.close()


async def test_an_issuer_that_is_away_is_named() -> None:
    issuer = Issuer(settings("http://127.0.0.1:9/keys"), lambda: 0.0, lambda: 0)
    assert not await issuer.look()
    assert "127.0.0.1:9" in (issuer.trouble or "")
    await issuer.close()


async def test_a_key_set_over_tls_is_that_of_a_known_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.sign("issuer")
    files = TlsFiles(certificate=own.certificate, key=own.key)
    async with KeySetServer(key_set(KEYS_KEY)).running(server_context(files)) as server:
        issuer = Issuer(settings(server.url, ca_file=authority.path), lambda: 0.0, lambda: 0)
        assert await issuer.look()
        assert issuer.count == 1
        for rules, why in (
            (settings(server.url), "certificate verify failed"),
            (settings(server.url, ca_file=Authority(tmp_path, "other").path), "certificate verify failed"),
            (settings(server.url, ca_file=str(tmp_path / "none")), "no such file"),
            (settings(server.url, ca_file=own.key), "no certificate"),
        ):
            stranger = Issuer(rules, lambda: 0.0, lambda: 0)
            assert not await stranger.look()
            assert why in (stranger.trouble or "").lower(), rules
            assert stranger.count == 0
        await issuer.close()


async def test_a_key_set_of_this_machine_is_asked_for_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        KeySetServer(key_set(key_of("ES256", "proxy"))).running() as proxy,
        KeySetServer(key_set(KEYS_KEY)).running() as server,
    ):
        monkeypatch.setenv("http_proxy", proxy.url)
        issuer = Issuer(settings(server.url), lambda: 0.0, lambda: 0)
        assert await issuer.look()
        assert issuer.find("1", "ES256") is not None
        assert (server.asked, proxy.asked) == (1, 0), "a proxy could give keys of its own"
        await issuer.close()


# --- A hub with an issuer of tokens: requests and links with real tokens, keys that change, an issuer that hangs


def token(key: Key = KEYS_KEY, seconds: float = 600, **more: Any) -> str:
    return signed(key, "ES256", claims(seconds, **more))


def of_issuer(hub: Hub) -> KeysOfIssuer:
    found = hub.status().jwt
    assert isinstance(found, KeysOfIssuer)
    return found


@pytest.mark.slow
async def test_requests_say_what_a_token_opens_and_why_it_does_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    roles = {"reader": ("reader",), "operator": ("admin",)}
    async with (
        KeySetServer(key_set(KEYS_KEY)).running() as server,
        running_hub(MemoryStore(), jwt=settings(server.url, roles=roles, tenant="acme")) as hub,
    ):
        ends = time.time() + 600
        status, reported = await get(hub, "/v1/whoami", token(exp=int(ends)))
        assert (status, reported["token"], reported["tenant"], reported["scope"]) == (
            200,
            "jwt:press-1",
            "acme",
            "granted",
        )
        assert reported["rights"] == ["read:*", "edges"]
        assert reported["until"] == time.strftime("%Y-%m-%dT%H:%M:%S.000000000Z", time.gmtime(int(ends)))
        assert (await get(hub, "/v1/whoami"))[0] == 401, "with an issuer, every request needs a token"
        assert (await get(hub, "/v1/streams?tenant=other", token()))[0] == 403
        expired = token(seconds=-600)
        async with aiohttp.ClientSession() as session:
            answer = await session.get(f"{hub.url}/v1/streams", headers={"Authorization": f"Bearer {expired}"})
            assert answer.status == 401
            assert "the JWT of 'press-1' expired at 20" in (await answer.json())["detail"]
            assert "expired at" in answer.headers["WWW-Authenticate"]
        status, reported = await get(hub, "/v1/streams", "eyJ" + "x" * 8000 + ".e30.")
        assert (status, "more than 8,000" in reported["detail"]) == (401, True)
        status, _ = await get(hub, "/v1/status", token())
        assert status == 403
        _, facts = await get(hub, "/v1/status", token(scope="operator"))
        assert (facts["jwt"]["keys"], facts["jwt"]["trouble"]) == (1, None)
        _, metrics = await get(hub, "/metrics", token(scope="operator"))
        assert "weft_hub_jwt_keys 1" in metrics
        assert "weft_hub_jwt_keys_failing_seconds 0" in metrics
        async with running_link(
            hub, EdgeLog(), LinkIdentity("acme", "press-2", 7, "test"), token(scope="reader")
        ) as link:
            await until(lambda: "token" in (link.last_error or ""))
    lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == "weft.events"]
    assert [each["reason"] for each in lines if "expired" in each["reason"]], "refusals are events with their reason"
    assert {"token jwt:press-1", "address 127.0.0.1"} <= {each["owner"] for each in lines}
    assert expired.split(".")[2] not in caplog.text


@pytest.mark.slow
async def test_short_tokens_and_changing_keys_lose_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_links, "LOOK_INTERVAL_S", 0.05)
    rules = {"leeway_s": 0.0, "unknown_key_s": 0.1, "roles": {"edge": ("edge",), "reader": ("reader",)}}
    path, count, connected = tmp_path / "token", 60, set[str]()

    def write(key: Key) -> None:
        (tmp_path / "new").write_text(token(key, 1.0, scope="edge", nbf=None))
        os.replace(tmp_path / "new", path)

    async with (
        KeySetServer(key_set(KEYS_KEY)).running() as server,
        running_hub(MemoryStore(), jwt=settings(server.url, **rules)) as hub,
    ):
        log, at = EdgeLog(), [KEYS_KEY]
        write(KEYS_KEY)
        async with running_link(hub, log, EDGE, token_file=str(path)) as link:
            for number in range(count):
                if number % 20 == 10:  # the issuer shows a new key, signs with it, and withdraws the old one
                    at.append(key_of("ES256", str(len(at) + 1)))
                    server.document = key_set(*at[-2:])
                if number % 20 == 15:
                    server.document = key_set(at[-1])
                write(at[-1])
                log.append(*records(number, [b"%d" % number]))
                await asyncio.sleep(0.08)
                connected |= {each.connected_since for each in hub.status().links}
            await log.until_released(count)
            assert link.last_error is None or "key" in link.last_error or "expired" in link.last_error
        _, answer = await get(hub, "/v1/streams/telemetry/records?since=0", token(at[-1], scope="reader"))
        assert [each["seq"] for each in answer["records"]] == list(range(count)), "each once, in their order"
        assert len(connected) >= 3, "links ended with their tokens, and came again with others"


@pytest.mark.slow
async def test_a_thousand_new_tokens_cost_little_and_keep_no_one_waiting() -> None:
    edges = {each: key_of(each, each) for each in ("RS256", "ES256", "EdDSA")}
    async with (
        KeySetServer(key_set(*edges.values())).running() as server,
        running_hub(MemoryStore(), jwt=settings(server.url)) as hub,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=20)) as session,
    ):
        jwts = hub._declared.credentials.jwts
        assert jwts is not None
        figures = {}
        for algorithm, key in edges.items():
            tokens = [signed(key, algorithm, claims(sub=f"reader-{each}")) for each in range(1000)]
            await jwts.check(tokens[0])
            began = time.thread_time()
            for each in tokens:
                await jwts.check(each)
            figures[algorithm] = (time.thread_time() - began) * 1000
        print("microseconds per verification:", {name: round(ms) for name, ms in figures.items()})
        assert max(figures.values()) < 2000, "a verification takes some 0.1 ms"

        async def ask(each: int) -> int:
            bearer = signed(edges["ES256"], "ES256", claims(sub=f"other-{each}"))
            async with session.get(f"{hub.url}/v1/whoami", headers={"Authorization": f"Bearer {bearer}"}) as answer:
                return answer.status

        assert set(await asyncio.gather(*map(ask, range(1000)))) == {200}


@pytest.mark.slow
async def test_an_issuer_that_hangs_harms_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwt, "WAIT_S", 0.5)
    monkeypatch.setattr(jwt, "READ_S", 1.0)
    async with (
        KeySetServer(key_set(KEYS_KEY)).running() as server,
        running_hub(MemoryStore(), jwt=settings(server.url, unknown_key_s=0.1, roles={"reader": ("admin",)})) as hub,
    ):
        assert (await get(hub, "/v1/whoami", token()))[0] == 200
        server.hangs = True
        await asyncio.sleep(0.15)
        strangers = [
            asyncio.create_task(get(hub, "/v1/streams", token(key_of("ES256", f"new-{n}")))) for n in range(50)
        ]
        took = []
        for _ in range(20):
            stopwatch = Stopwatch()
            assert (await get(hub, "/v1/whoami", token()))[0] == 200, "its key is known"
            assert (await get(hub, "/healthz"))[0] == 200
            took.append(stopwatch.seconds())
        answers = await asyncio.gather(*strangers)
        assert {status for status, _ in answers} == {503}
        assert "could not be read again" in answers[0][1]["detail"]
        assert statistics.median(took) < 0.4, "no one waits for the issuer whose key is known"
        await until(lambda: of_issuer(hub).trouble is not None)
        facts = (await get(hub, "/v1/status", token()))[1]["jwt"]
        assert facts["trouble"] == "no answer within 1 s"
        assert facts["kept_until"].startswith("20")
        server.hangs = False
        await until(lambda: of_issuer(hub).trouble is None)


@pytest.mark.slow
async def test_a_hub_starts_without_its_issuer() -> None:
    server = KeySetServer(key_set(KEYS_KEY))
    server.status = 500
    async with server.running(), running_hub(MemoryStore(), jwt=settings(server.url, unknown_key_s=0.1)) as hub:
        status, reported = await get(hub, "/v1/whoami", token())
        assert (status, reported["detail"]) == (503, "the hub has no keys of the issuer")
        assert "HTTP status 500" in reported["advice"]
        async with running_link(hub, EdgeLog(), LinkIdentity("default", "press-1", 7, "test"), token()) as link:
            await until(lambda: "(503): the hub has no keys of the issuer" in (link.last_error or ""))
        server.status = 200
        with contextlib.suppress(TimeoutError):
            await until(lambda: of_issuer(hub).keys == 1)
        assert (await get(hub, "/v1/whoami", token()))[0] == 200


@pytest.mark.slow
async def test_links_of_one_bearer_count_together_whatever_tokens_they_came_with() -> None:
    roles = {"edge": ("edge",), "admin": ("admin",)}
    async with (
        KeySetServer(key_set(KEYS_KEY)).running() as server,
        running_hub(MemoryStore(), jwt=settings(server.url, roles=roles), links_per_token_max=2) as hub,
        contextlib.AsyncExitStack() as links,
    ):
        for number in range(3):
            bearer = token(seconds=600 + number, scope="edge")
            await links.enter_async_context(running_link(hub, EdgeLog(), EDGE._replace(log_id=number + 1), bearer))

        async def is_bounded() -> bool:
            _, metrics = await get(hub, "/metrics", token(scope="admin"))
            return 'bound="limits.links_per_token",owner="edge default/press-1"' in metrics

        await until(is_bounded)
