"""Types of the bodies of requests, with their bounds."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from weft.config.limits import FACT_NAME_CHARACTERS_MAX, REASON_CHARACTERS_MAX
from weft.config.payload_schema.model import Compatibility, PayloadSchema
from weft.hub_api.answers import ApiError
from weft.hub_api.rights import GRANT_CHARACTERS_MAX, GRANTS_MAX, TOKEN_NAME_CHARACTERS_MAX, Scope
from weft.protocols.lane import NAME_CHARACTERS_MAX
from weft.protocols.link import TOPIC_CHARACTERS_MAX
from weft.protocols.shard.placement import SHARDS_MAX

T = TypeVar("T")
SQL_CHARACTERS_MAX = 16 << 10
SQL_ROWS_DEFAULT, SQL_ROWS_MAX = 1_000, 10_000
SQL_S, SQL_WAIT_S = 60.0, 30.0
"""Longest time of a query, and its longest wait for others, in seconds."""


def decoded(body: bytes, wanted: type[T]) -> T:
    """Return the document in a body.

    Raises:
        ApiError: 400: it is not of the type.
    """
    try:
        return msgspec.json.decode(body, type=wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid: {error}", "GET /v1/openapi.json describes it") from None


Reason = Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)]
"""Reason for the record of administrative acts."""
OVERLAP = "7d"
CODE_VALID = "15m"
"""Time for which the code of a pairing counts, unless the request says another."""
IMPORTED_MAX = 1000
"""Maximum number of tokens that one request imports; a larger fleet needs several requests."""
_END_CHARACTERS_MAX = 40
_End = Annotated[str, Meta(max_length=_END_CHARACTERS_MAX)]


class NewToken(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: a token that is to be made. It has a scope, or grants."""

    name: Annotated[str, Meta(min_length=1, max_length=TOKEN_NAME_CHARACTERS_MAX)]
    scope: Scope | None = None
    tenant: str = "default"
    edge: str | None = None
    """Edge that may link with it; for the scope `edge`, and for grants to write."""
    grants: Annotated[list[Annotated[str, Meta(max_length=GRANT_CHARACTERS_MAX)]], Meta(max_length=GRANTS_MAX)] = []
    """Rights such as `read:press-*`, or names of roles."""
    expires: _End | None = None
    """Its end: a duration such as `90d`, or a date; null for none."""
    reason: Reason = ""
    """For the record of administrative acts."""


