"""Key sets: which keys count, and the bounds of what an issuer may answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey

from tests.support.certificates import Authority
from tests.support.issuer import KeySetServer, key_of, key_set, settings
from weft.cloud_hub.auth.jwt import Issuer, KeySetUnusable, read_key_set
from weft.network.tls import TlsFiles, server_context

ALL = ("RS256", "ES256", "EdDSA")
KEY = key_of("ES256", "1")
PUBLIC = KEY.as_dict(private=False)


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
    (found,) = read_key_set(document(KEY.as_dict(private=True)), ALL).keys
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
    async with KeySetServer(key_set(KEY)).running(server_context(files)) as server:
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
        KeySetServer(key_set(KEY)).running() as server,
    ):
        monkeypatch.setenv("http_proxy", proxy.url)
        issuer = Issuer(settings(server.url), lambda: 0.0, lambda: 0)
        assert await issuer.look()
        assert issuer.find("1", "ES256") is not None
        assert (server.asked, proxy.asked) == (1, 0), "a proxy could give keys of its own"
        await issuer.close()
