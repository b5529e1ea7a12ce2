"""Bytes on the wire: Weft's link beside a bridge of Mosquitto, both with TLS, on the same messages."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from bench import payloads
from bench.link import devices, latency
from bench.link.processes import bridge, weft_pair
from bench.link.wire import Wire, counted
from examples.demo.fabric import free_port

DEVICES_MAX = 100
WARMUP_S = 5.0
MONTH_S = 30 * 24 * 3600
IDLE_STREAMS = 20
IDLE_S = 450.0
"""Time in which pings of 45 s and marks of 60 s have gone through all their relations, and a canary there and back."""
IDLE_BYTES_MAX = 20e6

Pair = Callable[[Path, int, int], AbstractContextManager[int]]


def _cycled(lines: list[bytes]) -> Callable[[], bytes]:
    return partial(next, cycle(lines))


PAYLOADS: dict[str, Callable[[], Callable[[], bytes]]] = {
    "synthetic": lambda: latency.payload,
    "sensor": lambda: _cycled(payloads.sensor()),
    "mixed": lambda: _cycled(payloads.telemetry()),
}
"""Name -> maker of what makes the next payload: readings of 120 bytes made up, readings of a Raspberry Pi in order, and
messages of a mixed plant."""


class Target(NamedTuple):
    """A rate, and the largest share of the bridge's bytes."""

    rate: int
    share: float


TARGETS = (Target(10, 1 / 4), Target(1000, 1 / 12))
GROUPED: Mapping[str, Any] = {"commit_interval": "1s"}
"""Settings of a node that sends once a second."""


async def _bytes(wire: Callable[[], Wire], port: int, rate: int, seconds: float, payload: Callable[[], bytes]) -> Wire:
    count = min(rate, DEVICES_MAX)
    fleet = await devices.connected([port] * count, payload)
    chance = random.Random(1)
    await devices.publish(fleet, rate / count, WARMUP_S, chance)
    before = wire()
    await devices.publish(fleet, rate / count, seconds, chance)
    after = wire()
    for device in fleet:
        device.close()
    return after - before


async def _with(pair: Pair, measure: Callable[[Callable[[], Wire], int], Awaitable[Wire]]) -> Wire:
    """Measure at a proxy between the two ends."""
    proxy, far = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder, ExitStack() as stack:
        async with counted(proxy, far) as wire:
            # In a thread, since the node waits for the hub behind the proxy before it listens.
            port = await asyncio.to_thread(stack.enter_context, pair(Path(folder), proxy, far))
            found = await measure(wire.count, port)
            await asyncio.to_thread(stack.close)
    return found


def _figures(wire: Wire, messages: int) -> dict[str, float]:
    return {
        "bytes": round(wire.bytes / messages, 1),
        "payload_up": round(wire.up_bytes / messages, 1),
        "payload_down": round(wire.down_bytes / messages, 1),
        "segments_up": round(wire.up_segments / messages, 3),
        "segments_down": round(wire.down_segments / messages, 3),
    }


def traffic(seconds: float, kinds: Iterable[str] = PAYLOADS, rates: Iterable[int] = ()) -> list[dict[str, Any]]:
    """Return the bytes of a message by kind of payload and rate, of Weft and of a bridge, turn by turn."""
    found = []
    pairs: dict[str, Pair] = {
        "weft": partial(weft_pair, settings={}),
        "weft_1s": partial(weft_pair, settings=GROUPED),
        "mosquitto": bridge,
    }
    for target in TARGETS:
        if rates and target.rate not in rates:
            continue
        for kind in kinds:
            case: dict[str, Any] = {"rate": target.rate, "payloads": kind}
            for name, pair in pairs.items():
                measure = partial(_bytes, rate=target.rate, seconds=seconds, payload=PAYLOADS[kind]())
                wire = asyncio.run(_with(pair, measure))
                case[name] = _figures(wire, int(target.rate * seconds))
            case["share"] = round(case["weft_1s"]["bytes"] / case["mosquitto"]["bytes"], 4)
            case["target"] = {"share": round(target.share, 4), "met": case["share"] <= target.share}
            found.append(case)
            print(case, flush=True)
    return found


def idle(seconds: float = IDLE_S) -> dict[str, Any]:
    """Return the bytes of a month of a link with 20 streams on which nothing happens."""
    streams = {f"stream-{number}": {"from": f"idle/{number}/#"} for number in range(IDLE_STREAMS)}

    async def wait(count: Callable[[], Wire], _: int) -> Wire:
        await asyncio.sleep(WARMUP_S)
        before = count()
        await asyncio.sleep(seconds)
        return count() - before

    wire = asyncio.run(_with(partial(weft_pair, settings={"streams": streams}), wait))
    month = wire.bytes * MONTH_S / seconds
    return {
        "streams": IDLE_STREAMS,
        "seconds": seconds,
        "mb_a_month": round(month / 1e6, 1),
        "payload_bytes": wire.up_bytes + wire.down_bytes,
        "segments": wire.up_segments + wire.down_segments,
        "met": month < IDLE_BYTES_MAX,
    }