class Rotation(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: a token that is to have another secret."""

    expires: _End | None = None
    """End of the new secret: a duration, a date, or `never`; null for that of the one before."""
    overlap: _End = OVERLAP
    """Time for which the secret before stays in force; `0s` for none."""
    end_oldest: bool = False
    """True to end the older of two secrets that are in force already."""
    reason: Reason = ""
    """For the record of administrative acts."""


class PairingOfToken(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: the edge that is to get a token by a code."""

    edge: str
    tenant: str = "default"
    within: _End = CODE_VALID
    """Time for which the code counts, `24h` at most."""
    expires: _End | None = None
    """End of the token's secret: a duration such as `90d`, or a date; null for none."""
    reason: Reason = ""
    """For the record of administrative acts."""


class HashedToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token whose secret was made elsewhere."""

    name: Annotated[str, Meta(min_length=1, max_length=TOKEN_NAME_CHARACTERS_MAX)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of the secret, in lower-case hexadecimal digits."""
    scope: Scope
    tenant: str = "default"
    edge: str | None = None
    """Edge that may link with it; for the scope `edge`, and for grants to write."""
    grants: Annotated[list[Annotated[str, Meta(max_length=GRANT_CHARACTERS_MAX)]], Meta(max_length=GRANTS_MAX)] = []
    """Rights such as `read:press-*`, for the scope `granted`."""


class TokensToImport(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: tokens to declare by the hashes of their secrets."""

    tokens: Annotated[list[HashedToken], Meta(min_length=1, max_length=IMPORTED_MAX)]
    reason: Reason = ""
    """For the record of administrative acts."""


class Drain(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: the process or the machine to drain."""

    node: Annotated[str, Meta(min_length=1, max_length=FACT_NAME_CHARACTERS_MAX)]
    """Name of a process, or of a machine for all of its processes, as `/v1/nodes` has it."""
    reason: Reason = ""
    """For the record of administrative acts."""


class Split(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: the shard to split. It cannot be reverted."""

    shard: Annotated[int, Meta(ge=0, le=SHARDS_MAX - 1)]
    force: bool = False
    """Do it though all its edges would be in one of the two."""
    reason: Reason = ""
    """For the record of administrative acts."""


class DeclaredSchema(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: the schema of a stream's payloads, or another version of it."""

    schema: PayloadSchema
    compatibility: Compatibility | None = None
    """Rule between this version and the one before, and between it and the next; null for the rule in force."""
    reason: Reason = ""
    """For the record of administrative acts."""


_Quota = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None
_QuotaRate = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] | None


class TenantQuotas(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: all quotas of a tenant. One that is left out is no bound."""

    edges: _Quota = None
    streams: _Quota = None
    bytes_per_second: _QuotaRate = None
    stored_bytes: _Quota = None
    records_per_second: _QuotaRate = None
    lanes: _Quota = None
    links: _Quota = None
    table_bytes: _Quota = None
    reason: Reason = ""
    """For the record of administrative acts."""
    version: Annotated[int, Meta(ge=0)] | None = None
    """Version of the tenant that was changed, 0 for a new one. It is refused after another change of the tenant."""


EDGES_MAX = 500
"""Maximum number of edges that one request publishes to; a larger group needs several requests."""
KEY_CHARACTERS_MAX = 255
EXPIRES_S = 3600.0


class SqlQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: a query in SQL."""

    query: Annotated[str, Meta(min_length=1, max_length=SQL_CHARACTERS_MAX)]
    """One SELECT over `streams.NAME`, `latest.NAME` and `weft.completeness`."""
    limit: Annotated[int, Meta(ge=1, le=SQL_ROWS_MAX)] = SQL_ROWS_DEFAULT
    """Most rows of the answer."""


class MessageRequest(msgspec.Struct, forbid_unknown_fields=True):
    topic: Annotated[str, Meta(max_length=TOPIC_CHARACTERS_MAX)]
    edge: str | None = None
    edges: Annotated[list[str], Meta(max_length=EDGES_MAX)] = []
    group: str | None = None
    after: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    """With ``group``: ``next_after`` of the answer before."""
    payload: str | None = None
    payload_base64: str | None = None
    expires_s: Annotated[float, Meta(gt=0, le=EXPIRY_NS_MAX / 1e9)] = EXPIRES_S
    qos: Annotated[int, Meta(ge=0, le=1)] = 1
    redirect: bool = False
    """True to get the URL of the process that owns an edge's shard, instead of a message stored by this one."""


class RegionOrder(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: whether the records for a region wait."""

    paused: bool
    reason: Reason = ""
    """For the record of administrative acts."""


EXPIRY_NS_MAX = 7 * 86_400 * 10**9
"""Longest time that a message may wait."""
PULL_BYTES_MAX = 1 << 30
PULL_EXPIRES_S, PULL_EXPIRES_S_MAX = 86_400.0, 30 * 86_400.0


class PullWindow(msgspec.Struct, forbid_unknown_fields=True, rename={"first": "from", "end": "to"}):
    """The body of a request: which records of which edge."""

    edge: str
    """An edge that has linked before."""
    stream: str
    """Stream at the edge."""
    first: Annotated[str, Meta(max_length=64)]
    """Start of the window: a time, or nanoseconds since 1970, by the edge's clock."""
    end: Annotated[str, Meta(max_length=64)]
    """End of the window, which it leaves out, and which is over."""
    bytes_max: Annotated[int, Meta(ge=1, le=1 << 40)] = PULL_BYTES_MAX
    """Bytes as stored at the edge beyond which it refuses."""
    expires_s: Annotated[float, Meta(gt=0, le=PULL_EXPIRES_S_MAX)] = PULL_EXPIRES_S
    """Seconds after which the request expires."""


_Words = Annotated[str, Meta(max_length=500)]
_Figure = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class Report(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The state of a query, as it reports it."""

    stream: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
    """The stream that it reads; `*` for several."""
    state: Literal["running", "ended", "failed"]
    error: _Words | None = None
    """Error with which it ended."""
    batch: _Figure | None = None
    """Number of the last micro-batch."""
    records: _Figure | None = None
    """Records of the last micro-batch."""
    seconds: _Seconds | None = None
    """Duration of the last micro-batch."""
    rate: _Seconds | None = None
    """Records a second, since the report before."""
    lag: _Figure | None = None
    """Records of the log that are not read yet; null if the source does not report it."""
    complete_until: _Words | None = None
    """Moment up to which windows are complete, for a pipeline of windows."""
    idle_seconds: _Seconds | None = None
    """Time since the last micro-batch with records ended; null before the first."""
    every_seconds: _Seconds = 10.0
    """Longest time between two reports. One that is silent for longer is gone, or cut off."""
