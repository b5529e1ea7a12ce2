"""Contract of a payload format: bytes to fields and back."""

from __future__ import annotations

from typing import Protocol

from weft.edge_node.functions.contract import Values


class PayloadError(ValueError):
    """A payload that is not of its stream's format, or values that the format cannot hold; says what is wrong."""


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
