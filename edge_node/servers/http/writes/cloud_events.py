"""CloudEvents 1.0: binary, structured and batched. Attributes become headers ``ce-NAME``, data the payload."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any
from urllib.parse import unquote

import msgspec

from weft.edge_node.servers.http.problem import Problem, quoted
from weft.edge_node.servers.http.request import Request
from weft.edge_node.servers.http.writes.fields import HEADERS_MAX, NO_JSON, fill, nanoseconds
from weft.edge_node.servers.http.writes.records import NewRecord
from weft.protocols.columns import HeaderValue
from weft.protocols.message_headers import CONTENT_TYPE, SENT

PREFIX = "ce-"
STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"
OF_ANY_FORMAT = "application/cloudevents"
"""Prefix of the media types of events whose attributes are in the body."""
_NAME = re.compile(r"[a-z0-9]{1,64}")
_NEEDED = ("id", "source", "specversion", "type")
_EVENT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_INT32 = range(-(1 << 31), 1 << 31)


def is_binary(request: Request) -> bool:
    """Return whether a request is an event whose attributes are fields of its head."""
    return b"ce-specversion" in request.headers


def binary(request: Request, content_type: str, key: str, payload: bytes) -> NewRecord:
    """Return the event of a request in binary mode.

    Raises:
        Problem: it is not an event.
    """
    attributes: dict[str, HeaderValue] = {}
    for name, value in request.fields:
        if name.startswith(b"ce-"):
            text = value.decode("latin-1").strip()
            if len(text) > 1 and text[0] == text[-1] == '"':
                text = text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
            attributes[name[3:].decode("latin-1")] = unquote(text)
    if content_type:
        attributes["datacontenttype"] = content_type
    return _record(attributes, payload, key)


def structured(key: str, event: bytes) -> NewRecord:
    """Return an event in JSON.

    Raises:
        Problem: it is not an event.
    """
    try:
        fields = _EVENT.decode(event)
        attributes = {
            name: msgspec.json.decode(value) for name, value in fields.items() if name not in ("data", "data_base64")
        }
    except NO_JSON as error:
        raise Problem(400, f"the event is no JSON object: {error}; correct it") from None
    for name, value in attributes.items():
        if value is not None and not isinstance(value, str | bool) and not (type(value) is int and value in _INT32):
            raise Problem(400, f"the event's attribute {quoted(name)} is neither text, a boolean nor an integer")
    payload = b""
    if "data_base64" in fields:
        try:
            payload = base64.b64decode(msgspec.json.decode(fields["data_base64"], type=str), validate=True)
        except (*NO_JSON, binascii.Error):
            raise Problem(400, "the event's data_base64 is no base64; correct it") from None
        if "data" in fields:
            raise Problem(400, "the event has both data and data_base64; send one of them")
    elif "data" in fields:
        payload = _data(bytes(fields["data"]), str(attributes.get("datacontenttype") or ""))
    return _record({name: value for name, value in attributes.items() if value is not None}, payload, key)


def _data(data: bytes, content_type: str) -> bytes:
    """Return data in the form of a body: text that is not JSON becomes the text itself (JSON format, 3.1.1)."""
    kind = content_type.partition(";")[0].strip().lower()
    if data[:1] == b'"' and kind and not (kind.endswith(("/json", "+json"))):
        try:
            return msgspec.json.decode(data, type=str).encode()
        except NO_JSON as error:
            raise Problem(400, f"the event's data is no text in JSON: {error}; correct it") from None
    return data


def _record(attributes: dict[str, Any], payload: bytes, key: str) -> NewRecord:
    for name in _NEEDED:
        if not attributes.get(name) or not isinstance(attributes[name], str):
            raise Problem(400, f"the event has no attribute {name}; CloudEvents 1.0 needs it as text")
    if attributes["specversion"] != "1.0":
        raise Problem(400, f"the event is of version {quoted(attributes['specversion'])}; send CloudEvents 1.0")
    if len(attributes) > HEADERS_MAX:
        raise Problem(400, f"the event has more than {HEADERS_MAX} attributes; send fewer")
    headers: list[tuple[str, HeaderValue]] = []
    for name, value in attributes.items():
        if not _NAME.fullmatch(name):
            raise Problem(400, f"{quoted(name)} cannot name an attribute; use lower-case letters and digits")
        if name == "datacontenttype":
            headers.append((CONTENT_TYPE, value))
        else:
            headers.append((PREFIX + name, value))
    if "time" in attributes:
        headers.append((SENT, nanoseconds(attributes["time"], "s")))
    return NewRecord(fill(key, attributes.get).encode(), payload, tuple(headers))
