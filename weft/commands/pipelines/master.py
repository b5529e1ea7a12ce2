"""Connect to a Spark master before Java starts: Spark itself tries an address for minutes without a message."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

from weft.output import Failed

MASTER_WAIT_S = 30.0
"""Longest wait for a master that does not answer: a starting master takes some seconds."""
SAID_EVERY_S = 10.0
_CONNECT_S = 5.0
_RETRY_S = 1.0
_PORTS = {"spark": 7077, "sc": 15002}


def addresses(master: str) -> list[tuple[str, int]]:
    """Return host and port of the masters at a URL; empty for masters without an address of their own."""
    scheme, separator, rest = master.partition("://")
    if not separator or scheme not in _PORTS:
        return []
    found = []
    for each in rest.partition("/")[0].split(","):
        host, colon, port = each.rpartition(":")
        if not colon:
            host, port = each, str(_PORTS[scheme])
        if not host or not port.isdecimal():
            return []  # Spark reports what is wrong with it
        found.append((host.strip("[]"), int(port)))
    return found


def wait_for_master(
    master: str,
    say: Callable[[str], None],
    *,
    wait_s: float = MASTER_WAIT_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when one of the masters at a URL accepts connections.

    Raises:
        Failed: none did in ``wait_s``.
    """
    known = addresses(master)
    began, said_at = clock(), -SAID_EVERY_S
    while known:
        reasons = [_unreachable(*address, min(_CONNECT_S, wait_s)) for address in known]
        if None in reasons:
            return
        where = ", ".join(f"{host}:{port} ({why})" for (host, port), why in zip(known, reasons, strict=True))
        waited = clock() - began
        if waited >= wait_s:
            raise Failed(
                f"--master {master}: no Spark master at {where}, tried for {waited:.0f} s. Start it, or correct the "
                "address: the master's web page shows it, and local[*] needs none"
            )
        if waited - said_at >= SAID_EVERY_S:
            say(f"waiting for the Spark master at {where}, at most {wait_s:.0f} s")
            said_at = waited
        sleep(_RETRY_S)


def _unreachable(host: str, port: int, timeout: float) -> str | None:
    try:
        with socket.create_connection((host, port), timeout):
            return None
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__


@contextlib.contextmanager
def standard_error() -> Iterator[Callable[[str], None]]:
    """Return a function that prints a line on the present standard error, even while that is redirected."""
    try:
        copy = open(os.dup(2), "w", encoding="utf-8")  # noqa: SIM115
    except OSError:
        yield lambda _: None
        return
    with copy:
        yield lambda line: print(line, file=copy, flush=True)


@contextlib.contextmanager
def telling(master: str, say: Callable[[str], None], every_s: float = SAID_EVERY_S) -> Iterator[None]:
    """Print every few seconds that a session is still being started at a master on another machine."""
    done = threading.Event()

    def tell() -> None:
        began = time.monotonic()
        while not done.wait(every_s):
            say(f"waiting for a Spark session at {master}, for {time.monotonic() - began:.0f} s now")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
