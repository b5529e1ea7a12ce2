"""Guesses at the setting that a person meant, from nearby sections: the same one, the one around it, one in it, or a
named one in one in it.

A setting of that name in a distant section would distract from the list of settings that are valid here.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.config.errors import KeyPath

_SUFFIXES = ("_file", "_path", "file", "path")
_WORD_MIN = 2
_OTHER_WORDS = {
    "from": "file", "source": "file", "path": "file", "filename": "file", "key": "on", "join": "on", "url": "to",
    "urls": "to",
}  # fmt: skip
"""Words that other programs have for a setting."""


def near_setting(key: str, known: Sequence[str]) -> str | None:
    """Return the setting of the same section that an unknown key may mean."""
    import difflib  # where there is a mistake, and not in every node

    word = key.lower().replace("-", "_")
    stem = next((word.removesuffix(end) for end in _SUFFIXES if word.endswith(end) and word != end), word)
    if stem in known:
        return stem
    if len(stem) >= _WORD_MIN:
        # `cert_file` is `certificate`, and `ca` is `client_ca`: letters in common would find `crl_file` for both.
        parts = [name for name in known if name.startswith(stem) or stem in name.split("_")]
        if len(parts) == 1:
            return parts[0]
    if found := difflib.get_close_matches(word, known, n=1, cutoff=0.7):
        return found[0]
    other = _OTHER_WORDS.get(word)
    return other if other in known else None


def near_path(key: str, section: KeyPath, paths: Sequence[str]) -> str | None:
    """Return the path of a setting of this name in the section around, or in a section of this one; else in those of
    any name within one section of this one, if in no other.

    Args:
        section: section of the key.
        paths: of all settings, with ``<name>`` for a name and ``[]`` for an entry of a list.
    """
    here = ["[]" if isinstance(step, int) else step for step in section]
    for path in paths:
        *around, name = path.replace("[]", ".[]").split(".")
        if name != key:
            continue
        if _fit(around, here[:-1]) or (_fit(around[:-1], here) and not around[-1].startswith(("<", "["))):
            return path
    here_named = [path for path in paths if _within_named(path, key, here)]
    return here_named[0] if len(here_named) == 1 else None


def _within_named(path: str, key: str, here: list[str]) -> bool:
    *around, name = path.replace("[]", ".[]").split(".")
    return name == key and around[-1:] == ["<name>"] and len(around) > 1 and _fit(around[:-2], here)


def _fit(pattern: list[str], path: list[str]) -> bool:
    return len(pattern) == len(path) and all(
        each.startswith("<") or each == step for each, step in zip(pattern, path, strict=True)
    )
