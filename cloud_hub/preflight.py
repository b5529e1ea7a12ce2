"""Checks of what a hub's configuration names: tokens, the store and the port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import socket
import ssl
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from urllib.parse import urlsplit

import msgspec

from weft.cloud_hub.auth.tokens import TokensUnusable
from weft.cloud_hub.clock import ClockWrong, sound_clock
from weft.cloud_hub.facts.fact import TOKEN, UnreadableDocument
from weft.cloud_hub.facts.tokens import demands_tokens, identities_of
from weft.cloud_hub.settings import JwtSettings, addresses, cores, process_count
from weft.config.errors import Finding
from weft.config.listeners import HubTls, Jwt
from weft.config.machine import Verdict, act, folder, good, not_listening, of_ports, of_settings, unknown
from weft.config.models import HubConfig
from weft.config.release import SOFTWARE
from weft.config.units import Address, approximate_size, is_bucket, kind_of, parse_bind
from weft.network import tracing as tracing_checks
from weft.network.tls import Effect, TlsFiles, certificates_in, refusal, server_findings, valid_until
from weft.storage import hub_keys
from weft.storage.cluster import NEW_SHARDS, ClusterUnusable, open_cluster
from weft.storage.cluster_log import ClusterLog, ClusterState, Fact
from weft.storage.fenced_store import check_store
from weft.storage.host import clock_verdict, disk_speed, disk_wear
from weft.storage.object_store import NotFound, ObjectStore, StoreError, StoreUnfit, open_store, probe
from weft.storage.object_store.probe import PREFIX
from weft.storage.presence import running

ANSWER_S_MAX = 1.0
READ_S_MAX = 10.0
"""Longest wait for the number of the store's shards."""
_ANSWER_BYTES_MAX = 1 << 20
_NAMES_SHOWN_MAX = 5
_LIBRARIES = ("deltalake", "numpy", "pyarrow")
"""Those of the extra `hub` without which no hub starts."""
_KAFKA_LIBRARIES = ("aiokafka", "cramjam", "kio")
"""Those of the extra `kafka`, without which no hub with `kafka` starts."""


@dataclass
class HubFindings:
    """Findings about a hub's machine, by their effect on the hub."""

    needed: list[Finding] = field(default_factory=list)
    """Findings that keep the hub from starting."""
    unfit: list[Finding] = field(default_factory=list)
    """Findings with which the hub starts, but a part of its work fails."""
    certificates: dict[str, str] = field(default_factory=dict)
    """Last day of each certificate that the hub presents, by file."""
    doubtful: list[Finding] = field(default_factory=list)
    """Findings with which the hub runs, perhaps not as intended."""
    shards: int = NEW_SHARDS
    """Number of shards: the store's if it was read, else the configuration's, else that of a new store."""


def look(config: HubConfig, now: datetime, *, offline: bool = True) -> HubFindings:
    """Open what the configuration names, except the port. Blocks, and changes nothing.

    Args:
        now: time for the validity of certificates.
        offline: do not contact a store in a bucket. Otherwise probe the store as a starting hub does.
    """
    found = HubFindings(shards=config.shards or NEW_SHARDS)
    if missing := [name for name in _LIBRARIES if find_spec(name) is None]:
        message = f'a hub needs {" and ".join(missing)}, not installed here: pip install "weft-fabric[hub]"'
        found.needed.append(Finding((), message))
    if config.kafka is not None and (missing := [name for name in _KAFKA_LIBRARIES if find_spec(name) is None]):
        message = f'needs {" and ".join(missing)}, not installed here: pip install "weft-fabric[kafka]"'
        found.needed.append(Finding(("kafka",), message))
    if config.tls is not None:
        _look_at_tls(config, config.tls, now, found)
        found.certificates = valid_until([config.tls.certificate])
    if config.jwt is not None:
        _look_at_issuer(config.jwt, found, offline=offline)
    traces = tracing_checks.look_at(config.tracing)
    found.doubtful += [*traces.unfit, *traces.doubtful]
    if config.tracing is not None and config.tables is None:
        message = "creates no spans: they belong to the tables, which another node writes. Set it there"
        found.doubtful.append(Finding(("tracing",), message))
    declared = _look_at_store(config, found, offline=offline)
    if config.jwt is not None or config.anonymous == "never" or (declared is not None and declared.facts(TOKEN)):
        found.doubtful += _tokens_in_clear_text(config)
    if config.jwt is None:
        found.doubtful += _without_token(config, declared, now)
    if config.processes is not None and config.processes > found.shards:
        message = f"{config.processes} processes share {found.shards} shards, so only {found.shards} of them run"
        found.doubtful.append(Finding(("processes",), f"{message}. `weft hub split` makes more shards"))
    if config.shards_max is not None and config.shards_max < found.shards:
        message = f"the hub has {found.shards} shards, so it never splits one by itself. Set a larger number, or none"
        found.doubtful.append(Finding(("shards_max",), message))
    return found


