"""The fuzz target on a fixed stretch of seeded damage; and, where atheris is installed, for a while under its eyes."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.mqtt_codec import run_one
from tests.protocols.mqtt.strategies import VECTORS, VECTORS_5

SEEDS = [
    *(bytes([version - 3]) + bytes.fromhex(text) for text, _ in VECTORS for version in (3, 4)),
    *(b"\2" + bytes.fromhex(text) for text, _ in VECTORS_5),
]
INTERESTING = bytes([0, 1, 2, 0x7F, 0x80, 0xFF, *range(0x20, 0x2B), *range(0x10, 0x100, 0x10)])
ROUNDS = 30_000


def damage(seed: bytes, chance: random.Random) -> bytes:
    data = bytearray(seed)
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
                data += chance.choice(SEEDS)[1:]
    return bytes(data)


def test_seeds_and_their_damaged_kin() -> None:
    chance = random.Random(5)
    for seed in SEEDS:
        run_one(seed)
    for _ in range(ROUNDS):
        data = damage(chance.choice(SEEDS), chance)
        try:
            run_one(data)
        except Exception as error:
            raise AssertionError(f"input {data.hex()}") from error


@pytest.mark.slow
def test_under_atheris(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    for number, seed in enumerate(SEEDS):
        (tmp_path / str(number)).write_bytes(seed)
    command = [sys.executable, "-m", "tests.fuzz.mqtt_codec", "-runs=200000", "-max_len=512", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
