"""The fuzz target on a fixed stretch of seeded damage; and, where atheris is installed, for a while under its eyes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.mqtt_codec import run_one
from tests.fuzz.mqtt_damage import SEEDS, run_damaged

ROUNDS = 30_000


def test_seeds_and_their_damaged_kin() -> None:
    for seed in SEEDS:
        run_one(seed)
    run_damaged(5, ROUNDS)


@pytest.mark.slow
def test_under_atheris(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    for number, seed in enumerate(SEEDS):
        (tmp_path / str(number)).write_bytes(seed)
    command = [sys.executable, "-m", "tests.fuzz.mqtt_codec", "-runs=200000", "-max_len=512", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
