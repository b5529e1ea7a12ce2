"""Checks of the objects that a hub's configuration names: tokens, the store, the port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlsplit

import msgspec

from weft.cloud_hub.api.tokens import TokensUnusable, read_tokens
from weft.cloud_hub.declared.documents import TOKEN
from weft.cloud_hub.settings import JwtSettings
from weft.config.errors import Finding
from weft.config.intake.jwt import Jwt
from weft.config.intake.listeners import HubTls
from weft.config.machine import folder, not_listening, too_readable, why_unreadable
from weft.config.models import HubConfig
from weft.config.units import Address, is_bucket, parse_bind
from weft.network.tls.checks import Effect, server_findings, valid_until
from weft.network.tls.contexts import own_context
from weft.network.tls.files import TlsFiles
from weft.network.tracing import checks as tracing_checks
from weft.storage import hub_keys
from weft.storage.cluster import NEW_SHARDS, ClusterUnusable, open_cluster
from weft.storage.cluster_log.log import ClusterLog
from weft.storage.object_store import NotFound, ObjectStore, StoreError, StoreUnfit, open_store, probe
from weft.storage.store_formats import check_store

ANSWER_S_MAX = 1.0
READ_S_MAX = 10.0
"""Longest time that the number of a store's shards is waited for."""
_ANSWER_BYTES_MAX = 1 << 20


@dataclass
class HubFindings:
    """Findings about a hub's machine, by their effect on the hub."""

    needed: list[Finding] = field(default_factory=list)
    """Findings that keep the hub from starting."""
    certificates: dict[str, str] = field(default_factory=dict)
    """Last day of each certificate that is shown to others, by its file."""
    doubtful: list[Finding] = field(default_factory=list)
    """Findings that let the hub run, perhaps not as intended."""
    shards: int = NEW_SHARDS
    """Number of shards: the store's if it was read, else the configuration's, else that of a new store."""


def look(config: HubConfig, now: datetime, *, offline: bool = True) -> HubFindings:
    """Open the objects that the configuration names, except the port. Blocks; leaves nothing behind.

    Args:
        now: time for the validity of certificates.
        offline: contact no store in a bucket. Otherwise probe the store as a starting hub does.
    """
    found = HubFindings(shards=config.shards or NEW_SHARDS)
    if config.tls is not None:
        _look_at_tls(config.tls, now, found)
        found.certificates = valid_until([config.tls.certificate])
    if config.jwt is not None:
        _look_at_issuer(config.jwt, found, offline=offline)
    if config.tokens_file is None and config.jwt is None:
        has_certificates = config.tls is not None and config.tls.client_ca is not None
        if config.anonymous != "never" and not parse_bind(config.listen).is_loopback and not has_certificates:
            message = (
                "is missing: every program that reaches the port may link and read. `weft token create` creates one"
            )
            found.doubtful.append(Finding(("tokens_file",), message))
    elif config.tokens_file is not None:
        _look_at_tokens(config.tokens_file, found)
    if config.tokens_file is not None or config.jwt is not None or config.anonymous == "never":
        found.doubtful += _tokens_in_clear_text(config)
    traces = tracing_checks.look_at(config.tracing)
    found.doubtful += [*traces.unfit, *traces.doubtful]
    if config.tracing is not None and config.tables is None:
        message = "makes no span: they come with the tables, which another node keeps. Set it there"
        found.doubtful.append(Finding(("tracing",), message))
    _look_at_store(config, found, offline=offline)
    return found


def _look_at_issuer(jwt: Jwt, found: HubFindings, *, offline: bool) -> None:
    """Read the key set, except from a URL when offline. A hub starts without it, and reads it later."""
    from weft.cloud_hub.api.identity.jwt.issuer import Issuer  # imports cryptography, which few hubs need
    from weft.cloud_hub.api.identity.jwt.keys import KeySetUnusable

    if offline and jwt.jwks_url is not None:
        return
    settings = JwtSettings(**msgspec.structs.asdict(jwt))
    try:
        asyncio.run(Issuer(settings, time.monotonic, time.time_ns).read())
    except KeySetUnusable as error:
        name = "jwks_url" if jwt.jwks_url is not None else "jwks_file"
        place = jwt.jwks_url or jwt.jwks_file
        message = f"{place}: {error}. Until the hub has read it, tokens of the issuer open nothing"
        found.doubtful.append(Finding(("jwt", name), message))


def _look_at_tls(tls: HubTls, now: datetime, found: HubFindings) -> None:
    files = TlsFiles(certificate=tls.certificate, key=tls.key, client_ca=tls.client_ca, crl_file=tls.crl_file)
    for effect, finding in server_findings(("tls",), files, now, "edges and readers refuse"):
        (found.needed if effect is Effect.UNUSABLE else found.doubtful).append(finding)


