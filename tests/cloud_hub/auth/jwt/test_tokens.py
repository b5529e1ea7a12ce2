"""Tokens of an issuer: what is taken, and what is refused with which reason."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.issuer import ISSUER, Key, KeySetServer, claims, key_of, key_set, settings, signed
from weft.cloud_hub.auth.claims import JwtIdentity, JwtRefused
from weft.cloud_hub.auth.jwt import CHECKED_MAX, Jwts
from weft.hub_api.rights import Scope

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
        (60, {"iss": "https://login.test/other"}, "the JWT is of another issuer"),
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
        with pytest.raises(JwtRefused, match="of another issuer"):
            await jwts.check(foreign)
        assert server.asked == 2, "the issuer cannot have the key of another one"
        await jwts.close()
