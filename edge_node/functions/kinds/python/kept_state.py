"""State of a user's code: a mapping that outlives the process, because each answer contains the changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import msgspec

KEY_CHARACTERS_MAX = 256
_LIST_OF_ONE = b"\x91"
"""First byte of a list with one value in MessagePack."""


class StateFull(ValueError):
    """A call would make the state larger than the stream's settings allow."""


class KeptState(MutableMapping[str, Any]):
    """A mapping with changes per call: kept at the end of a successful call, undone after a failed one.

    A list or mapping that was read may be changed in place, so values are compared as bytes, before and after a call.
    """

    def __init__(self, encode: Callable[[Any], bytes], bytes_max: int) -> None:
        self._encode = encode
        self._bytes_max = bytes_max
        self._values: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._before: dict[str, bytes | None] = {}
        """Keys that this call has touched, each with the value that it had; None for a key that did not exist."""
        self._changes: dict[str, msgspec.Raw | None] = {}

    def put(self, wrapped: dict[str, list[Any]]) -> None:
        """Begin from these values, each in a list of its own."""
        values = self._values = {key: value for key, (value,) in wrapped.items()}
        self._sizes = {key: len(key) + len(self._encode(value)) for key, value in values.items()}
        self._bytes = sum(self._sizes.values())
        self._before = {}
        self._changes = {}

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if type(value) in (list, dict):
            self._touch(key)
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str) or len(key) > KEY_CHARACTERS_MAX:
            raise TypeError(f"a key of ctx.state is a text of at most {KEY_CHARACTERS_MAX} characters, got {key!r:.80}")
        if isinstance(value, tuple | set | frozenset):
            raise TypeError(f"ctx.state cannot keep a {type(value).__name__}: keep a list")
        self._touch(key)
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        if key not in self._values:
            raise KeyError(key)
        self._touch(key)
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _touch(self, key: str) -> None:
        if key not in self._before:
            self._before[key] = self._encode(self._values[key]) if key in self._values else None

    def keep(self) -> None:
        """End a call that succeeded.

        Raises:
            StateFull: the state would grow beyond its bound. The call must be undone. TypeError: a value cannot be
                kept. The call must be undone.
        """
        if not self._before:
            return
        after = {key: self._encode(self._values[key]) if key in self._values else None for key in self._before}
        sizes = {key: 0 if packed is None else len(key) + len(packed) for key, packed in after.items()}
        grown = self._bytes + sum(size - self._sizes.get(key, 0) for key, size in sizes.items())
        if grown > self._bytes_max and grown > self._bytes:
            raise StateFull(
                f"ctx.state would have {grown:,} bytes, and {self._bytes_max:,} are allowed: delete what is no longer "
                "needed, or raise `state`"
            )
        self._bytes = grown
        for key, packed in after.items():
            self._sizes[key] = sizes[key]
            if packed is None:
                self._sizes.pop(key)
            if packed != self._before[key]:
                self._changes[key] = None if packed is None else msgspec.Raw(_LIST_OF_ONE + packed)
        self._before = {}

    def undo(self) -> None:
        """End a failed call: restore the state from before it."""
        for key, packed in self._before.items():
            if packed is None:
                self._values.pop(key, None)
            else:
                self._values[key] = msgspec.msgpack.decode(packed)
        self._before = {}

    def take_changes(self) -> dict[str, msgspec.Raw | None]:
        """Return the changes of the calls since the last ``take_changes``: each value in a list of its own, so that
        None is a value, too; None for deleted keys."""
        changes, self._changes = self._changes, {}
        return changes
