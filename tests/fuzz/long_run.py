"""One target for a while: by coverage where atheris is there, else by damage that a seed repeats."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.mqtt_codec import damage
from tests.fuzz.target import CORPUS, check, corpus
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
FOUND = ROOT / "fuzz-found"
"""Inputs that nights found to cover more; the next night continues from them."""
REPORT_CHARACTERS = 1500


def run(seed: int, seconds: float) -> None:
    """Fuzz the target whose turn it is.

    Raises:
        AssertionError: an input broke a promise; the message holds it.
    """
    name = sorted(TARGETS)[seed % len(TARGETS)]
    if importlib.util.find_spec("atheris") is None:
        run_by_damage(name, seed, seconds)
    else:
        run_by_coverage(name, seed, seconds)


def run_by_damage(name: str, seed: int, seconds: float) -> None:
    """Feed damaged inputs of the corpus to a target.

    Raises:
        AssertionError: as ``run``.
    """
    target, kept, chance, end = TARGETS[name], corpus(name), random.Random(seed), time.monotonic() + seconds
    while time.monotonic() < end:
        data = damage(chance.choice(kept), chance, kept)
        try:
            check(target, data)
        except Exception as error:
            raise AssertionError(f"{name}, {type(error).__name__}: {error}; input {data.hex()}") from error


def run_by_coverage(name: str, seed: int, seconds: float) -> None:
    """Fuzz a target under libFuzzer, in a process of its own.

    Raises:
        AssertionError: as ``run``.
    """
    found = FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "tests.fuzz",
        name,
        f"-seed={seed}",
        f"-max_total_time={seconds:.0f}",
        "-timeout=20",
        "-rss_limit_mb=2048",
        "-print_final_stats=0",
        f"-artifact_prefix={FOUND / name}-",
        str(found),
        str(CORPUS / name),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # The message ends with the input: libFuzzer writes it to a file, and as base64.
    assert not done.returncode, f"{name}: {(done.stdout + done.stderr)[-REPORT_CHARACTERS:]}"
