"""Rules for a hub's configuration beyond the shape of its values."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from weft.cloud_hub.auth.certificates import is_reader_name
from weft.config.errors import Finding
from weft.config.listeners import HubTls, Jwt
from weft.config.models import HubConfig
from weft.config.units import Address, parse_bind, quoted
from weft.hub_api.rights import InvalidGrant, Right, check_right, grants_of, parse_grant
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.shard.placement import is_shard_count, nearest_shard_counts


def check(config: HubConfig) -> list[Finding]:
    """Return all errors of ``config``, without access to store or network."""
    findings: list[Finding] = []
    findings += _reachable(config)
    if config.tls is not None:
        findings += _readers(config.tls)
    if config.tls is not None and config.tls.crl_file is not None and config.tls.client_ca is None:
        findings.append(Finding(("tls", "crl_file"), "needs `client_ca`: without it, no edge shows a certificate"))
    if config.jwt is not None:
        findings += _jwt(config.jwt)
    if config.chunk_bytes_max > config.limits.pending_bytes:
        findings.append(Finding(("chunk_bytes_max",), "expected at most limits.pending"))
    if config.shards is not None and not is_shard_count(config.shards):
        nearest = " or ".join(map(str, nearest_shard_counts(config.shards)))
        findings.append(Finding(("shards",), f"expected a power of two, got {config.shards}. Set it to {nearest}"))
    if config.shards is not None and config.shards_max is not None and config.shards_max < config.shards:
        message = f"expected at least `shards`, {config.shards}, or the hub splits none by itself"
        findings.append(Finding(("shards_max",), message))
    tables = config.tables
    if tables is not None and "iceberg" in tables.formats and tables.iceberg_interval_s > tables.vacuum_after_s / 4:
        message = "expected at most a quarter of `vacuum_after`, or the newest snapshot could name deleted files"
        findings.append(Finding(("tables", "iceberg_interval"), message))
    findings += _advertised(config)
    findings += _regions(config)
    return findings


def _advertised(config: HubConfig) -> Iterator[Finding]:
    """Yield the URLs for edges that none of them could use."""
    urls = config.advertise or ()
    for position, url in enumerate(urls):
        if config.tls is not None and url.startswith("http:"):
            instead = f"https:{url.removeprefix('http:')}"
            message = f"expected https: with `tls` the hub accepts nothing else. Write {instead}"
            yield Finding(("advertise", position), message)
        if url in urls[:position]:
            message = f"is listed twice: {quoted(url)}. Each process needs a URL of its own"
            yield Finding(("advertise", position), message)


def _regions(config: HubConfig) -> Iterator[Finding]:
    """Yield the regions to which no link can lead."""
    for name, region in config.regions.items():
        if not valid_name(name):
            yield Finding(("regions", name), f"expected {NAME_RULE}")
        if (region.certificate is None) != (region.key is None):
            yield Finding(("regions", name), "expected `certificate` and `key`, or neither of them")
        for position, pattern in enumerate(region.streams):
            if not valid_name(pattern.replace("*", "x")):
                message = f"expected names of streams, with `*` for any characters ({NAME_RULE}), got {quoted(pattern)}"
                yield Finding(("regions", name, "streams", position), message)
        for position, url in enumerate(region.to):
            is_open = url.startswith("http:") and not Address(urlsplit(url).hostname or "", 0).is_loopback
            if is_open and region.token_file is not None and config.plain_http == "loopback":
                message = "expected https: the token and all records would cross the network in clear text"
                yield Finding(("regions", name, "to", position), message)


def _readers(tls: HubTls) -> Iterator[Finding]:
    """Yield what is wrong with the certificates of readers."""
    if tls.readers is not None and tls.client_ca is None:
        yield Finding(("tls", "readers"), "needs `client_ca`: without it, no client shows a certificate")
    for name, reader in (tls.readers or {}).items():
        path = "tls", "readers", name
        if not is_reader_name(name):
            yield Finding(path, "expected CN= and a common name, or OU= and an organisational unit")
        if not valid_name(reader.tenant):
            yield Finding((*path, "tenant"), f"expected {NAME_RULE}, got {quoted(reader.tenant)}")
        for right in reader.rights:
            try:
                check_right(right)
            except InvalidGrant as error:
                message = f"{error}. A scope of tokens such as reader will do, too, or a role such as viewer"
                yield Finding((*path, "rights"), message)
                continue
            if any(parse_grant(each).right in (Right.WRITE, Right.RELAY) for each in grants_of(right)):
                yield Finding((*path, "rights"), f"{right} is for links: give edges and regions certificates or tokens")


def _jwt(jwt: Jwt) -> Iterator[Finding]:
    """Yield what is wrong with the section of an issuer."""
    if (jwt.jwks_url is None) == (jwt.jwks_file is None):
        yield Finding(("jwt",), "expected `jwks_url`, or else `jwks_file`: one of them has the keys of the issuer")
    if jwt.jwks_url is not None and jwt.jwks_url.startswith("http:"):
        parts = urlsplit(jwt.jwks_url)
        if not Address(parts.hostname or "", 0).is_loopback:
            message = "expected https: otherwise others could replace the issuer's keys on the network"
            yield Finding(("jwt", "jwks_url"), message)
    if jwt.ca_file is not None and not (jwt.jwks_url or "").startswith("https:"):
        yield Finding(("jwt", "ca_file"), "needs a `jwks_url` with https")
    if not valid_name(jwt.tenant):
        yield Finding(("jwt", "tenant"), f"expected {NAME_RULE}, got {quoted(jwt.tenant)}")
    for role, rights in (jwt.roles or {}).items():
        for right in rights:
            try:
                check_right(right)
            except InvalidGrant as error:
                yield Finding(
                    ("jwt", "roles", role),
                    f"{error}. A scope of tokens such as reader will do, too, or a role such as operator",
                )


def _reachable(config: HubConfig) -> Iterator[Finding]:
    """Yield what is missing where other machines reach the hub: who may come, and what keeps tokens secret."""
    yield from _reachable_at(config, config.listen, ("listen",))
    if config.kafka is not None:
        yield from _reachable_at(config, config.kafka.listen, ("kafka", "listen"))


def _reachable_at(config: HubConfig, listen: str, path: tuple[str, ...]) -> Iterator[Finding]:
    if parse_bind(listen).is_loopback or config.anonymous == "allowed_beyond_loopback":
        return
    if config.anonymous == "loopback" and config.jwt is None and (config.tls is None or config.tls.client_ca is None):
        message = (
            f"{listen} can be reached from other machines without authentication. Set `anonymous: "
            "never`, so that every request needs a token (`weft hub token add`), or bind to 127.0.0.1. "
            "`anonymous: allowed_beyond_loopback` is for a network that you trust"
        )
        yield Finding(path, message)
    elif config.tls is None and config.plain_http == "loopback":
        message = (
            f"tokens would cross the network in clear text to {listen}. Set `tls`, bind to 127.0.0.1, or set "
            "`plain_http: allowed_beyond_loopback` behind a proxy with TLS"
        )
        yield Finding(path, message)
