"""The definition of a query's windows, by parts: a query detects by it that the sink's windows have another one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

import msgspec

IfChanged = Literal["refuse", "recompute", "keep"]
IF_CHANGED: tuple[IfChanged, ...] = ("refuse", "recompute", "keep")
Definition = dict[str, str]
"""Part of the definition, such as ``by`` -> a digest of it."""
_DIGEST_BYTES = 8
LATER_FIELDS = frozenset({"definition", "message", "framing", "personal"})
"""Fields of a schema and its columns that releases before do not know: one that is not set counts for nothing, so that
windows of such a release are not taken for others."""


def definition_of(parts: Mapping[str, object]) -> Definition:
    """Return the digests of a definition's parts. For functions, only the name counts."""
    return {name: _digest(_told(value)) for name, value in parts.items()}


def changed_parts(held: Definition, given: Definition) -> list[str]:
    """Return the parts that differ; none when the definition of one side is not known."""
    if not held or not given:
        return []
    return sorted(name for name in {*held, *given} if held.get(name) != given.get(name))


def changed_sentence(parts: list[str]) -> str:
    """Return the message for changed parts, with advice."""
    return (
        f"{' and '.join(parts)} changed since the sink's windows were written, and windows of both kinds would stand "
        "side by side. Start once with if_changed='recompute' (--if-changed recompute) to compute all windows again. "
        "With 'keep', windows stay as they are until their records change"
    )


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _told(value: object) -> str:
    if isinstance(value, Mapping):
        return msgspec.json.encode({str(name): _told(each) for name, each in value.items()}, order="sorted").decode()
    if isinstance(value, frozenset | set | tuple | list):
        return msgspec.json.encode(sorted(map(_told, value))).decode()
    if isinstance(value, msgspec.Struct):
        return _shown(value)
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return value.strip() if isinstance(value, str) else str(value)


def _shown(value: object) -> str:
    """Return ``repr``, without later fields that are not set."""
    if isinstance(value, msgspec.Struct):
        fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
        told = [
            f"{name}={_shown(each)}"
            for name, each in fields
            if not (each is None or each is False) or name not in LATER_FIELDS
        ]
        return f"{type(value).__name__}({', '.join(told)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {_shown(each)}' for name, each in value.items())}}}"
    return repr(value)
