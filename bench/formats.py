"""Cost of each payload format: ``python -m bench.formats`` prints microseconds for decoding and encoding a payload.

The payloads say the same in each format: a short reading, the messages of the Raspberry Pis, and a long one.
"""

from __future__ import annotations

import timeit
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from weft.config.functions.settings import Payload, PayloadFormat, StructField
from weft.functions.formats import JsonFormat
from weft.functions.registry import format_of

CALLS = 100
REPEATS = 600

SHORT: dict[str, Any] = {"id": "f3:6b:f4:34", "temperature": 21.6}
FLAT: dict[str, Any] = {
    "co": 0.0056825985719608325,
    "humidity": 50.0,
    "light": False,
    "lpg": 0.008446826202354823,
    "motion": False,
    "smoke": 0.022687482170072902,
    "temp": 21.6,
}
PI: dict[str, Any] = {
    "data": FLAT,
    "device_id": "f3:6b:f4:34:c0:17",
    "ts": 1594598424.7576046,
    "device": "iot-device-03",
}
LONG: dict[str, Any] = FLAT | {f"channel_{at}": 0.1234567 * at for at in range(1, 8)} | {"device": "iot-device-03"}
STRUCT = (
    StructField(name="co", type_="f32"),
    StructField(name="humidity", type_="u8", scale=0.5),
    StructField(name="light", type_="bool"),
    StructField(name="lpg", type_="f32"),
    StructField(name="motion", type_="bool"),
    StructField(name="smoke", type_="f32"),
    StructField(name="temp", type_="i16", scale=0.1),
)
CASES: list[tuple[PayloadFormat, str, dict[str, Any]]] = [
    *(
        (name, said, values)
        for name in ("json", "msgpack", "cbor", "sparkplug")
        for said, values in (("short", SHORT), ("flat", FLAT), ("nested, of the Pis", PI), ("long", LONG))
    ),
    ("struct", "flat, two scaled", FLAT),
    ("number", "21.6", {"value": 21.6}),
    ("text", "40 characters", {"value": "x" * 40}),
]


def microseconds(function: Any, given: Any) -> float:
    """Return the time of a call, the best of many: the others shared the machine."""
    return min(timeit.repeat(lambda: function(given), number=CALLS, repeat=REPEATS)) / CALLS * 1e6


def main() -> None:
    """Measure and print."""
    table = Table("format", "payload", "bytes", "decode µs", "encode µs")
    for name, said, values in CASES:
        format_ = format_of(Payload(format=name, fields=STRUCT if name == "struct" else ()))
        payload = format_.encode(values)
        decode, encode = microseconds(format_.decode, payload), microseconds(format_.encode, values)
        table.add_row(name, said, str(len(payload)), f"{decode:.2f}", f"{encode:.2f}")
    for said, values in (("short", SHORT), ("flat", FLAT), ("nested, of the Pis", PI), ("long", LONG)):
        decode_some = JsonFormat().decoder(frozenset((name,) for name in list(values)[-2:]))
        payload = msgspec.json.encode(values)
        table.add_row("json", f"{said}: 2 fields", str(len(payload)), f"{microseconds(decode_some, payload):.2f}", "-")
    Console().print(table)


if __name__ == "__main__":
    main()