def _look_at_issuer(jwt: Jwt, found: HubFindings, *, offline: bool) -> None:
    """Read the key set, except from a URL when offline. A hub starts without it, and reads it later."""
    from weft.cloud_hub.auth.jwt import (
        Issuer,  # imports cryptography, which few hubs need
        KeySetUnusable,
    )

    if offline and jwt.jwks_url is not None:
        return
    settings = JwtSettings(**msgspec.structs.asdict(jwt))
    try:
        asyncio.run(Issuer(settings, time.monotonic, time.time_ns).read())
    except KeySetUnusable as error:
        name = "jwks_url" if jwt.jwks_url is not None else "jwks_file"
        place = jwt.jwks_url or jwt.jwks_file
        message = f"{place}: {error}. Until the hub has read it, tokens of the issuer are refused"
        found.doubtful.append(Finding(("jwt", name), message))


def _look_at_tls(config: HubConfig, tls: HubTls, now: datetime, found: HubFindings) -> None:
    files = TlsFiles(certificate=tls.certificate, key=tls.key, client_ca=tls.client_ca, crl_file=tls.crl_file)
    lists = {Effect.UNUSABLE: found.needed, Effect.REFUSED: found.unfit, Effect.DOUBTFUL: found.doubtful}
    for effect, finding in server_findings(("tls",), files, now, "edges and readers refuse"):
        lists[effect].append(finding)
    if not found.needed and refusal(tls.certificate, tls.key) is None:
        _look_at_names(tls, config.advertise or (), found)


def _look_at_names(tls: HubTls, advertise: Sequence[str], found: HubFindings) -> None:
    """Hold the names in the certificate against those under which others call the hub."""
    certificate = certificates_in(tls.certificate)[0]
    if not certificate.hosts:
        message = f"{tls.certificate} has no subjectAltName, so most clients refuse it. Issue one with the hub's names"
        found.doubtful.append(Finding(("tls", "certificate"), message))
    names = (certificate.hosts or certificate.common_names)[:_NAMES_SHOWN_MAX]
    for position, host in enumerate(urlsplit(url).hostname or "" for url in advertise):
        if refusal(tls.certificate, tls.key, host=host) is not None:
            message = f"edges refuse {tls.certificate} under the name {host}: it is for {', '.join(names) or 'none'}"
            found.unfit.append(Finding(("advertise", position), f"{message}. Issue one that has this name, too"))


