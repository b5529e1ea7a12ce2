"""The exact way through one payload: each field's value, or the reason why it does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.config.payload_schema.paths import format_path
from weft.config.payload_schema.types import FieldType
from weft.storage.payloads.fits import fit
from weft.storage.payloads.formats import Format, found
from weft.storage.payloads.misfits import PAYLOAD, Misfit, RowMisfits, Unreadable, shown
from weft.storage.payloads.tree import Node


class ExactReader:
    """A reader of payloads, for those that the quick ways leave to it.

    Args:
        names: of the fields.
        kinds: their types, as payloads of the format have them (``fits.in_json``).
        root: their places (``tree.tree``).
        parts: the format.
    """

    def __init__(self, names: Sequence[str], kinds: Sequence[FieldType], root: Node, parts: Format) -> None:
        self._names, self._kinds = names, kinds
        self._root, self._parts = root, parts

    def read(self, payload: bytes, misfits: RowMisfits) -> list[Any]:
        """Return the values of a payload by field, null for those that are missing or do not fit."""
        values: list[Any] = [None] * len(self._names)
        try:
            self._walk(self._root, self._parts.root(payload), values, misfits)
        except Unreadable as error:
            misfits.add(PAYLOAD, str(error))
        return values

    def _walk(self, node: Node, part: Any, values: list[Any], misfits: RowMisfits) -> None:
        if node.fields:
            try:
                value = self._parts.plain(part)
            except Unreadable as error:
                for number in node.fields:
                    misfits.add(self._names[number], str(error))
                value = None
            for number in node.fields if value is not None else ():
                try:
                    values[number] = fit(self._kinds[number], value)
                except Misfit as misfit:
                    misfits.add(self._names[number], str(misfit))
        if node.names or node.places:
            self._enter(node, part, values, misfits)

    def _enter(self, node: Node, part: Any, values: list[Any], misfits: RowMisfits) -> None:
        """Walk into an object or array."""
        try:
            value = self._parts.opened(part)
        except Unreadable as error:
            self._refuse([*node.inside()], node, str(error), misfits)
            return
        if value is None:
            return
        if isinstance(value, dict):
            for name, inside in found(value, node.names).items():
                self._walk(node.names[name], inside, values, misfits)
            lost, wanted = [*node.places.values()], "an array"
        elif isinstance(value, list):
            for place, child in node.places.items():
                if place < len(value):
                    self._walk(child, value[place], values, misfits)
            lost, wanted = [*node.names.values()], "an object"
        else:
            lost, wanted = [*node.inside()], "an object" if node.names else "an array"
        reason = f"expected {wanted} at {format_path(node.path)}, got {shown(value)}"
        self._refuse(lost, node, reason, misfits)

    def _refuse(self, lost: list[Node], node: Node, reason: str, misfits: RowMisfits) -> None:
        """Record why the fields below a node are missing."""
        if lost and not node.path:
            misfits.add(PAYLOAD, reason)
            return
        for number in (number for each in lost for number in each.below()):
            misfits.add(self._names[number], reason)
