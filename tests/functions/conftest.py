"""A python function on a file, with its real process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.functions.restart import Recorder, context, row
from weft.config.functions.step import Python as Settings
from weft.functions import python as module
from weft.functions.contract import Row
from weft.functions.python import Python

SECOND = 10**9


class Subject:
    """A function as the runtime drives it, and what came out."""

    def __init__(self, folder: Path, signed_by: tuple[str, ...] = (), **settings: Any) -> None:
        self.signed_by = signed_by
        self.file = folder / "score.py"
        self.settings = Settings(file=str(self.file), **settings)
        self.function = self.made()
        self.out = Recorder()

    def made(self) -> Python:
        levels = {b"plant/1": {"line": "1"}}
        return Python(self.settings, context(levels)._replace(signed_by=self.signed_by))

    def write(self, code: str) -> None:
        self.file.write_text(code)

    async def feed(self, *values: dict[str, Any], key: bytes = b"plant/1") -> list[dict[str, Any]]:
        """Feed records, a second apart, as one step."""
        rows = [row((at + 1) * SECOND, each, key) for at, each in enumerate(values)]
        return [each.values for each in await self.rows(rows)]

    async def rows(self, rows: list[Row]) -> list[Row]:
        await self.function.prepare()
        return await self.function.process_async(rows, self.out)

    async def restart(self) -> None:
        """Begin again from what the runtime would have kept."""
        await self.function.close()
        former, self.function = self.function, self.made()
        assert former.state is not None
        assert self.function.state is not None
        for key, value in former.state.items():
            self.function.state.load(key, value)


Make = Callable[..., Awaitable[Subject]]


@pytest.fixture
async def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Subject]]:
    """Make a function from its code and settings."""
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(module, "SOON_S", 60.0)  # tests want to see the version that they have written
    made: list[Subject] = []

    def make(code: str, **settings: Any) -> Subject:
        found = Subject(tmp_path, **settings)
        found.write(code)
        made.append(found)
        return found

    yield make
    for each in made:
        await each.function.close()
