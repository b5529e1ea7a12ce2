"""When a token was last used is known to the hour, at the cost of a write an hour, however many tokens are used."""

from __future__ import annotations

from weft.cloud_hub.facts.tokens import LOOK_S, WRITE_S, TokenUse, last_uses
from weft.storage import hub_keys
from weft.storage.object_store.directory import MemoryStore


class Process:
    def __init__(self, store: MemoryStore, declared: set[str]) -> None:
        self.used: dict[str, int] = {}
        self.now = 0.0
        self.use = TokenUse(store, lambda: self.used, declared.__contains__, lambda: self.now)

    async def minute(self) -> None:
        self.now += LOOK_S
        await self.use.look()


class CountingStore(MemoryStore):
    writes = 0

    async def create(self, key: str, data):  # type: ignore[no-untyped-def]
        self.writes += 1
        return await super().create(key, data)

    async def swap(self, key: str, data, expected_etag: str):  # type: ignore[no-untyped-def]
        self.writes += 1
        return await super().swap(key, data, expected_etag)


async def test_a_first_use_is_known_in_a_minute_and_later_ones_within_the_hour() -> None:
    store = MemoryStore()
    one, two = Process(store, {"press", "ops"}), Process(store, {"press", "ops"})
    one.used["press"] = 1
    await one.minute()
    assert await last_uses(store) == {"press": 1}
    two.used |= {"press": 5, "ops": 3}
    await two.minute()
    one.used["press"] = 4
    for _ in range(int(WRITE_S / LOOK_S) + 1):
        await one.minute()
    assert await last_uses(store) == {"press": 5, "ops": 3}, "the latest of all processes"


async def test_a_day_of_ten_thousand_tokens_is_a_write_an_hour() -> None:
    store = CountingStore()
    names = [f"edge-{n}" for n in range(10_000)]
    process = Process(store, set(names))
    for minute in range(24 * 60):
        process.used = dict.fromkeys(names, minute)
        await process.minute()
    assert store.writes <= 25


async def test_a_withdrawn_token_leaves_the_object() -> None:
    store, declared = MemoryStore(), {"press", "ops"}
    process = Process(store, declared)
    process.used |= {"press": 1, "ops": 2}
    await process.minute()
    declared.discard("press")
    process.used = {"ops": 3}
    for _ in range(int(WRITE_S / LOOK_S) + 1):
        await process.minute()
    assert await last_uses(store) == {"ops": 3}


async def test_an_object_that_cannot_be_read_begins_again() -> None:
    store = MemoryStore()
    await store.create(hub_keys.LAST_USES, b"nonsense")
    assert await last_uses(store) == {}
    process = Process(store, {"press"})
    process.used["press"] = 7
    await process.minute()
    assert await last_uses(store) == {"press": 7}
