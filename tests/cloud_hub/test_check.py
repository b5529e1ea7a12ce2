"""What a hub's configuration must keep to, and how it becomes the hub's own settings."""

from __future__ import annotations

import pytest

from weft.cloud_hub.check import check
from weft.commands.hub_settings import settings_of
from weft.config.errors import ConfigError
from weft.config.load import parse
from weft.config.models import HubConfig


def hub(text: str) -> HubConfig:
    return parse(text, "hub.yaml", HubConfig, check).config


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("store: s\nlisten: 0.0.0.0:80", "hub.yaml:2: listen: 0.0.0.0:80 can be reached from other machines"),
        (
            "store: s\nlisten: 0.0.0.0:80\nanonymous: never",
            "tokens would cross the network in clear text to 0.0.0.0:80",
        ),
        ("store: s\ntls: {certificate: a, key: b, crl_file: c}", "tls.crl_file: needs `client_ca`"),
        ("store: s\nchunk_bytes_max: 128MiB", "hub.yaml:2: chunk_bytes_max: expected at most limits.pending"),
        (
            "store: s\ntables:\n  formats: [iceberg]\n  vacuum_after: 2h\n  iceberg_interval: 31m",
            "hub.yaml:5: tables.iceberg_interval: expected at most a quarter of `vacuum_after`",
        ),
        ("store: s\nshards: 16\nshards_max: 8", "hub.yaml:3: shards_max: expected at least `shards`, 16"),
        (
            "store: s\ntls: {certificate: a, key: b}\nadvertise: http://a:1",
            "hub.yaml:3: advertise[0]: expected https: with `tls` the hub accepts nothing else. Write https://a:1",
        ),
        ("store: s\nadvertise: [http://a:1, http://a:1]", "hub.yaml:2: advertise[1]: is listed twice"),
        ("store: s\nadvertise: https://$(POD).x", 'hub.yaml:2: advertise: expected the name of a host, got "$(POD).x"'),
        ("store: s\ntls:\n  certificate:", "hub.yaml:3: tls.certificate: expected a path, got nothing"),
        (
            "store: s\nregions: {east: {to: http://east.example.com, token_file: t}}",
            "regions.east.to[0]: expected https: the token and all records would cross the network in clear text",
        ),
        ("store: s\nregions: {east: {to: https://e, streams: [Press]}}", "regions.east.streams[0]: expected names of"),
        ("store: s\nregions: {east: {to: https://e, certificate: c}}", "regions.east: expected `certificate` and"),
        ("store: s\nregions: {EAST: {to: https://e}}", "regions.EAST: expected lower-case letters"),
        ("store: ftp://x", "hub.yaml:1: store: expected a folder, s3://bucket/prefix"),
        ("store: s3://key:secret@bucket", "hub.yaml:1: store: expected a store without credentials"),
        ("listen: 127.0.0.1:1", "hub.yaml:1: store: is missing."),
    ],
)
def test_what_cannot_work_is_refused(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hub(text)
    assert error in str(caught.value)


@pytest.mark.parametrize(
    "permission",
    [
        "anonymous: never\ntls: {certificate: a.crt, key: a.key}",
        "anonymous: never\nplain_http: allowed_beyond_loopback",
        "tls: {certificate: a.crt, key: a.key, client_ca: ca.pem}",
        "anonymous: allowed_beyond_loopback",
    ],
)
def test_a_hub_beyond_loopback_needs_tokens_or_the_words_for_it(permission: str) -> None:
    assert hub(f"store: s\nlisten: 0.0.0.0:80\n{permission}").listen == "0.0.0.0:80"


JWT = "store: s\njwt:\n  issuer: i\n  audience: a\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "jwt: expected `jwks_url`, or else `jwks_file`"),
        ("  jwks_url: https://x/keys\n  jwks_file: keys", "jwt: expected `jwks_url`, or else `jwks_file`"),
        ("  jwks_url: http://login.example.com/keys", "hub.yaml:5: jwt.jwks_url: expected https"),
        ("  jwks_url: ftp://login.example.com/keys", "hub.yaml:5: jwt.jwks_url"),
        ("  jwks_file: keys\n  ca_file: ca.pem", "jwt.ca_file: needs a `jwks_url` with https"),
        ("  jwks_file: keys\n  algorithms: [HS256]", "hub.yaml:6: jwt.algorithms"),
        ("  jwks_file: keys\n  algorithms: [none]", "hub.yaml:6: jwt.algorithms"),
        ("  jwks_file: keys\n  tenant: a/b", "hub.yaml:6: jwt.tenant: expected"),
        ("  jwks_file: keys\n  roles: {ops: [adminn]}", "expected one of write[:STREAM]"),
        ("  jwks_file: keys\n  leeway: 1h", "hub.yaml:6: jwt.leeway"),
    ],
)
def test_a_section_of_an_issuer_that_cannot_work_is_refused(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hub(JWT + text)
    assert error in str(caught.value)


READERS = "store: s\ntls:\n  certificate: a.crt\n  key: a.key\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("  readers: {CN=mara: {rights: [admin]}}", "tls.readers: needs `client_ca`"),
        ("  client_ca: ca.crt\n  readers: {mara: {rights: [admin]}}", "expected CN= and a common name"),
        ("  client_ca: ca.crt\n  readers: {OU=: {rights: [admin]}}", "expected CN= and a common name"),
        ("  client_ca: ca.crt\n  readers: {CN=mara: {rights: [adminn]}}", "expected one of write[:STREAM]"),
        ("  client_ca: ca.crt\n  readers: {CN=mara: {rights: [viewer, edge]}}", "edge is for links"),
        ("  client_ca: ca.crt\n  readers: {CN=mara: {rights: ['relay:a']}}", "relay:a is for links"),
        ("  client_ca: ca.crt\n  readers: {CN=mara: {rights: [viewer], tenant: a/b}}", "tenant: expected"),
        ("  client_ca: ca.crt\n  readers: {CN=mara: {}}", "rights"),
    ],
)
def test_rights_of_certificates_that_cannot_work_are_refused(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hub(READERS + text)
    assert error in str(caught.value)


def test_a_hub_with_an_issuer_may_be_reached_from_elsewhere() -> None:
    tls = "listen: 0.0.0.0:80\ntls: {certificate: a.crt, key: a.key}\n"
    found = settings_of(
        hub(tls + JWT + "  jwks_url: https://x/keys\n  roles: {ops: [admin, 'read:a-*']}\n  keep: 2h")
    ).jwt
    assert found is not None
    assert (found.keep_s, found.roles, found.jwks_url) == (7200, {"ops": ("admin", "read:a-*")}, "https://x/keys")
