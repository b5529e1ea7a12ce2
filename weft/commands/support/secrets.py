"""Secrets of a node, to be kept out of what leaves its machine: those that are known, and what looks like one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

MASK = "[removed]"
FILE_BYTES_MAX = 256 << 10
"""Bytes of a file of secrets that are looked at."""
WORD_CHARACTERS_MIN = 6
"""Shorter words are too common in other texts to be taken out of them."""
WORDS_MAX = 20_000
_SECRET = re.compile(r"passw|secret|token|credential|authorization|passphrase|api_?key|private|\bkey\b|_key$", re.I)
"""Names of settings and variables of which a value may be a secret."""
_NAMES_A_FILE = re.compile(r"(_file|_env|_bytes|_max|_s|_id)$|^ca_file$")
_HOLDS = re.compile(r"(token|tokens|password|users|headers|key|secret)[a-z_]*$", re.I)
"""Names of settings whose file holds secrets."""
_SHAPES = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), MASK),
    (re.compile(r"(\w+://)[^/@\s\"']+@"), rf"\1{MASK}@"),
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]+", re.I), rf"\1 {MASK}"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"), MASK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
    (re.compile(r"\$argon2[a-z]*\$[^\s\"']+"), MASK),
    (
        re.compile(
            r"((?:password|passwd|secret|token|signature|sig|api_?key)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;}]+", re.I
        ),
        rf"\1{MASK}",
    ),
)
"""Form of a secret, wherever it stands -> what is left of it."""


class Secrets:
    """The secrets of one node.

    Args:
        settings: its configuration, as plain values.
        environment: variables of this process.
    """

    def __init__(self, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        words = set[str]()
        for name, value in environment.items():
            if _SECRET.search(name):
                words.add(value)
        for name, value in _leaves(settings):
            if _HOLDS.search(name) and os.path.isfile(value):
                words.update(_words_of(value))
            elif name.endswith("_env"):
                words.add(environment.get(value, ""))
        long = sorted((each for each in words if len(each) >= WORD_CHARACTERS_MIN), key=len, reverse=True)[:WORDS_MAX]
        self._known = re.compile("|".join(map(re.escape, long))) if long else None

    def removed_from(self, text: str) -> str:
        """Return a text without secrets."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        for shape, left in _SHAPES:
            text = shape.sub(left, text)
        return text

    def settings(self, value: Any, name: str = "") -> Any:
        """Return plain values of a configuration without secrets. Names of files and of variables stay."""
        if isinstance(value, Mapping):
            return {key: self.settings(each, str(key)) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.settings(each, name) for each in value]
        if not isinstance(value, str):
            return value
        if _SECRET.search(name) and not _NAMES_A_FILE.search(name) and not os.path.isabs(value):
            return MASK
        return self.removed_from(value)


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text of a configuration with the setting that it is the value of."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(each, str(key))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each, name)
    elif isinstance(value, str):
        yield name, value


def _words_of(path: str) -> Iterator[str]:
    """Yield what may be a secret in a file: its words, also those behind a colon, and its lines."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(FILE_BYTES_MAX)
    except OSError:
        return  # what this user cannot read, the bundle cannot have
    for line in text.splitlines():
        if line.startswith("-----"):
            continue
        yield line.strip()
        # A name before a colon is that of a user, a setting or a header.
        yield from line.partition(":")[2].split() if ":" in line else line.split()