def ports(config: HubConfig, addresses: Sequence[Address]) -> tuple[list[Finding], list[Finding]]:
    """Bind the addresses for a moment. Blocks.

    Returns:
        Findings that would keep the hub from listening; and addresses that were not tried, because a hub answers there.
    """
    taken, untried = [], []
    for address in addresses:
        problem = not_listening(address)
        if problem is None:
            continue
        if _is_hub(address, config.tls):
            untried.append(Finding(("listen",), f"a hub answers at {address} already, so the port was not tried"))
        else:
            taken.append(Finding(("listen",), problem))
    return taken, untried


def _look_at_tokens(path: str, found: HubFindings) -> None:
    try:
        with open(path, "rb") as file:
            tokens = read_tokens(file.read(), path)
    except OSError as error:
        advice = (
            f". `weft token create NAME --file {path} ...` creates one" if isinstance(error, FileNotFoundError) else ""
        )
        found.needed.append(Finding(("tokens_file",), f"{path}: {why_unreadable(error)}{advice}"))
    except TokensUnusable as error:
        found.needed.append(Finding(("tokens_file",), str(error)))
    else:
        if not tokens:
            message = f"{path} holds no token, so the hub refuses every request. `weft token create` adds one"
            found.doubtful.append(Finding(("tokens_file",), message))
        if problem := too_readable(path):
            found.doubtful.append(Finding(("tokens_file",), problem))


def _tokens_in_clear_text(config: HubConfig) -> Iterator[Finding]:
    """Yield paths to the hub on which others can read its tokens."""
    if config.tls is None and not parse_bind(config.listen).is_loopback:
        message = (
            f"the hub speaks plain HTTP: tokens cross the network in clear text to {config.listen}. Set `tls`, or make "
            "sure that only a proxy with TLS reaches it"
        )
        yield Finding(("listen",), message)
    for position, url in enumerate(config.advertise or ()):
        parts = urlsplit(url)
        if parts.scheme == "http" and not Address(parts.hostname or "", 0).is_loopback:
            message = f"edges send their tokens in clear text to {url}. Use https"
            yield Finding(("advertise", position), message)


def _look_at_store(config: HubConfig, found: HubFindings, *, offline: bool) -> None:
    path = config.store.removeprefix("file://")
    is_folder = "://" not in path
    if is_folder and (problem := folder(path)):
        found.needed.append(Finding(("store",), problem))
        return
    if (is_folder and not os.path.exists(path)) or (offline and not is_folder):
        return
    # Files in its folder that are owned by another user could not be changed by the hub.
    probed = not offline and (not is_folder or os.stat(path).st_uid == os.geteuid())
    try:
        found.shards = asyncio.run(_open_store(config, probed=probed)) or found.shards
        is_open = config.anonymous != "never" or config.tokens_file is not None or config.jwt is not None
        has_tokens = is_open or asyncio.run(_has_tokens(config))
    except (ClusterUnusable, StoreError, StoreUnfit) as error:
        found.needed.append(Finding(("store",), str(error)))
    else:
        if not has_tokens:
            message = "the store declares no token, so the hub refuses every request. `weft hub token add` adds one"
            found.doubtful.append(Finding(("anonymous",), message))


def shards_of(config: HubConfig, found: HubFindings) -> int:
    """Return the number of shards, for which a store in a bucket is read if the configuration has none. Blocks."""
    if config.shards is None and "://" in config.store.removeprefix("file://"):
        # A store that does not answer keeps the hub from starting in any case, with an error that says so.
        with contextlib.suppress(StoreError, ClusterUnusable, TimeoutError):
            return asyncio.run(asyncio.wait_for(_read_shards(open_store(config.store)), READ_S_MAX)) or found.shards
    return found.shards


async def _read_shards(store: ObjectStore, shards: int | None = None) -> int | None:
    try:
        await store.get(hub_keys.CLUSTER)
    except NotFound:
        return None
    return (await open_cluster(store, shards)).tree.count


async def _has_tokens(config: HubConfig) -> bool:
    """Return whether the store's cluster log has a token; also if the store is new, since none can be there yet."""
    store = open_store(config.store)
    if await _read_shards(store) is None:
        return True
    log = ClusterLog(store, (await open_cluster(store, None)).cluster_id)
    return bool((await log.load()).facts(TOKEN))


async def _open_store(config: HubConfig, *, probed: bool) -> int | None:
    """Return the store's number of shards; None if it is new."""
    store = open_store(config.store)
    await check_store(store)
    if probed:
        await probe(store, open_store(config.store) if is_bucket(config.store) else None)
    return await _read_shards(store, config.shards)


def _is_hub(address: Address, tls: HubTls | None) -> bool:
    """Return whether a hub answers, with or without asking for a token."""
    url = f"{'http' if tls is None else 'https'}://{address.from_here}/v1/status"
    try:
        trust = [] if tls is None else [urllib.request.HTTPSHandler(context=own_context(tls.certificate))]
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), *trust)
        with direct.open(url, timeout=ANSWER_S_MAX) as answer:
            return "cluster_id" in json.loads(answer.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        return error.code in (401, 403) and b'"advice"' in error.read(_ANSWER_BYTES_MAX)
    except (OSError, ValueError, TypeError):
        return False
