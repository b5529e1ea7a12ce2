"""Messages of Kafka's protocol: frames to requests, answers to frames, and the versions that the hub serves.

The layouts are Kafka's own definitions, as kio generates them. Handlers see the newest served version of each message
alone: an older request is raised to it, and an answer is lowered to the version of its request.
"""

from __future__ import annotations

import dataclasses
import io
import struct
from datetime import timedelta
from functools import cache
from typing import Any, Final, NamedTuple, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.api_versions.v3 import response as versions
from kio.schema.errors import ErrorCode
from kio.schema.produce.v7 import response as produced
from kio.schema.sasl_authenticate.v1 import response as authenticated
from kio.schema.sasl_handshake.v1 import response as handshake
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import DecodeError, OutOfBoundValue

from weft.protocols.errors import Corrupt

LENGTH = struct.Struct(">i")
"""Layout of a frame's length, before it."""
_HEAD = struct.Struct(">hhi")
"""Layout with which every request begins: API key, version and correlation id."""
NO_TIME: Final = timedelta()
"""Time for which a client should not ask: the hub lets it wait for the answer instead."""
FLEXIBLE_BYTES_MAX = 16 << 10
"""Longest request of a version with tagged fields (KIP-482), whose decoding takes some 60 times as long for each byte:
a microsecond."""


class Api(NamedTuple):
    """A request that the hub serves."""

    name: str
    first: int
    """Oldest served version."""
    last: int
    """Newest served version, which handlers see."""


PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
LIST_GROUPS, SASL_HANDSHAKE, API_VERSIONS = 16, 17, 18
DESCRIBE_CONFIGS, SASL_AUTHENTICATE, DESCRIBE_CLUSTER = 32, 36, 60
APIS: Final = {
    # librdkafka fetches no record batches of version 2 from a broker that does not announce Produce 3, and none in zstd
    # without Produce 7 (rdkafka_feature.c). Every record is refused.
    PRODUCE: Api("Produce", 3, 7),
    # Versions with numbers of topics instead of names (Fetch 13, Metadata 10) are left out: streams have none.
    FETCH: Api("Fetch", 4, 11),
    LIST_OFFSETS: Api("ListOffsets", 1, 5),
    METADATA: Api("Metadata", 1, 8),
    # Version 0 continues without frames of Kafka.
    SASL_HANDSHAKE: Api("SaslHandshake", 1, 1),
    API_VERSIONS: Api("ApiVersions", 0, 3),
    DESCRIBE_CONFIGS: Api("DescribeConfigs", 1, 3),
    SASL_AUTHENTICATE: Api("SaslAuthenticate", 0, 1),
    DESCRIBE_CLUSTER: Api("DescribeCluster", 0, 0),
}
"""Key -> request that the hub serves. ApiVersions announces these and no others."""


class Request(NamedTuple):
    """A decoded request."""

    key: int
    version: int
    correlation_id: int
    client_id: str
    body: Any
    """Message of the API's newest version; None if the version is not served."""


@cache
def _schema(key: int, version: int) -> tuple[Any, Any, Any]:
    """Return the class of a request, and the readers of its header and of itself."""
    request = load_request_schema(key, version)
    return request, entity_reader(request.__header_schema__), entity_reader(request)


@cache
def _answer_schema(key: int, version: int) -> tuple[Any, Any, Any]:
    """Return the class of an answer, and the writers of its header and of itself."""
    response = load_response_schema(key, version)
    return response, entity_writer(response.__header_schema__), entity_writer(response)


def decode(frame: bytes) -> Request:
    """Return the request of a frame.

    A version of ApiVersions that is not served is no error: the client learns the served ones from the answer. Nor is a
    field of a later release in it: the client asks again by version 0.

    Raises:
        Corrupt: it is no request, or one that the hub does not serve.
    """
    if len(frame) < _HEAD.size:
        raise Corrupt(f"a request of {len(frame)} bytes is shorter than its header")
    key, version, correlation_id = _HEAD.unpack_from(frame)
    api = APIS.get(key)
    if api is None or not api.first <= version <= api.last:
        if key == API_VERSIONS:
            return Request(key, 0, correlation_id, "", None)
        raise Corrupt(f"API {key} version {version} is not served; ApiVersions names those that are")
    kind, read_header, read_body = _schema(key, version)
    if kind.__flexible__ and len(frame) > FLEXIBLE_BYTES_MAX:
        raise Corrupt(f"a request {api.name} of {len(frame)} bytes; the limit is {FLEXIBLE_BYTES_MAX}")
    try:
        header, size = read_header(frame, 0)
        body, length = read_body(frame, size)
    except KeyError as error:  # a tagged field of a later release, which kio does not pass over
        if key == API_VERSIONS:
            return Request(key, 0, correlation_id, "", None)
        raise Corrupt(f"a request {api.name} version {version}: {error}") from error
    except (DecodeError, OutOfBoundValue, ValueError, OverflowError, TypeError) as error:
        raise Corrupt(f"a request {api.name} version {version} does not decode: {error}") from error
    if size + length != len(frame):
        raise Corrupt(f"{len(frame) - size - length} bytes follow a request {api.name} version {version}")
    return Request(key, version, correlation_id, header.client_id or "", converted(body, _schema(key, api.last)[0]))


