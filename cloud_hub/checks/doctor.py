"""The doctor of a hub: what is looked at, measured and called, line by line. Harmless beside the running hub."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import socket
import ssl
import statistics
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

from weft.cloud_hub.checks.preflight import HubFindings, look, ports
from weft.cloud_hub.clock import ClockWrong, sound_clock
from weft.cloud_hub.cluster.membership import software
from weft.cloud_hub.cluster.processes import addresses, cores, process_count
from weft.config.models import HubConfig
from weft.config.units import Address, approximate_size, is_bucket, kind_of
from weft.config.verdict import Verdict, act, good, of_ports, of_settings, unknown
from weft.storage.disk_speed import disk_speed
from weft.storage.disk_wear import disk_wear
from weft.storage.kernel_clock import clock_verdict
from weft.storage.object_store import StoreError, StoreUnfit, open_store
from weft.storage.object_store.probe import PREFIX
from weft.storage.presence.nodes import running

ANSWER_S_MAX = 5.0
"""Longest wait for one answer: of the hub, of a resolver."""
STORE_S_MAX = 20.0
"""Longest time that all questions to the store may take."""
WRITES = 8
"""Objects of a measurement of the store. Each is deleted again."""
SLOW_WRITE_S = 2.0
"""Usual time of a write from which on edges wait long for acknowledgements."""
FREE_MIN = 1 << 30
FILES_RESERVED = 256
"""Open files of a process beside its connections: the store, libraries, the log."""
URLS_MAX = 16
_BODY_BYTES_MAX = 2048
_WHY_MAX = 200


def examine(config: HubConfig, clock: Callable[[], float], wall_clock: Callable[[], float]) -> Iterator[Verdict]:
    """Yield the lines, each when it is known. Blocks; each step has a bound of some seconds.

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
        advice = "A full disk takes no commit, and edges keep what they have: free some, or move the store"
        yield act("disk space", f"{says}. {advice}")
    else:
        yield good("disk space", says)
    yield disk_speed(path, clock)
    yield disk_wear(path)


def _store(config: HubConfig, clock: Callable[[], float], wall_clock: Callable[[], float]) -> Iterator[Verdict]:
    """Yield what the store says: its speed, its clock, and the releases that run on it."""
    path = config.store.removeprefix("file://")
    if not is_bucket(config.store) and not os.path.isdir(path):
        yield unknown("store", f"{path} is not there yet. The first start of the hub creates it")
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
        lines.append(unknown("versions", f"this is {software()}; no hub process has run on the store lately"))
    elif there == [software()]:
        lines.append(good("versions", f"every hub process of the store runs {software()}"))
    else:
        advice = "Bring all to one release: docs/upgrades.md"
        lines.append(act("versions", f"this is {software()}, hub processes run {', '.join(there)}. {advice}"))
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
            yield act("hub", f"{address} takes no work: {body}. `weft hub status` has more")


def _readiness(url: str) -> tuple[int | None, str]:
    # No secret goes there, and the page says nothing that is one.
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=anyone))
    try:
        with direct.open(url, timeout=ANSWER_S_MAX) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        body = error.read(_BODY_BYTES_MAX).decode("utf-8", "replace").strip()
        return error.code, (body.splitlines() or ["it does not say why"])[0][:_WHY_MAX]
    except (OSError, ValueError) as error:
        return None, str(getattr(error, "reason", error))[:_WHY_MAX]


def _name(url: str) -> Verdict:
    host = urlsplit(url).hostname or ""
    with contextlib.suppress(TimeoutError):
        try:
            asyncio.run(asyncio.wait_for(_resolve(host), ANSWER_S_MAX))
        except socket.gaierror as error:
            said = (error.strerror or str(error)).lower()
            advice = f"Check `advertise`, and the machine's DNS: `getent hosts {host}`"
            return act("names", f"{url}: the name {host} cannot be resolved ({said}). {advice}")
        return good("names", f"{host} has an address")
    return act("names", f"{url}: no resolver answers within {ANSWER_S_MAX:.0f} s. Check the machine's DNS")


async def _resolve(host: str) -> None:
    await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)


def _ms(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