def ports(config: HubConfig, addresses: Sequence[Address]) -> tuple[list[Finding], list[Finding]]:
    """Bind the addresses briefly. Blocks.

    Returns:
        Findings that would keep the hub from listening, and the addresses that were not tried because a hub answers
        there.
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


def _without_token(config: HubConfig, declared: ClusterState | None, now: datetime) -> Iterator[Finding]:
    """Yield what becomes of a hub without a token: nothing opens it, or everybody may come.

    Args:
        declared: what the store declares; None if it was not read.
    """
    tokens = {} if declared is None else declared.facts(TOKEN)
    has_certificates = config.tls is not None and config.tls.client_ca is not None
    whom = "all but edges with certificates" if has_certificates else "every request"
    if any(_is_in_force(fact, now) for fact in tokens.values()):
        return
    if tokens:
        message = f"every token in it has ended, so the hub refuses {whom}. `weft hub token rotate` renews one"
        yield Finding(("store",), message)
    elif declared is not None and config.anonymous == "never":
        message = f"the store declares no token, so the hub refuses {whom}. `weft hub token add` adds one"
        yield Finding(("anonymous",), message)
    elif declared is not None and demands_tokens(declared):
        message = f"its last token was withdrawn, so the hub refuses {whom}. `weft hub token add` adds one"
        yield Finding(("store",), message)
    elif config.anonymous != "never" and not parse_bind(config.listen).is_loopback and not has_certificates:
        message = (
            "there is no token: every program that reaches the port may link and read. `weft hub token add` adds one"
        )
        yield Finding(("anonymous",), message)
        if config.anonymous == "allowed_beyond_loopback" and config.hosts is None:
            message = (
                "is missing: a web page in a browser of that network may read all under a name of its own (DNS "
                "rebinding). List the names under which readers call the hub, or none: `hosts: []`"
            )
            yield Finding(("hosts",), message)


def _is_in_force(token: Fact, now: datetime) -> bool:
    try:
        ends = [until for _, until in identities_of(token)]
    except (UnreadableDocument, TokensUnusable):
        return False
    return any(until is None or until > now.timestamp() * 1e9 for until in ends)


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


def _look_at_store(config: HubConfig, found: HubFindings, *, offline: bool) -> ClusterState | None:
    """Return what the store declares; None if it was not read."""
    path = config.store.removeprefix("file://")
    is_folder = "://" not in path
    if is_folder and (problem := folder(path)):
        found.needed.append(Finding(("store",), problem))
        return None
    if is_folder and not os.path.exists(path):
        return ClusterState(b"")
    if offline and not is_folder:
        return None
    # Files in its folder that are owned by another user could not be changed by the hub.
    probed = not offline and (not is_folder or os.stat(path).st_uid == os.geteuid())
    try:
        found.shards = asyncio.run(_open_store(config, probed=probed)) or found.shards
        return asyncio.run(_declared(config))
    except (ClusterUnusable, StoreError, StoreUnfit) as error:
        found.needed.append(Finding(("store",), str(error)))
        return None


def shards_of(config: HubConfig, found: HubFindings) -> int:
    """Return the number of shards. If the configuration has none, read it from the store, also from a bucket.
    Blocks."""
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


async def _declared(config: HubConfig) -> ClusterState:
    """Return the state of the store's cluster log, which is empty if the store is new."""
    store = open_store(config.store)
    if await _read_shards(store) is None:
        return ClusterState(b"")
    return await ClusterLog(store, (await open_cluster(store, None)).cluster_id).load()


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
        # No secret goes there, and a hub shows the certificate before for a moment after a renewal.
        anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
        direct = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=anyone)
        )
        with direct.open(url, timeout=ANSWER_S_MAX) as answer:
            return "cluster_id" in json.loads(answer.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        return error.code in (401, 403) and b'"advice"' in error.read(_ANSWER_BYTES_MAX)
    except (OSError, ValueError, TypeError):
        return False


# The doctor of a hub: what is looked at, measured and called, line by line. Harmless beside the running hub.

DOCTOR_ANSWER_S_MAX = 5.0
"""Longest wait for one answer of the hub or of a resolver."""
STORE_S_MAX = 20.0
"""Longest time for all requests to the store."""
WRITES = 8
"""Number of objects that a measurement writes to the store and deletes again."""
SLOW_WRITE_S = 2.0
"""Median time of a write above which edges wait long for acknowledgements."""
FREE_MIN = 1 << 30
FILES_RESERVED = 256
"""Open files of a process besides its connections: the store, libraries, the log."""
URLS_MAX = 16
_BODY_BYTES_MAX = 2048
_WHY_MAX = 200


def examine(config: HubConfig, clock: Callable[[], float], wall_clock: Callable[[], float]) -> Iterator[Verdict]:
    """Yield the lines, each as soon as it is known. Blocks; each step is bounded to some seconds.

    Args:
        clock: seconds of a clock that is never set.
        wall_clock: seconds since 1970.
    """
    found = look(config, datetime.fromtimestamp(wall_clock(), UTC))
    yield from of_settings([*found.needed, *found.unfit, *found.doubtful], found.certificates)
    yield clock_verdict()
    if not is_bucket(config.store):
        yield from _disk(config.store.removeprefix("file://"), clock)
    yield from _store(config, clock, wall_clock)
    yield _open_files(config)
    yield from _listening(config, found)
    for url in (config.advertise or ())[:URLS_MAX]:
        yield _name(url)


def _disk(path: str, clock: Callable[[], float]) -> Iterator[Verdict]:
    place = path
    while not os.path.exists(place):
        place = os.path.dirname(place)
    free = shutil.disk_usage(place).free
    says = f"{approximate_size(free)} is free for the store"
    if free < FREE_MIN:
        advice = "A full disk accepts no commits, and edges keep their records: free some space, or move the store"
        yield act("disk space", f"{says}. {advice}")
    else:
        yield good("disk space", says)
    yield disk_speed(path, clock)
    yield disk_wear(path)


def _store(config: HubConfig, clock: Callable[[], float], wall_clock: Callable[[], float]) -> Iterator[Verdict]:
    """Yield what the store says: its speed, its clock, and the releases that run on it."""
    path = config.store.removeprefix("file://")
    if not is_bucket(config.store) and not os.path.isdir(path):
        yield unknown("store", f"{path} does not exist yet. The first start of the hub creates it")
        return
    try:
        yield from asyncio.run(asyncio.wait_for(_ask(config, clock, wall_clock), STORE_S_MAX))
    except TimeoutError:
        says = f"{config.store} does not answer within {STORE_S_MAX:.0f} s. Check its address, and the network"
        yield act("store", says)
    except (StoreError, StoreUnfit, ValueError) as error:
        yield act("store", f"{error}. Check its address, and the credentials in the environment")


async def _ask(config: HubConfig, clock: Callable[[], float], wall_clock: Callable[[], float]) -> list[Verdict]:
    store, base, times = open_store(config.store), f"{PREFIX}/{os.urandom(8).hex()}", []
    for number in range(WRITES):
        key, before = f"{base}/doctor{number}", clock()
        await store.create(key, b"weft hub doctor")
        times.append(clock() - before)
        await store.delete(key)
    usual, slowest = statistics.median(times), max(times)
    says = f"{kind_of(config.store)}: a write takes {_ms(usual)}, the slowest of {WRITES} took {_ms(slowest)}"
    lines = [good("store", says)]
    if usual >= SLOW_WRITE_S:
        lines = [act("store", f"{says}. Edges wait as long for acknowledgements: use a store that is nearer")]
    try:
        await sound_clock(store)
        lines.append(good("clock", "it agrees with that of the store"))
    except ClockWrong as error:
        lines.append(act("clock", f"{error}. Set it, and run a time service: `timedatectl set-ntp true`"))
    there = sorted({each.software for each in await running(store, int(wall_clock() * 1e9))})
    if not there:
        lines.append(unknown("versions", f"this is {SOFTWARE}; no hub process has run on the store lately"))
    elif there == [SOFTWARE]:
        lines.append(good("versions", f"every hub process of the store runs {SOFTWARE}"))
    else:
        advice = "Bring all to one release: docs/upgrades.md"
        lines.append(act("versions", f"this is {SOFTWARE}, hub processes run {', '.join(there)}. {advice}"))
    return lines


def _open_files(config: HubConfig) -> Verdict:
    wanted = config.limits.links + config.limits.idle_connections + FILES_RESERVED
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit >= wanted:
        return good("open files", f"a process that is started here may open the {wanted:,} that its limits need")
    advice = "Raise the limit (systemd: `LimitNOFILE`), or lower `limits.links`"
    return act("open files", f"a process that is started here may open {limit:,}; its limits need {wanted:,}. {advice}")


def _listening(config: HubConfig, found: HubFindings) -> Iterator[Verdict]:
    """Yield the lines about the ports, and what the hub says that has them."""
    own = addresses(config, process_count(config, config.processes, cores(), found.shards))
    taken, untried = ports(config, own)
    yield from of_ports(taken, untried)
    if untried:
        yield from _of_processes(config, own)


def _of_processes(config: HubConfig, own: Sequence[Address]) -> Iterator[Verdict]:
    for address in own[:URLS_MAX]:
        url = f"{'http' if config.tls is None else 'https'}://{address.from_here}/readyz"
        status, body = _readiness(url)
        if status == 200:
            yield good("hub", f"{address} takes work")
        elif status is None:
            yield act("hub", f"{address} does not answer ({body}). Look at its log")
        else:
            yield act("hub", f"{address} accepts no work: {body}. `weft hub status` has details")


def _readiness(url: str) -> tuple[int | None, str]:
    # No secret goes there, and the page says nothing that is one.
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=anyone))
    try:
        with direct.open(url, timeout=DOCTOR_ANSWER_S_MAX) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        body = error.read(_BODY_BYTES_MAX).decode("utf-8", "replace").strip()
        return error.code, (body.splitlines() or ["it gives no reason"])[0][:_WHY_MAX]
    except (OSError, ValueError) as error:
        return None, str(getattr(error, "reason", error))[:_WHY_MAX]


def _name(url: str) -> Verdict:
    host = urlsplit(url).hostname or ""
    with contextlib.suppress(TimeoutError):
        try:
            asyncio.run(asyncio.wait_for(_resolve(host), DOCTOR_ANSWER_S_MAX))
        except socket.gaierror as error:
            said = (error.strerror or str(error)).lower()
            advice = f"Check `advertise`, and the machine's DNS: `getent hosts {host}`"
            return act("names", f"{url}: the name {host} cannot be resolved ({said}). {advice}")
        return good("names", f"{host} has an address")
    return act("names", f"{url}: no resolver answers within {DOCTOR_ANSWER_S_MAX:.0f} s. Check the machine's DNS")


async def _resolve(host: str) -> None:
    await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)


def _ms(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
