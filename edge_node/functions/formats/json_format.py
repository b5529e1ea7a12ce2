"""Payloads in JSON (RFC 8259)."""

from __future__ import annotations

import msgspec

from weft.edge_node.functions.contract import Values
from weft.edge_node.functions.formats.bounds import DEPTH_MAX, PAYLOAD_BYTES_MAX, TOO_DEEP, VALUE, check_length
from weft.edge_node.functions.payloads import PayloadError
from weft.protocols.payloads import nests_at_most


class JsonFormat:
    """JSON. Of a name that comes twice in an object, the last one counts.

    JSON has no bytes and no NaN: ``encode`` writes bytes as text in base64 (RFC 4648), and NaN and the infinities as
    null, as RFC 8949 section 6.1 suggests.
    """

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder().decode
        self._encode = msgspec.json.Encoder().encode

    def decode(self, payload: bytes) -> Values:
        """Return the fields of a JSON value.

        Raises:
            PayloadError: it is not JSON, too long or too deep.
        """
        # Short payloads and those with few brackets cannot be too deep.
        if len(payload) > DEPTH_MAX and payload.count(b"[") + payload.count(b"{") > DEPTH_MAX:
            check_length(payload)
            if not nests_at_most(DEPTH_MAX, payload):
                raise PayloadError(TOO_DEEP)
        elif len(payload) > PAYLOAD_BYTES_MAX:
            check_length(payload)
        try:
            value = self._decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PayloadError(f"it is not JSON: {error}") from None
        # JSON has no other types than those of fields, and its names are text.
        return value if type(value) is dict else {VALUE: value}

    def encode(self, values: Values) -> bytes:
        """Return an object of JSON without white space, its names in the order of the fields.

        Raises:
            PayloadError: JSON cannot hold them.
        """
        try:
            return self._encode(values)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise PayloadError(f"JSON cannot hold its fields: {error}") from None
