"""Format of properties and session records in the database and the journal: names and values, without empty ones."""

from __future__ import annotations

from typing import Any

import msgspec

from weft.edge_node.sessions.records import SessionRecord, SharedRecord
from weft.protocols.mqtt.properties import NO_PROPERTIES, Properties

_ENCODER = msgspec.json.Encoder()


def pack_properties(properties: Properties) -> bytes | None:
    """Return the properties that are set as JSON; None when there are none."""
    if properties is NO_PROPERTIES or properties == NO_PROPERTIES:
        return None
    return _ENCODER.encode(_without_defaults(msgspec.to_builtins(properties)))


def unpack_properties(data: bytes | None) -> Properties:
    """Return the properties that ``pack_properties`` wrote. Names that a later release may have added are skipped."""
    return NO_PROPERTIES if data is None else msgspec.json.decode(data, type=Properties)


def pack_record(record: SessionRecord | SharedRecord) -> bytes:
    """Return a record as JSON."""
    return _ENCODER.encode(_without_defaults(msgspec.to_builtins(record, str_keys=True)))


_RECORDS = msgspec.json.Decoder(SessionRecord)
_SHARED_RECORDS = msgspec.json.Decoder(SharedRecord)


def unpack_record(data: bytes | str) -> SessionRecord:
    """Return the session record that ``pack_record`` wrote.

    Raises:
        msgspec.DecodeError, msgspec.ValidationError: the data has another form.
    """
    return _RECORDS.decode(data)


def unpack_shared(data: bytes | str) -> SharedRecord:
    """Return the record of a shared subscription that ``pack_record`` wrote. Raises as ``unpack_record`` does."""
    return _SHARED_RECORDS.decode(data)


def _without_defaults(value: Any) -> Any:
    """Return a value without fields that are None, False or empty: that is their default."""
    if isinstance(value, dict):
        pairs = ((name, _without_defaults(each)) for name, each in value.items())
        return {
            name: each for name, each in pairs if each is not None and each is not False and each not in ({}, [], ())
        }
    return value
