"""The code of a documentation page, as its reader sees it: blocks with a language, and a shell block's commands."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RUN = ("sh", "python", "sql", "yaml")
SHOWN = ("text", "json", "mermaid", "toml", "javascript", "nginx", "haproxy", "caddyfile")
"""Languages of blocks that are only looked at."""
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?: {4}.*\n)(?:(?: {4}.*)?\n)*")
_COMMENT_NAME = re.compile(r"# (\S+\.(?:ya?ml|conf))\b")
_PROSE_NAME = re.compile(r"`([\w./-]+\.(?:ya?ml|conf))`")


class Block(NamedTuple):
    """A block of code."""

    language: str
    text: str
    line: int
    file: str | None
    """The file that the text makes, for YAML: named in its first line, or last before it."""
    is_followed: bool
    """Whether no comment before it says that the page's test leaves it out."""


def blocks(page: Path) -> list[Block]:
    """Return the page's blocks in their order. An indented block is one of shell commands."""
    text = page.read_text()
    found = [(match.start(), match[2], textwrap.dedent(match[3])) for match in _FENCE.finditer(text)]
    rest = _FENCE.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), text)
    found += [
        (match.start(), "sh", textwrap.dedent(match[0]).rstrip("\n") + "\n")
        for match in _INDENTED.finditer(rest)
        if not _continues_a_list(rest[: match.start()])
    ]
    return [
        Block(language, body, text.count("\n", 0, start) + 1, _file(body, text[:start]), _is_followed(text[:start]))
        for start, language, body in sorted(found)
    ]


def _continues_a_list(before: str) -> bool:
    return before.rstrip().rpartition("\n\n")[2].lstrip().startswith(("- ", "* ", "1. "))


def _is_followed(before: str) -> bool:
    return not before.rstrip().rpartition("\n")[2].lstrip().startswith("<!-- not followed:")


def _file(body: str, before: str) -> str | None:
    if commented := _COMMENT_NAME.match(body):
        return commented[1]
    names: list[str] = _PROSE_NAME.findall(before)
    return names[-1] if names else None


def commands(shell: str) -> Iterator[str]:
    """Yield the commands of a shell block: lines, joined where one ends in a backslash or a quote is open."""
    held = ""
    for line in shell.splitlines(keepends=True):
        held += line
        if held.rstrip().endswith("\\") or _open_quote(held):
            continue
        if held.strip() and not held.lstrip().startswith("#"):
            yield held.strip()
        held = ""
    assert not held.strip(), f"a command without an end: {held}"


def _open_quote(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False
