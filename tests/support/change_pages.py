"""The pages of ``docs/change``: what each adds to which file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "change"
BLOCK = re.compile(r"^```(\w+) (\S+)\n(.*?)^```$", re.S | re.M)


class Block(NamedTuple):
    """A hunk of a file (``diff``), or the whole of a new one."""

    kind: str
    file: str
    text: str

    def without(self, sign: str) -> str:
        """Return the hunk's lines but those that begin with the sign."""
        return "".join(line[1:] for line in self.text.splitlines(keepends=True) if line[0] != sign)


def blocks(text: str) -> list[Block]:
    """Find what the blocks of a page that have a file name say. Hunks of a block are parted by a line ``@@``."""
    return [
        Block(kind, file, part)
        for kind, file, whole in BLOCK.findall(text)
        for part in (whole.split("@@\n") if kind == "diff" else [whole])
    ]


def follow(page: str, text: str, read: Callable[[str], str | None]) -> dict[str, str]:
    """Return what the tree has when all of a page is done: file -> its text, of those that the page makes or changes.

    A page that no longer fits the tree is old: the test is skipped, and the end of the run names the page. An author
    who changed the lines of a hunk for another reason need not stop for it.

    Args:
        page: the page's name in messages.
        read: gives the text of a file of the tree; None for one that is not there.
    """
    files: dict[str, str] = {}
    for block in blocks(text):
        found = files.get(block.file, read(block.file))
        if block.kind != "diff":
            if found is not None:
                pytest.skip(f"{page} is old: {block.file} is there already; change the page")
            files[block.file] = block.text
            continue
        before, tree = block.without("+"), found or ""
        times = tree.count(before)
        if times != 1:
            pytest.skip(
                f"{page} is old: a hunk no longer fits {block.file}; change the page. "
                f"The file should have these lines once, and has them {times} times: {before!r}"
            )
        files[block.file] = tree.replace(before, block.without("-"))
    return files


def of_the_tree(file: str) -> str | None:
    path = ROOT / file
    return path.read_text() if path.exists() else None
