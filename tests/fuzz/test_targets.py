"""Every decoder that strangers reach, on the inputs that are kept: nothing but its own errors, in time and memory.

Each input comes three times: as it is, repeated until it is 64 KiB long, and damaged in ways that a seed repeats.
"""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest

from tests.fuzz import long_run
from tests.fuzz.__main__ import SEED_BYTES_MAX
from tests.fuzz.long_run import run_by_coverage, run_by_damage
from tests.fuzz.mqtt_codec import SEEDS, damage, run_damaged, run_one
from tests.fuzz.target import Target, check, check_memory, corpus, multiplied, tracing
from tests.fuzz.targets import TARGETS

named = pytest.mark.parametrize(("name", "target"), TARGETS.items(), ids=TARGETS)
thorough = pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(name, target, id=name, marks=[pytest.mark.slow] * target.is_slow)
        for name, target in TARGETS.items()
    ],
)


@named
def test_the_corpus_has_the_seeds(name: str, target: Target) -> None:
    absent = {seed for seed in target.seeds() if len(seed) <= SEED_BYTES_MAX} - set(corpus(name))
    assert not absent, (
        f"tests/fuzz/corpus/{name} lacks {len(absent)}: run `./run fix`, which writes them, and commit them"
    )


@thorough
@pytest.mark.parametrize("damaged", [150, pytest.param(400, marks=pytest.mark.slow)])
def test_the_corpus_and_its_damaged_kin(name: str, target: Target, damaged: int) -> None:
    kept = corpus(name)
    for data in {*kept, *target.seeds()}:
        check(target, data)
        check(target, multiplied(target, data))
    chance = random.Random(5)
    for _ in range(damaged):
        data = damage(chance.choice(kept), chance, kept)
        try:
            check(target, data)
        except Exception as error:
            raise AssertionError(f"input {data.hex()}") from error


@thorough
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_memory_is_bounded_by_the_size(name: str, target: Target, every: int) -> None:
    with tracing():
        for data in sorted({*corpus(name), *target.seeds()})[::every]:
            target.run(data)
            check_memory(target, data)
            check_memory(target, multiplied(target, data))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="no atheris for this platform")
def test_a_while_by_coverage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_run, "FOUND", tmp_path)
    for name in TARGETS:
        run_by_coverage(name, 7, seconds=3)


def test_an_input_that_breaks_a_promise_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(data: bytes) -> None:
        if len(data) > 20:
            raise KeyError(data[20])

    monkeypatch.setattr(long_run, "TARGETS", {"proxy": Target(run, list)})
    with pytest.raises(AssertionError, match=r"proxy, KeyError: .*input [0-9a-f]{42,}"):
        run_by_damage("proxy", 5, seconds=5)


# --- The fuzz target of MQTT packets on a fixed stretch of seeded damage


ROUNDS = 30_000


def test_seeds_and_their_damaged_kin() -> None:
    for seed in SEEDS:
        run_one(seed)
    run_damaged(5, ROUNDS)