def encode(request: Request, answer: Any) -> bytes:
    """Return the frame of an answer, its length included.

    Args:
        answer: message of the API's newest version.
    """
    kind, write_header, write_body = _answer_schema(request.key, request.version)
    buffer = io.BytesIO()
    buffer.write(bytes(LENGTH.size))
    write_header(buffer, kind.__header_schema__(correlation_id=request.correlation_id))
    write_body(buffer, converted(answer, kind))
    frame = buffer.getbuffer()
    LENGTH.pack_into(frame, 0, len(frame) - LENGTH.size)
    return buffer.getvalue()


# Answers that depend on the request alone.

MECHANISM: Final = "PLAIN"
"""The SASL mechanism that the hub takes (RFC 4616)."""


def api_versions(request: Request) -> Any:
    """Return the answer to ApiVersions."""
    return versions.ApiVersionsResponse(
        error_code=ErrorCode.none if request.body is not None else ErrorCode.unsupported_version,
        api_keys=tuple(
            versions.ApiVersion(api_key=key, min_version=api.first, max_version=api.last) for key, api in APIS.items()
        ),
        throttle_time=NO_TIME,
    )


def sasl_handshake(body: Any) -> Any:
    """Return the answer to SaslHandshake."""
    error = ErrorCode.none if body.mechanism == MECHANISM else ErrorCode.unsupported_sasl_mechanism
    return handshake.SaslHandshakeResponse(error_code=error, mechanisms=(MECHANISM,))


def sasl_password(body: Any) -> str | None:
    """Return the password in SaslAuthenticate: an identity to act as, a user name and a password, with zeros between.
    None if it is no message of PLAIN."""
    parts = body.auth_bytes.split(b"\0")
    return parts[2].decode("utf-8", "replace") if len(parts) == 3 else None


def sasl_authenticated(why_not: str | None, lifetime: timedelta = NO_TIME) -> Any:
    """Return the answer to SaslAuthenticate.

    Args:
        why_not: the reason of a refusal; None for an admitted client.
        lifetime: time after which it has to authenticate again; zero for no end.
    """
    error = ErrorCode.none if why_not is None else ErrorCode.sasl_authentication_failed
    return authenticated.SaslAuthenticateResponse(
        error_code=error, error_message=why_not, auth_bytes=b"", session_lifetime=lifetime
    )


def produce(body: Any) -> Any:
    """Return the refusal of all records: streams have those of edges alone."""

    def refused(topic: Any) -> produced.TopicProduceResponse:
        return produced.TopicProduceResponse(
            name=topic.name,
            partition_responses=tuple(
                produced.PartitionProduceResponse(
                    index=each.index, error_code=ErrorCode.topic_authorization_failed, base_offset=-1
                )
                for each in topic.partition_data
            ),
        )

    return produced.ProduceResponse(responses=tuple(map(refused, body.topic_data)))


# The same message in another version.


@cache
def _fields(of: type, to: type) -> tuple[tuple[tuple[str, type | None], ...], dict[str, Any]]:
    """Return the common fields of two versions of a message, each with its class in the other version if it holds
    messages; and the values of fields that only the other version has."""
    own = {each.name for each in dataclasses.fields(of)}
    common, new = [], {}
    for each in dataclasses.fields(to):
        if each.name in own:
            common.append((each.name, _nested(each.type)))
        elif each.default is dataclasses.MISSING:
            new[each.name] = _implied(each.type)
    return tuple(common), new


def _nested(kind: Any) -> type | None:
    """Return the class of messages in a field; None if it holds none."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return kind
    return next(filter(None, map(_nested, get_args(kind))), None)


def _implied(kind: Any) -> Any:
    """Return the value of a field without a default, in Kafka's definitions: none, nothing or zero."""
    if type(None) in get_args(kind):
        return None
    if get_origin(kind) is tuple:
        return ()
    if issubclass(kind, ErrorCode):
        return ErrorCode.none
    return next(of() for of in (bool, int, str, bytes, timedelta) if issubclass(kind, of))


def converted(value: Any, to: type) -> Any:
    """Return a message in another version of itself: fields that the version lacks are left out, fields that are new in
    it have their defaults."""
    of: type = type(value)
    if of is to:
        return value
    common, new = _fields(of, to)
    found = dict(new)
    for name, nested in common:
        part = getattr(value, name)
        if nested is not None and part is not None:
            part = tuple(converted(each, nested) for each in part) if type(part) is tuple else converted(part, nested)
        found[name] = part
    return to(**found)
