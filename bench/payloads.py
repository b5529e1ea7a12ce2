"""Payloads that devices really sent, one for each line of a file that ``mqttload`` reads.

They come from the measurements that ship with the demo (``examples/demo/data``, its README names origin and licences).
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from bench.common import PAYLOAD_BYTES
from examples.demo.devices import TELEMETRY, lines

PAYLOADS = 20_000
"""Number of different payloads; then they begin again, further apart than any compression looks back."""
STEP_S = 300
"""Interval of the machine's readings."""
READINGS_MAX = 30
"""Most readings that one message of a machine brings together."""
SEED = 1
RAW_EVERY = 3
"""Every third message of a Pi stays as it was published, with all digits and its device."""


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def pi_messages(count: int) -> Iterator[dict[str, Any]]:
    """Yield the first messages of the Pis, as published."""
    return islice(map(json.loads, lines(TELEMETRY)), count)


def compact(message: dict[str, Any]) -> bytes:
    """Return a message of a Pi without its device, with six digits."""
    reading = {name: round(value, 6) for name, value in message["data"].items() if name != "lpg"}
    return _encode({"ts": round(message["ts"], 3), **reading})


def sensor() -> list[bytes]:
    """Return readings of a Raspberry Pi in order, each about 100 bytes."""
    return [compact(message) for message in pi_messages(PAYLOADS)]


def random_bytes() -> list[bytes]:
    """Return bytes without a pattern (but for line ends and zeros, which the generator's file cannot hold)."""
    chance = random.Random(SEED)
    alphabet = bytes(byte for byte in range(1, 256) if byte not in b"\r\n")
    return [bytes(chance.choices(alphabet, k=PAYLOAD_BYTES)) for _ in range(PAYLOADS)]


def _from_pis(count: int) -> list[bytes]:
    """Return messages of the Pis, some whole and some compact."""
    messages = pi_messages(count)
    return [_encode(message) if n % RAW_EVERY == 0 else compact(message) for n, message in enumerate(messages)]


def _from_machine(count: int, chance: random.Random) -> list[bytes]:
    """Return messages of a machine: mostly one reading, now and then the readings of up to two and a half hours."""
    rows = list(csv.DictReader(lines("machine_temperature_system_failure.csv.gz")))
    found = []
    for n in range(count):
        at, readings = rows[n]["timestamp"], chance.randint(4, READINGS_MAX) if n % 4 == 0 else 1
        temperatures = [float(row["value"]) for row in rows[n : n + readings]]
        if readings == 1:
            found.append(_encode({"ts": at, "temp": temperatures[0]}))
        else:
            found.append(_encode({"from": at, "step_s": STEP_S, "temp": [round(value, 4) for value in temperatures]}))
    return found


def telemetry() -> list[bytes]:
    """Return the messages of a mixed plant in an order in which neighbours differ in length (40 to 350 bytes)."""
    chance = random.Random(SEED)
    mixed = _from_pis(PAYLOADS // 2) + _from_machine(PAYLOADS // 2, chance)
    chance.shuffle(mixed)
    return _apart(mixed)


def _apart(payloads: Sequence[bytes]) -> list[bytes]:
    """Return the payloads with those set back that are as long as the one before them."""
    ordered: list[bytes] = []
    waiting: list[bytes] = []
    for payload in payloads:
        waiting.append(payload)
        while waiting and (found := _other_length(waiting, len(ordered[-1]) if ordered else 0)) is not None:
            ordered.append(waiting.pop(found))
    return ordered


def _other_length(payloads: Sequence[bytes], length: int) -> int | None:
    return next((place for place, payload in enumerate(payloads) if len(payload) != length), None)


def write(path: Path, payloads: Sequence[bytes]) -> Path:
    """Write one payload to a line; the path."""
    path.write_bytes(b"\n".join(payloads) + b"\n")
    return path
