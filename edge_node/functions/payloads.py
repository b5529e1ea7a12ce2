"""Contract of a payload format: bytes to fields and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from weft.edge_node.functions.contract import Path, Values


class PayloadError(ValueError):
    """A payload that is not of its stream's format, or values that the format cannot hold; the text states the
    problem."""


class Format(Protocol):
    """A format of payloads. Stateless; for one thread."""

    def decode(self, payload: bytes) -> Values:
        """Return the fields of a payload.

        Raises:
            PayloadError: it is not of this format.
        """
        ...

    def encode(self, values: Values) -> bytes:
        """Return a payload with these fields, the same bytes for the same values in the same order.

        Raises:
            PayloadError: the format cannot hold them.
        """
        ...


@runtime_checkable
class PartialFormat(Protocol):
    """A format that can leave out fields while it decodes."""

    def decoder(self, paths: frozenset[Path]) -> Callable[[bytes], Values]:
        """Return a function that decodes only these fields of a payload, as ``decode`` does. It may return more.

        It raises ``PayloadError`` as ``decode`` does, except for numbers in other fields that cannot be represented.
        """
        ...
