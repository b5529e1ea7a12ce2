"""Levels of keys that are remembered between sections: never those of other patterns, and never without a bound."""

from __future__ import annotations

import threading

from weft.protocols.lane import Lane
from weft.storage.table import rows as module
from weft.storage.table.rows import KEY_COST_BYTES, FoundLevels, Levels, Names, compile_topics

PLANT, SITE = ("plant/{line}/{machine}",), ("plant/{site}/{line}",)
LANES = [Lane("default", edge, 1, "telemetry") for edge in ("press-1", "press-2")]


def test_the_same_key_has_the_levels_of_each_lanes_own_patterns() -> None:
    topics = {LANES[0]: PLANT, LANES[1]: SITE}
    for _ in range(2):
        levels = Levels(["line", "machine"], lambda lane: topics[lane])
        assert levels.of(LANES[0], [b"plant/a/m1", b"other"]) == [("a", "m1"), (None, None)]
        assert levels.of(LANES[1], [b"plant/a/m1"]) == [("m1", None)]
    assert Levels(["machine"], lambda lane: PLANT).of(LANES[0], [b"plant/a/m1"]) == [("m1",)]


def test_patterns_that_a_lane_gets_later_count() -> None:
    for reported, level in (((), None), (PLANT, "m7"), (SITE, None)):
        levels = Levels(["machine"], lambda lane, reported=reported: reported)  # type: ignore[misc]
        assert levels.of(LANES[0], [b"plant/a/m7"]) == [(level,)]


def test_memory_for_keys_is_bounded() -> None:
    found = FoundLevels(bytes_max=1000 * KEY_COST_BYTES)
    names = Names(("line", "machine"), PLANT)
    for first in range(0, 50_000, 500):
        keys = [b"plant/a/m%d" % at for at in range(first, first + 500)]
        assert found.of(names, keys, lambda: compile_topics(PLANT))[-1] == ("a", f"m{first + 499}")
        assert found.kept_keys <= 1000


def test_keys_past_the_bound_are_found_each_time() -> None:
    found = FoundLevels(bytes_max=1000)
    names = Names(("line",), PLANT)
    key = b"plant/" + b"a" * 10_000 + b"/m"
    for _ in range(2):
        assert found.of(names, [key], lambda: compile_topics(PLANT)) == [("a" * 10_000,)]
    assert found.kept_keys == 0


def test_long_lists_of_patterns_are_not_kept() -> None:
    long = tuple(f"site{at}/{'x' * 100}/{{machine}}" for at in range(200))
    before = module._FOUND.kept_keys
    levels = Levels(["machine"], lambda lane: (*long, *PLANT))
    assert levels.of(LANES[0], [b"plant/a/m1"]) == [("m1",)]
    assert module._FOUND.kept_keys == before


def test_threads_share_what_was_found() -> None:
    found = FoundLevels(bytes_max=100 * KEY_COST_BYTES)
    names = Names(("line", "machine"), PLANT)
    wrong: list[object] = []

    def look(part: int) -> None:
        for at in range(400):
            keys = [b"plant/%d/m%d" % (at % 7, (at * part + each) % 50) for each in range(20)]
            made = found.of(names, keys, lambda: compile_topics(PLANT))
            expected = [tuple(key.decode().split("/")[1:]) for key in keys]
            if made != expected:
                wrong.append((made, expected))

    threads = [threading.Thread(target=look, args=(part,)) for part in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
