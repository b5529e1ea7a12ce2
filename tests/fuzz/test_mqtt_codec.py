"""The fuzz target of MQTT packets on a fixed stretch of seeded damage."""

from __future__ import annotations

from tests.fuzz.mqtt_codec import run_one
from tests.fuzz.mqtt_damage import SEEDS, run_damaged

ROUNDS = 30_000


def test_seeds_and_their_damaged_kin() -> None:
    for seed in SEEDS:
        run_one(seed)
    run_damaged(5, ROUNDS)
