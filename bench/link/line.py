"""A bad line between two network namespaces: bytes a second, a queue, a delay and random loss, under the kernel's TCP.

``python -m bench.link.line --bytes-per-s 65536 --delay-ms 100 ...`` carries the IP packets of two TUN devices: one in
the namespace that it is started in, one in a namespace of its own, for which it stands as long as it runs. It needs
CAP_NET_ADMIN where it is started, as in ``unshare --user --map-root-user --net``. It prints one line when the line is
up, and reads orders: ``WAY on`` and ``WAY off``, with ``up``, ``down`` or ``both`` for WAY.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections import deque
from typing import NamedTuple

NEAR, FAR = "10.78.0.1", "10.78.0.2"
"""Addresses of the two ends: where the line is started, and in the namespace of its process."""
MTU_BYTES = 1500
PACKETS_AT_ONCE = 64
IDLE_S = 3600.0
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


class Quality(NamedTuple):
    """Quality of a line, in each direction."""

    bytes_per_s: int = 64 << 10
    delay_s: float = 0.1
    """Time of a packet's way, after it has left the queue."""
    loss: float = 0.02
    """Chance of a packet to be lost on its way."""
    queue_bytes: int = 64 << 10
    """Bytes that wait for the line at most. A packet that finds it full is lost."""


class Way:
    """One direction. All times are monotonic seconds."""

    def __init__(self, quality: Quality, chance: random.Random) -> None:
        self._quality, self._chance = quality, chance
        self.is_on = True
        self._free_at = 0.0
        """Time at which the line has sent all that waits."""
        self._under_way: deque[tuple[float, bytes]] = deque()
        """(arrival, packet) in order."""

    def put(self, packet: bytes, now: float) -> None:
        """Take a packet."""
        quality, begins = self._quality, max(now, self._free_at)
        if (begins - now) * quality.bytes_per_s + len(packet) > quality.queue_bytes:
            return
        self._free_at = begins + len(packet) / quality.bytes_per_s
        if self.is_on and self._chance.random() >= quality.loss:
            self._under_way.append((self._free_at + quality.delay_s, packet))

    @property
    def due(self) -> float | None:
        """Return the time of the next arrival."""
        return self._under_way[0][0] if self._under_way else None

    def arrived(self, now: float) -> list[bytes]:
        """Return the packets that have arrived by ``now``. A line that is off loses also those under way."""
        found = []
        while self._under_way and self._under_way[0][0] <= now:
            found.append(self._under_way.popleft()[1])
        return found if self.is_on else []


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")


def device(own: str, other: str) -> int:
    """Make a TUN device in the namespace of this process; return its file."""
    try:
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", b"line", IFF_TUN | IFF_NO_PI))
    except OSError as error:
        raise SystemExit(f"no TUN device can be made here: {error}") from error
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "address", "add", own, "peer", other, "dev", "line")
    _run("ip", "link", "set", "line", "mtu", str(MTU_BYTES), "up")
    return file


def enter_new_namespace() -> None:
    """Move this process into a network namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise SystemExit(f"no network namespace can be made here: {os.strerror(ctypes.get_errno())}")


class Forwarder:
    """The packets of two devices, by two ways."""

    def __init__(self, near: int, far: int, quality: Quality, seed: int) -> None:
        chance = random.Random(seed)
        self.ways = {name: Way(quality, random.Random(chance.random())) for name in ("up", "down")}
        self._ends = ((near, self.ways["up"], far), (far, self.ways["down"], near))
        self._orders = b""

    def run(self) -> None:
        """Carry packets until the orders end."""
        files = [file for file, _, _ in self._ends]
        while True:
            now = time.monotonic()
            due = [way.due for way in self.ways.values() if way.due is not None]
            ready = select.select([*files, sys.stdin.fileno()], [], [], max(0.0, min(due, default=now + IDLE_S) - now))
            if sys.stdin.fileno() in ready[0] and not self._obey():
                return
            now = time.monotonic()
            for source, way, target in self._ends:
                if source in ready[0]:
                    _take(source, way, now)
                for packet in way.arrived(now):
                    os.write(target, packet)

    def _obey(self) -> bool:
        data = os.read(sys.stdin.fileno(), 1 << 10)
        *lines, self._orders = (self._orders + data).split(b"\n")
        for line in lines:
            name, _, state = line.decode().partition(" ")
            for each in self.ways if name == "both" else (name,):
                self.ways[each].is_on = state == "on"
        return bool(data)


def _take(file: int, way: Way, now: float) -> None:
    for _ in range(PACKETS_AT_ONCE):
        try:
            way.put(os.read(file, MTU_BYTES), now)
        except BlockingIOError:
            return


class Line:
    """A running line, as its user sees it."""

    def __init__(self, quality: Quality, seed: int) -> None:
        command = [sys.executable, "-m", "bench.link.line", "--seed", str(seed)]
        for name, value in zip(("bytes-per-s", "delay-ms", "loss", "queue-bytes"), quality, strict=True):
            command += [f"--{name}", str(value * 1000 if name == "delay-ms" else value)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise SystemExit("the line did not come up")
        self.inside = ["nsenter", "--target", str(self._process.pid), "--net", "--"]
        """Command before one that is to run at the far end."""

    def order(self, way: str, *, is_on: bool) -> None:
        """Switch a direction (``up``, ``down`` or ``both``) on or off. A line that is off loses every packet."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{way} {'on' if is_on else 'off'}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End the line and the namespace of its far end."""
        self._process.kill()
        self._process.communicate()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a line's quality."""
    usual = Quality()
    parser.add_argument("--bytes-per-s", type=int, default=usual.bytes_per_s)
    parser.add_argument("--delay-ms", type=float, default=usual.delay_s * 1000, help="of each direction")
    parser.add_argument("--loss", type=float, default=usual.loss, help="chance of each packet to be lost")
    parser.add_argument("--queue-bytes", type=int, default=usual.queue_bytes)
    parser.add_argument("--seed", type=int, default=1)


def quality_of(given: argparse.Namespace) -> Quality:
    """Return the quality that the options say."""
    return Quality(given.bytes_per_s, given.delay_ms / 1000, given.loss, given.queue_bytes)


def main() -> None:
    """Be a line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="bench.link.line", description=__doc__.splitlines()[0])
    add_options(parser)
    given = parser.parse_args()
    near = device(NEAR, FAR)
    enter_new_namespace()
    far = device(FAR, NEAR)
    print("ready", flush=True)
    Forwarder(near, far, quality_of(given), given.seed).run()


if __name__ == "__main__":
    main()
