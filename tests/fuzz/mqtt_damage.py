"""Packets of the vectors, damaged in ways that a seed repeats, against the codec."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.fuzz.conversations import INTERESTING
from tests.fuzz.mqtt_codec import run_one
from tests.protocols.mqtt.strategies import VECTORS, VECTORS_5

SEEDS = [
    *(bytes([version - 3]) + bytes.fromhex(text) for text, _ in VECTORS for version in (3, 4)),
    *(b"\2" + bytes.fromhex(text) for text, _ in VECTORS_5),
]


def damage(seed: bytes, chance: random.Random, others: Sequence[bytes] = SEEDS) -> bytes:
    """Change an input in one to four places, its first byte left as it is."""
    data = bytearray(seed or b"\0")
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(1, len(data) + 1)
        match chance.randrange(5):
            case 0 if at < len(data):
                data[at] = chance.choice(INTERESTING)
            case 1 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 2:
                data[at:at] = bytes([chance.choice(INTERESTING)])
            case 3:
                del data[at : at + chance.randint(1, 3)]
            case _:
                data += chance.choice(others)[1:]
    return bytes(data)


def run_damaged(seed: int, rounds: int) -> None:
    """Feed damaged packets to the codec, as many as ``rounds`` says.

    Raises:
        AssertionError: the codec did what it must not; the message holds the bytes.
    """
    chance = random.Random(seed)
    for _ in range(rounds):
        data = damage(chance.choice(SEEDS), chance)
        try:
            run_one(data)
        except Exception as error:
            raise AssertionError(f"input {data.hex()}") from error
