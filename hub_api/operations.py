"""The operations of the API: each is declared here once, and named by its name elsewhere.

The hub serves it (a handler below its name), the document describes it, ``weft.client`` has a method of that name. To
add one: write the types of its body and its answer beside their like in this package, and an ``Operation`` below. A
route under ``/v1`` without one fails a test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Meta

from weft.config.units import parse_duration_ns
from weft.hub_api.answers import (
    ActsAnswer,
    ApiError,
    ChangeEvent,
    CompletenessAnswer,
    EdgeAnswer,
    EdgesAnswer,
    ImportedTokensAnswer,
    LanesAnswer,
    LogId,
    LossesAnswer,
    MessagesAnswer,
    PairingAnswer,
    PipelinesAnswer,
    PublishedAnswer,
    PullAnswer,
    PullsAnswer,
    RecordsAnswer,
    RemovedSchemaAnswer,
    RemovedTenantAnswer,
    RemovedTokenAnswer,
    ReportedAnswer,
    RowsAnswer,
    SchemaAnswer,
    SchemasAnswer,
    SecretAnswer,
    SeriesAnswer,
    SqlAnswer,
    StreamAnswer,
    StreamsAnswer,
    TailEvent,
    TenantAnswer,
    TenantsAnswer,
    TokensAnswer,
    TraceAnswer,
    UsageAnswer,
    WhoAmI,
    parse_moment,
)
from weft.hub_api.bodies import (
    KEY_CHARACTERS_MAX,
    DeclaredSchema,
    Drain,
    MessageRequest,
    NewToken,
    PairingOfToken,
    PullWindow,
    RegionOrder,
    Report,
    Rotation,
    Split,
    SqlQuery,
    TenantQuotas,
    TokensToImport,
)
from weft.hub_api.rights import Right, Scope
from weft.hub_api.status import (
    DrainAnswer,
    DrainsAnswer,
    NodesAnswer,
    RegionOrderAnswer,
    RegionsAnswer,
    SplitAnswer,
    SplitLook,
    StatusAnswer,
    TroublesAnswer,
)
from weft.protocols.lane import NAME_RULE
from weft.protocols.shard.placement import SHARDS_MAX

# Bounds of requests and answers.

PAGE_DEFAULT, PAGE_MAX = 1000, 10_000
"""Number of members of a list in one answer."""
ACTS_DEFAULT, ACTS_MAX = 100, 200
"""Number of acts of an answer: each is a GET of the store."""
RECORDS_DEFAULT, RECORDS_MAX = 100, 10_000
"""Number of records of an answer."""
SERIES_ROWS_DEFAULT, SERIES_ROWS_MAX = 5_000, 10_000
SERIES_VALUES = ("mean", "last", "min", "max")
"""Functions that make one value of those in an interval."""
SERIES_LATE_NS = 600 * 10**9
"""Longest time between the span's end and the receipt of a record of the answer, unless the request says another."""
SHARDS_OF = ALL_SHARDS, OWN_SHARDS = "all", "own"
ROWS_MAX = 1 << 16
ROW_FORMATS = ARROW_FORMAT, JSON_FORMAT = "arrow", "json"
ROW_COLUMNS = OWN_COLUMNS, TYPED_COLUMNS = "own", "typed"
JSON_ROWS_MAX = 1000
NUMBER_MAX = (1 << 63) - 1
"""Highest offset, sequence number and number of a chunk."""

BODY_BYTES_MAX, SCHEMA_BYTES_MAX, IMPORT_BYTES_MAX = 16 << 10, 256 << 10, 512 << 10
"""Longest body of an operation of the administration, that of a schema, and that of an import of tokens."""

DIGITS_MAX = 20
"""Longest number in a request. Python refuses numbers of some thousand digits with an error of its own."""
SHOWN_CHARACTERS = 80
"""Longest part of a refused text in an error."""

# One operation of the API as its document describes it: a method and a path, parameters, a body, and answers.

ERRORS = {
    400: "A parameter, a header or the body is not what was expected.",
    401: "No token, or one that the hub does not know.",
    403: "The token does not open this.",
    404: "The tenant does not exist, or has no such stream, edge or pull.",
    405: "The path does not support this method; the header `Allow` lists those that it supports.",
    408: "The body did not arrive in time.",
    409: "It conflicts with what exists: the `Idempotency-Key` was used for another message, the pull is over, "
    "or the declared facts forbid it.",
    410: "The log no longer has these records.",
    413: "The body, or what it asks for, is too large.",
    415: "The body is packed, with `Content-Encoding`.",
    421: "A hub without tokens is not read under this name.",
    429: "Too many requests of this token, or without tokens of this address, are under way.",
    500: "The log is damaged where it was read.",
    503: "The store does not answer, or the shard cannot be read. Try again later.",
}
"""Status -> meaning, for every error that the API answers."""
READING = frozenset({400, 401, 403, 421, 429, 500, 503})
"""Statuses of errors that any request of a reader may meet."""
READERS = (Scope.READER, Scope.ADMIN)


Reader = Callable[[str], Any]
"""Makes the value of a parameter from its text, or raises ``ApiError``."""


class Parameter(NamedTuple):
    """A parameter of a request."""

    name: str
    type: Any
    """Type that describes the value for msgspec, with its bounds."""
    description: str
    place: Literal["query", "path", "header"] = "query"
    required: bool = False
    beside: tuple[str, ...] = ()
    """Names of parameters beside which it would have no meaning, so that a request with both is refused."""
    advice: str = ""
    """Advice of the error that refuses a value, or its absence; for a name, the rule of names will do."""
    default: Any = None
    """Value, as ``reader_of`` makes it, without one in the request."""

    @property
    def written(self) -> str:
        """Return its name as errors write it, before the value."""
        return f"{self.name}=" if self.place == "query" else f"{self.name}: "


class Tag(NamedTuple):
    """A group of operations, as viewers and generators of clients show them."""

    name: str
    description: str
    resources: tuple[str, ...]
    """First parts of the paths below ``/v1`` that belong to it."""


TAGS = (
    Tag("streams", "Streams, their schemas, lanes, completeness, records and rows.", ("streams", "schemas", "sql")),
    Tag("edges", "Edges that the hub knows, and what holds them back.", ("edges", "losses")),
    Tag("messages", "Messages to edges, and their outcomes.", ("messages",)),
    Tag("pulls", "Requests for records that edges hold back.", ("pulls",)),
    Tag("pipelines", "Reports of pipelines of Spark.", ("pipelines",)),
    Tag("tenants", "Tenants, their quotas and their use of the hub.", ("tenants", "usage")),
    Tag("tokens", "Tokens, their secrets and pairing codes.", ("tokens",)),
    Tag(
        "hub",
        "State and administration of the hub's processes, shards and links to regions.",
        ("openapi.json", "whoami", "status", "nodes", "regions", "troubles", "acts", "changes", "drains", "splits"),
    ),
)
_TAG_OF = {resource: each.name for each in TAGS for resource in each.resources}


class Operation(NamedTuple):
    """One method of one path."""

    name: str
    """Unique name; the client's method has it, too."""
    method: Literal["get", "post", "put", "delete"]
    path: str
    summary: str
    description: str
    """Order, units, durability, bounds and the right that it needs; ``right``, if set, is added."""
    answer: Any
    """Type of the answer; None for bytes of ``content_type``."""
    scopes: tuple[Scope, ...] = READERS
    """Scopes of tokens that open it."""
    parameters: tuple[Parameter, ...] = ()
    errors: frozenset[int] = READING
    body: Any = None
    """Type of the request's JSON document; None without one."""
    body_bytes_max: int = BODY_BYTES_MAX
    """Longest body that an operation of the administration takes."""
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}
    """Header of the answer -> meaning. Its value is a whole number."""
    status: int = 200
    """Status of the answer."""
    right: Right | None = None
    """Right that an operation of the administration needs: over the hub as a whole, or over the stream in its path."""
    command: str = ""
    """Command that does the same."""
    as_json: Any = None
    """Type of the answer as JSON, for an operation that gives one of ``content_type`` without `format=json`."""

    @property
    def tag(self) -> str:
        """Return the name of its group in the document. ``KeyError`` if no tag has the resource of its path."""
        return _TAG_OF[self.path.split("/")[2].partition(":")[0]]

    @property
    def key(self) -> tuple[str, str]:
        """Return the method and the path as aiohttp names them."""
        return self.method.upper(), self.path


UNDESCRIBED = {
    "/v1/link": "a WebSocket with a protocol of its own (docs/reference/formats/link.md)",
    "/v1/pair": "asked by edges without a token, and not by readers (docs/reference/formats/link.md)",
}
"""Route under ``/v1`` that the document leaves out -> reason."""
ARROW = "application/vnd.apache.arrow.stream"
EVENTS = "text/event-stream"
NAME_PATTERN = "^[a-z0-9][a-z0-9_-]{0,63}$"
LANE_PATTERN = "^[a-z0-9][a-z0-9_-]{0,63}/[0-9a-f]{16}$"
SCOPES = tuple(Scope)
PUBLISHERS = (Scope.PUBLISH, Scope.ADMIN)
PULLERS = (Scope.PULL, Scope.ADMIN)

_Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
_Shard = Annotated[int, Meta(ge=0, le=SHARDS_MAX - 1)]
_Duration = Annotated[str, Meta(pattern="^[0-9]{1,7}(ms|s|m|h|d)$")]
_Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
TIME = Annotated[str, Meta(extra_json_schema={"anyOf": [{"format": "date-time"}, {"pattern": "^[0-9]{1,19}$"}]})]
TENANT = Parameter("tenant", _Name, "Tenant, where the token allows another than its own.")
_TENANT_OF_PATH = Parameter("tenant", _Name, "Name of the tenant.", "path", required=True)
STREAM = Parameter("stream", _Name, "Name of the stream.", "path", required=True)
EDGE = Parameter("edge", _Name, "Name of the edge.", "path", required=True)


def _limit(of: str, most: int = PAGE_MAX, default: int = PAGE_DEFAULT, least: int = 1) -> Parameter:
    schema: Any = Annotated[int, Meta(ge=least, le=most, extra_json_schema={"default": default})]
    return Parameter("limit", schema, f"Most {of} of the answer, which may end sooner.", default=default)


def _choice(name: str, of: tuple[str, ...], description: str) -> Parameter:
    schema: Any = Annotated[str, Meta(extra_json_schema={"enum": list(of), "default": of[0]})]
    return Parameter(name, schema, description, default=of[0])


def _after(pattern: str | None = None) -> Parameter:
    schema: Any = str if pattern is None else Annotated[str, Meta(pattern=pattern)]
    return Parameter(
        "after",
        schema,
        "`next_after` of the answer before, to continue after it.",
        advice="use next_after of the previous answer",
    )


_PIPELINE_OF_PATH = Parameter("pipeline", _Name, "Name of the pipeline.", "path", required=True)
_TOKEN_OF_PATH = Parameter("name", str, "Name of the token.", "path", required=True)
_REASON = Parameter("reason", str, "Why, for the record of administrative acts.")
_OF_STREAM = READING | {404}
_OF_CHANGES = frozenset({400, 401, 403, 408, 409, 413, 415, 421, 503})
_OF_MESSAGES = frozenset({400, 401, 403, 404, 421, 429, 503})
_OF_PULLS = frozenset({400, 401, 403, 404, 421, 503})
_PATH = "/v1/streams/{stream}"

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "openapi",
        "get",
        "/v1/openapi.json",
        "Return this document.",
        "The OpenAPI 3.1 document of the release that answers. Releases add to it and remove nothing. A token of "
        "any scope opens it.",
        dict[str, Any],
        SCOPES,
        errors=frozenset({401, 403, 421}),
    ),
    Operation(
        "whoami",
        "get",
        "/v1/whoami",
        "Return the rights of the request's token.",
        "The scope and rights of the token, or of the client certificate in its place, the tenant of its requests, "
        "and when it ends. It also names the hub's release. A token of any scope opens it.",
        WhoAmI,
        SCOPES,
        errors=frozenset({401, 403, 421}),
    ),
    Operation(
        "status",
        "get",
        "/v1/status",
        "Return the state of this process of the hub.",
        "Shards, tables, links, clock, store, certificate and cluster log as this process knows them now. Of the "
        "processes of a host, the first lists all tables, and the others those that they make. Beyond 1,000 tables "
        "only their number is given. Needs the right `status`.",
        StatusAnswer,
        (Scope.ADMIN,),
        errors=frozenset({401, 403, 421}),
    ),
    Operation(
        "nodes",
        "get",
        "/v1/nodes",
        "Return the processes of the hub on all machines.",
        "Each process as its entry in the store describes it, which this process reads every 5 s; "
        "`seen_seconds_ago` is the entry's age. The rates of `intake` are means of the 60 to 90 s before the entry.",
        NodesAnswer,
        (Scope.ADMIN,),
        errors=frozenset({401, 403, 421, 503}),
        right=Right.STATUS,
        command="weft hub nodes",
    ),
    Operation(
        "regions",
        "get",
        "/v1/regions",
        "Return the links of all shards to other regions.",
        "One entry for each pair of shard and region, as the shard's process last wrote it to the store, at most "
        "five minutes ago. A link without an entry of the last 15 minutes has the state `no news`.",
        RegionsAnswer,
        (Scope.ADMIN,),
        errors=frozenset({401, 403, 421, 503}),
        right=Right.STATUS,
        command="weft hub region status",
    ),
    Operation(
        "troubles",
        "get",
        "/v1/troubles",
        "Return conflicts, open gaps and lost records of all shards.",
        "Losses and conflicts that need an operator, whichever process is asked. Lists of other processes are some "
        "15 s old; `lost_unknown_at` names processes whose list is unknown. Lists are bounded, and `..._more` "
        "counts the rest. Needs the right `status`.",
        TroublesAnswer,
        (Scope.ADMIN,),
        errors=frozenset({401, 403, 421, 503}),
    ),
    Operation(
        "acts",
        "get",
        "/v1/acts",
        "Return the record of administrative acts: lines after one, or the newest ones.",
        "Lines in the order in which they were written, at most 200; without `after`, the newest. A process knows a "
        "line two seconds after it was written. `next_after` is null at the end.",
        ActsAnswer,
        (Scope.ADMIN,),
        parameters=(_after("^[0-9]{1,19}$"), _limit("lines", ACTS_MAX, ACTS_DEFAULT)),
        errors=frozenset({400, 401, 403, 421, 503}),
        right=Right.ACTS,
        command="weft hub acts",
    ),
    Operation(
        "changes",
        "get",
        "/v1/changes",
        "Stream changes, as server-sent events, until the client disconnects.",
        "Names of streams with new records and of edges whose link began or ended, compared every two seconds. The "
        "first event comes at once, and a comment every 15 s without news. Events are not kept: a client that "
        "reconnects reads the state again. A process serves 64 listeners, 32 of a tenant and 8 of a token (429). A "
        "listener that does not read for 10 s is disconnected. Needs the right `read`; edges are left out without "
        "the right `edges`.",
        ChangeEvent,
        parameters=(TENANT,),
        errors=frozenset({400, 401, 403, 421, 429}),
        content_type=EVENTS,
    ),
    Operation(
        "edges",
        "get",
        "/v1/edges",
        "Return edges that the hub knows, by tenant and name.",
        "From the first record of an edge until all its lanes have left the hub, connected or not. Links to other "
        "processes are known some 15 s late. Every alarm of an edge has a reason and a remedy. Needs the right "
        "`edges`.",
        EdgesAnswer,
        parameters=(
            Parameter("tenant", _Name, "Only edges of this tenant. An admin gets those of all without it."),
            _choice("shards", SHARDS_OF, "`own`: only edges of this process's own shards."),
            _after(),
            _limit("edges"),
        ),
    ),
    Operation(
        "losses",
        "get",
        "/v1/losses",
        "Return the gaps of all edges that no record fills.",
        "Edges that lack records for good, by tenant and name. A gap has the reason `budget`, `expired`, `corruption` "
        "or `operator`, or `absent` while another sender may still have its records. Its numbers are those of the "
        "lane; `/v1/streams/{stream}/trace` gives the times of the records on both sides. Needs the right `edges`.",
        LossesAnswer,
        parameters=(
            Parameter("tenant", _Name, "Only edges of this tenant. An admin gets those of all without it."),
            _after(),
            _limit("edges"),
        ),
    ),
    Operation(
        "edge",
        "get",
        "/v1/edges/{edge}",
        "Return one edge, with its functions.",
        "As in the list of edges, with at most 32 of its functions and what the edge counted since its start. "
        "`functions` is null while the edge is not linked. Needs the right `edges`.",
        EdgeAnswer,
        parameters=(EDGE, TENANT),
        errors=_OF_STREAM,
    ),
    Operation(
        "streams",
        "get",
        "/v1/streams",
        "Return the tenant's streams, by name.",
        "Streams that the token may read, each with its records, table, rate, and the moment up to which it is "
        "complete. Figures that this process does not know are null. Needs the right `read`.",
        StreamsAnswer,
        parameters=(TENANT, _after(), _limit("streams")),
    ),
    Operation(
        "stream",
        "get",
        _PATH,
        "Return one stream.",
        "As in the list of streams, as of now. `next_offset` names the shards, each with the offset of its next "
        "record. Needs the right `read` for the stream.",
        StreamAnswer,
        parameters=(STREAM, TENANT),
        errors=_OF_STREAM,
    ),
    Operation(
        "lanes",
        "get",
        f"{_PATH}/lanes",
        "Return the lanes of a stream, by edge and log.",
        "For each lane the sequence numbers that are accounted for, its gaps with their reasons, and its marks. "
        "Ranges have `first` and `end`, one past the last. Needs the right `read` for the stream.",
        LanesAnswer,
        parameters=(STREAM, TENANT, _after(LANE_PATTERN), _limit("lanes")),
        errors=_OF_STREAM,
    ),
    Operation(
        "completeness",
        "get",
        f"{_PATH}/completeness",
        "Return up to when a stream is complete, and what it lacks.",
        "`complete_up_to` is the earliest moment of the lanes that count, in whole microseconds. It never moves "
        "back. `held_back_by` has at most 100 reasons, `open_gaps` at most 100 losses of unknown size. The list "
        "that `after` continues is `lanes`, with `covers`. Needs the right `read` for the stream.",
        CompletenessAnswer,
        parameters=(STREAM, TENANT, _after(LANE_PATTERN), _limit("lanes")),
        errors=_OF_STREAM,
    ),
    Operation(
        "records",
        "get",
        f"{_PATH}/records",
        "Return records in the order of their offsets, from log and table.",
        "Shard by shard; `next_offset`, `next_chunk` and `next_shard` say where to continue. A request searches at "
        "most 256 chunks for the first record, and reads at most 512 chunks and 128 MiB. The table supplies records "
        "that have left the log, with times in whole microseconds; without a table the answer is 410. Needs the "
        "right `read` for the stream.",
        RecordsAnswer,
        parameters=(
            STREAM,
            TENANT,
            Parameter("shard", _Shard, "Only this shard."),
            Parameter("offset", _Number, "From this offset on. Needs `shard`."),
            Parameter(
                "since",
                TIME,
                "Begin with the records that the hub received at this time: RFC 3339, or nanoseconds since 1970. "
                "Not with `offset` or `chunk`.",
                beside=("offset", "chunk"),
            ),
            Parameter("chunk", _Number, "From this chunk on, which `next_chunk` of an answer names. Needs `shard`."),
            Parameter(
                "from_shard",
                _Shard,
                "From this shard on, which `next_shard` of an answer names. Not beside `shard`.",
                beside=("shard",),
            ),
            Parameter("edge", _Name, "Only this edge."),
            _limit("records", RECORDS_MAX, RECORDS_DEFAULT),
        ),
        errors=_OF_STREAM | {410},
    ),
    Operation(
        "series",
        "get",
        f"{_PATH}/series",
        "Return numbers of payloads over time, as rows for charts.",
        "Rows in the order of `time`, each the value of a record or of an interval. A row whose `value` is null "
        "stands where records of the edge are missing. A request reads at most 50,000 records and 32 MiB of "
        "payloads; `is_whole` is false if it met a bound. Needs the right `read` for the stream.",
        SeriesAnswer,
        parameters=(
            STREAM,
            TENANT,
            Parameter(
                "since",
                TIME,
                "Begin of the span: RFC 3339, or nanoseconds since 1970.",
                required=True,
                advice="a series begins at a time: since=2026-01-31T12:00:00Z",
            ),
            Parameter("until", TIME, "End of the span, which is not in it. Without it, up to the newest record."),
            Parameter(
                "late",
                _Duration,
                "Time after `until` in which a record of the span may have arrived: 10m.",
                default=SERIES_LATE_NS,
            ),
            Parameter(
                "fields",
                str,
                "Paths of numbers in the payload, with commas between. Without it, the payload.",
                default="",
            ),
            Parameter("edge", _Name, "Only this edge."),
            Parameter("key", str, "Only keys that match this filter of MQTT.", default="#"),
            Parameter(
                "step", _Duration, "Length of an interval, which makes a row: 10s. 0s: a row for each value.", default=0
            ),
            _choice("value", SERIES_VALUES, "What an interval makes of its values."),
            _limit("rows", SERIES_ROWS_MAX, SERIES_ROWS_DEFAULT),
        ),
        errors=_OF_STREAM,
    ),
    Operation(
        "tail",
        "get",
        f"{_PATH}/tail",
        "Send new records as server-sent events, or as messages of a WebSocket.",
        "Each event has at most 200 records of one shard, and the position behind them. A client that continues "
        "from the last position, also as `Last-Event-ID`, gets each record once, from any process. A process serves "
        "2,048 readers, 1,024 of a tenant and 256 of a token (429). Needs the right `read` for the stream.",
        TailEvent,
        parameters=(
            STREAM,
            TENANT,
            Parameter("position", str, "From this position on, which an event names. Without it, from the end on."),
            Parameter("edge", _Name, "Only this edge."),
            Parameter("key", str, "Only keys that match this filter of MQTT.", default="#"),
        ),
        errors=_OF_STREAM,
        content_type=EVENTS,
    ),
    Operation(
        "rows",
        "get",
        f"{_PATH}/rows",
        "Return rows of one shard, as a stream of Arrow or as JSON.",
        "Columns are those of the stream's table, rows in the order of their offsets. A request searches at most "
        "256 chunks, and reads at most 512 chunks and 128 MiB. An answer may therefore have no rows; the headers "
        "say where to continue. The table supplies rows that have left the log; without one the answer is 410. "
        "Needs the right `read` for the stream.",
        None,
        parameters=(
            STREAM,
            TENANT,
            Parameter(
                "shard",
                _Shard,
                "The shard.",
                required=True,
                advice="rows are read shard by shard: GET /v1/streams/NAME has the shards",
            ),
            Parameter("offset", _Number, "From this offset on. Without it, from the first that the log has."),
            Parameter("chunk", _Number, "Chunk to begin with, from `Weft-Next-Chunk` of an answer."),
            _choice("format", ROW_FORMATS, f"`json` is for a look: at most {JSON_ROWS_MAX} rows and 1 MiB of them."),
            _choice(
                "columns",
                ROW_COLUMNS,
                "`typed`: also the columns of the stream's declared schema, made of the payloads.",
            ),
            _limit("rows", ROWS_MAX, ROWS_MAX, 0),
        ),
        errors=_OF_STREAM | {410},
        content_type=ARROW,
        as_json=RowsAnswer,
        headers={
            "Weft-Next-Offset": "`offset` to continue with. Absent while the search for the first row continues.",
            "Weft-Next-Chunk": "`chunk` to continue with.",
            "Weft-End-Offset": "End of the shard when the request arrived.",
        },
    ),
    Operation(
        "trace",
        "get",
        f"{_PATH}/trace",
        "Return the path of one record: lane and number, chunk, file and row.",
        "The record is named by `edge`, `log` and `seq`, or by `shard` and `offset`. A request searches at most 256 "
        "chunks: while `next_shard` is not null, ask again from there. It opens at most 64 files of the table; "
        "beyond that it answers 503, and `shard` with `offset` finds the record. Needs the right `read` for the "
        "stream.",
        TraceAnswer,
        parameters=(
            STREAM,
            TENANT,
            Parameter("edge", _Name, "Edge of the record. With `log` and `seq`.", beside=("offset", "shard")),
            Parameter("log", LogId, "Log of the edge, sixteen hexadecimal digits.", beside=("offset", "shard")),
            Parameter("seq", _Number, "Number of the record in its lane.", beside=("offset", "shard")),
            Parameter("shard", _Shard, "Shard of `offset`, instead of edge, log and seq."),
            Parameter("offset", _Number, "Offset of the record. Needs `shard`."),
            Parameter("chunk", _Number, "`next_chunk` of the answer before, to continue with the search."),
            Parameter("from_shard", _Shard, "`next_shard` of the answer before.", beside=("offset", "shard")),
        ),
        errors=_OF_STREAM | {410},
    ),
    Operation(
        "messages",
        "get",
        "/v1/messages",
        "Return an edge's messages: those that wait, and the outcomes of others.",
        "Waiting messages by number, and at most 1,000 outcomes, the newest first. A process remembers outcomes "
        "since it took over the shard; the stream `weft-down` has all. Needs the right `publish` for the edge.",
        MessagesAnswer,
        PUBLISHERS,
        parameters=(
            Parameter("edge", _Name, "Name of the edge.", required=True),
            TENANT,
            Parameter("redirect", str, "If given, the answer may be the URL of the process that knows the edge."),
        ),
        errors=_OF_MESSAGES,
    ),
    Operation(
        "sql",
        "post",
        "/v1/sql",
        "Answer a query in SQL over the tables of the tenant's streams.",
        "The answer has at most 10,000 rows, in the order that the query asks for. `is_whole` says whether these are "
        "all. A query reads at most 16 tables, for at most 60 s. Two run at one time, and one that waits longer than "
        "30 s is refused with 503. The hub needs `sql: true`. Needs the right `read` for the streams.",
        SqlAnswer,
        parameters=(TENANT,),
        errors=READING | {404, 408, 413, 415},
        body=SqlQuery,
        body_bytes_max=4 * BODY_BYTES_MAX,
        command="weft sql",
    ),
    Operation(
        "publish",
        "post",
        "/v1/messages",
        "Publish a message to edges. The hub answers when it is durable.",
        "The answer has an entry for each edge: the number of its message, or an error. At most 1,000 messages and "
        "4 MiB wait for one edge (429), and a request may be for 16 MiB (413). After 503, whether the message was "
        "stored is unknown: repeat the request with the same `Idempotency-Key`. Needs the right `publish` for the "
        "edges.",
        PublishedAnswer,
        PUBLISHERS,
        parameters=(
            TENANT,
            Parameter(
                "Idempotency-Key",
                Annotated[str, Meta(pattern=f"^[ -~]{{0,{KEY_CHARACTERS_MAX}}}$")],
                "Name of the request. A repeated request with the same name stores nothing.",
                "header",
            ),
        ),
        errors=_OF_MESSAGES | {408, 409, 413, 415},
        body=MessageRequest,
    ),
    Operation(
        "pulls",
        "get",
        "/v1/pulls",
        "Return pulls of the tenant, the latest first.",
        "At most 200. Pulls that are over are listed for a week. Only those of streams for which the token has the "
        "right `pull`.",
        PullsAnswer,
        PULLERS,
        parameters=(
            TENANT,
            Parameter("edge", _Name, "Only pulls from this edge."),
            Parameter("id", str, "Only this pull."),
        ),
        errors=_OF_PULLS,
    ),
    Operation(
        "pull",
        "post",
        "/v1/pulls",
        "Request the records of a time window from an edge. The hub answers when the request is durable.",
        "The window has ended, and lasts at most 31 days, by the edge's clock. An edge has at most 8 running pulls "
        "and a tenant 64; a tenant may request 120 an hour (429). Needs the right `pull` for the stream.",
        PullAnswer,
        PULLERS,
        parameters=(TENANT,),
        errors=_OF_PULLS | {408, 409, 413, 415, 429},
        body=PullWindow,
        status=202,
    ),
    Operation(
        "cancel_pull",
        "delete",
        "/v1/pulls/{id}",
        "Cancel a pull. Records that have arrived stay.",
        "The answer comes when the cancellation is durable. A pull that is over stays as it is. Needs the right "
        "`pull` for its stream.",
        PullAnswer,
        PULLERS,
        parameters=(Parameter("id", str, "Its id.", "path", required=True), TENANT),
        errors=_OF_PULLS | {409},
    ),
    Operation(
        "usage",
        "get",
        "/v1/usage",
        "Return what a tenant uses of the hub, its quotas, and the records received of each stream.",
        "Links, lanes, streams and records are those of all shards. `received`, `throttled_seconds` and `refused` "
        "are counted by this process since `since`; what an edge sends again counts again. Streams are listed by "
        "name. Needs the right `read`.",
        UsageAnswer,
        parameters=(TENANT, _after(), _limit("streams")),
        errors=READING - {500},
    ),
    Operation(
        "tenant",
        "get",
        "/v1/tenants/{tenant}",
        "Return the quotas of a declared tenant.",
        "A quota that is null bounds nothing. `version` is the entry of the cluster log that declared the tenant.",
        TenantAnswer,
        (Scope.GRANTED,),
        parameters=(_TENANT_OF_PATH,),
        errors=frozenset({400, 401, 403, 404, 421, 503}),
        right=Right.TENANTS,
        command="weft hub tenant list",
    ),
    Operation(
        "set_tenant",
        "put",
        "/v1/tenants/{tenant}",
        "Declare all quotas of a tenant, and the tenant if it is new.",
        "Replaces all quotas: one that is left out bounds nothing. With `version`, the request is refused with 409 "
        "after another change. The answer comes when the change is durable; processes follow within two seconds.",
        TenantAnswer,
        (Scope.GRANTED,),
        parameters=(_TENANT_OF_PATH,),
        errors=_OF_CHANGES,
        body=TenantQuotas,
        right=Right.TENANTS,
        command="weft hub tenant set",
    ),
    Operation(
        "remove_tenant",
        "delete",
        "/v1/tenants/{tenant}",
        "Withdraw a tenant for which nothing is declared any more. Its records, streams and tables stay.",
        "Refused with 409 while a token, stream, group, configuration, schema or table is declared for it. The "
        "answer comes when the change is durable, and declaring the tenant again reverts it.",
        RemovedTenantAnswer,
        (Scope.GRANTED,),
        parameters=(_TENANT_OF_PATH, _REASON),
        errors=frozenset({400, 401, 403, 409, 421, 503}),
        right=Right.TENANTS,
        command="weft hub tenant remove",
    ),
    Operation(
        "tenants",
        "get",
        "/v1/tenants",
        "Return the declared tenants with their quotas, by name.",
        "Includes `default`, which needs no declaration. A quota that is null bounds nothing.",
        TenantsAnswer,
        (Scope.GRANTED,),
        parameters=(_after(), _limit("tenants")),
        errors=frozenset({400, 401, 403, 421, 503}),
        right=Right.TENANTS,
        command="weft hub tenant list",
    ),
    Operation(
        "schema",
        "get",
        f"{_PATH}/schema",
        "Return a version of the declared schema of a stream's payloads, the newest one by default.",
        "Includes versions that were replaced or withdrawn. A stream without a schema, or without that version, is "
        "answered with 404.",
        SchemaAnswer,
        parameters=(STREAM, TENANT, Parameter("version", _Number, "Version, also one that was replaced or withdrawn.")),
        errors=_OF_MESSAGES,
        right=Right.READ,
        command="weft hub schema get",
    ),
    Operation(
        "set_schema",
        "put",
        f"{_PATH}/schema",
        "Declare the schema of a stream's payloads, or another version of it.",
        "The answer comes when the declaration is durable. Records that come later have its columns in the table; "
        "earlier rows stay as they are. A version that breaks the rule `compatibility` of the one before is "
        "refused.",
        SchemaAnswer,
        (Scope.GRANTED,),
        parameters=(STREAM, TENANT),
        errors=_OF_CHANGES,
        body=DeclaredSchema,
        body_bytes_max=SCHEMA_BYTES_MAX,
        right=Right.DECLARE,
        command="weft hub schema set",
    ),
    Operation(
        "remove_schema",
        "delete",
        f"{_PATH}/schema",
        "Withdraw the schema of a stream. Its table keeps its columns; they are null in later rows.",
        "The answer comes when the withdrawal is durable. Versions stay readable by their numbers.",
        RemovedSchemaAnswer,
        (Scope.GRANTED,),
        parameters=(STREAM, TENANT, _REASON),
        errors=frozenset({400, 401, 403, 409, 421, 503}),
        right=Right.DECLARE,
        command="weft hub schema remove",
    ),
    Operation(
        "schemas",
        "get",
        "/v1/schemas",
        "Return the declared schemas of all tenants, without their fields, by tenant and stream.",
        "Each is the version in force. Where this release cannot read it, `unusable` has the reason.",
        SchemasAnswer,
        (Scope.ADMIN,),
        parameters=(_after(), _limit("schemas")),
        errors=frozenset({400, 401, 403, 421, 503}),
        right=Right.STATUS,
        command="weft hub schema list",
    ),
    Operation(
        "tokens",
        "get",
        "/v1/tokens",
        "Return the declared tokens, without their secrets, by name.",
        "`until` is the end of a token's last secret. `last_used` is up to an hour old. The store has no secrets, "
        "only hashes.",
        TokensAnswer,
        (Scope.ADMIN,),
        parameters=(_after(), _limit("tokens")),
        errors=frozenset({400, 401, 403, 421, 503}),
        right=Right.ACTS,
        command="weft hub token list",
    ),
    Operation(
        "add_token",
        "post",
        "/v1/tokens",
        "Declare a token, and return its secret, once.",
        "The answer comes when the token is durable, and has the only copy of the secret. Processes accept it "
        "within two seconds. The first token of a hub cannot be made here (403), since it ends all links without "
        "one.",
        SecretAnswer,
        (Scope.GRANTED,),
        errors=_OF_CHANGES,
        body=NewToken,
        right=Right.TOKENS,
        command="weft hub token add",
    ),
    Operation(
        "rotate_token",
        "post",
        "/v1/tokens/{name}/rotate",
        "Replace the secret of a token, and return the new one, once.",
        "The secret before stays in force for `overlap`, a week unless given. At most two secrets are in force: "
        "with two, set `end_oldest`, or the request is refused with 409. The answer comes when the new secret is "
        "durable.",
        SecretAnswer,
        (Scope.GRANTED,),
        parameters=(_TOKEN_OF_PATH,),
        errors=_OF_CHANGES,
        body=Rotation,
        right=Right.TOKENS,
        command="weft hub token rotate",
    ),
    Operation(
        "pair_token",
        "post",
        "/v1/tokens/{name}/pair",
        "Make a code by which an edge gets a token, and return the code, once.",
        "The code counts once, for 15 minutes unless `within` says another time, at most `24h`. A new code replaces "
        "the one before. The secrets of an existing token stay in force until the code is used. A token of another "
        "edge or scope is refused with 409.",
        PairingAnswer,
        (Scope.GRANTED,),
        parameters=(_TOKEN_OF_PATH,),
        errors=_OF_CHANGES,
        body=PairingOfToken,
        right=Right.TOKENS,
        command="weft hub token pair",
    ),
    Operation(
        "import_tokens",
        "post",
        "/v1/tokens:import",
        "Declare tokens by the hashes of their secrets. Those that are declared already stay as they are.",
        "At most 1,000 tokens, in a body of at most 512 KiB. Tokens of one entry of the cluster log are all "
        "declared or none. The request may be repeated; `other_secret` names declared tokens whose secret is "
        "another. The first tokens of a hub cannot be imported here (403).",
        ImportedTokensAnswer,
        (Scope.GRANTED,),
        errors=_OF_CHANGES,
        body=TokensToImport,
        body_bytes_max=IMPORT_BYTES_MAX,
        right=Right.TOKENS,
        command="weft hub token import",
    ),
    Operation(
        "remove_token",
        "delete",
        "/v1/tokens/{name}",
        "Withdraw a token: its links end.",
        "The answer comes when the change is durable. Processes refuse the token, and end its links, within two "
        "seconds. Secrets do not come back: declaring the name again makes a new one.",
        RemovedTokenAnswer,
        (Scope.GRANTED,),
        parameters=(_TOKEN_OF_PATH, _REASON),
        errors=frozenset({400, 401, 403, 409, 421, 503}),
        right=Right.TOKENS,
        command="weft hub token remove",
    ),
    Operation(
        "drains",
        "get",
        "/v1/drains",
        "Return the processes and machines that are drained.",
        "Entries in the order of their names, whether their processes run or not. A process knows a change within "
        "two seconds.",
        DrainsAnswer,
        (Scope.ADMIN,),
        errors=frozenset({401, 403, 421, 503}),
        right=Right.STATUS,
        command="weft hub nodes",
    ),
    Operation(
        "drain",
        "post",
        "/v1/drains",
        "Drain a process, or those of a machine: others take over its shards and edges.",
        "The answer comes when the order is durable; shards and links move afterwards. Refused with 404 for an "
        "unknown name, and with 409 while no other process would take the shards.",
        DrainAnswer,
        (Scope.GRANTED,),
        errors=_OF_CHANGES | {404},
        body=Drain,
        right=Right.NODES,
        command="weft hub drain",
    ),
    Operation(
        "undo_drain",
        "delete",
        "/v1/drains",
        "End the drain of a process or machine: it accepts shards and edges again.",
        "The answer comes when the order is durable. Refused with 409 if the process or machine is not drained.",
        DrainAnswer,
        (Scope.GRANTED,),
        errors=frozenset({400, 401, 403, 409, 421, 503}),
        parameters=(
            Parameter(
                "node", str, "The process or the machine.", required=True, advice="GET /v1/drains lists what is drained"
            ),
            _REASON,
        ),
        right=Right.NODES,
        command="weft hub drain --undo",
    ),
    Operation(
        "look_at_split",
        "get",
        "/v1/splits",
        "Return how many edges a split of a shard would move.",
        "Changes nothing. The process reads the whole shard, one request at a time; a second one gets 429.",
        SplitLook,
        (Scope.GRANTED,),
        parameters=(Parameter("shard", _Shard, "The shard.", required=True, advice="GET /v1/status has the shards"),),
        errors=frozenset({400, 401, 403, 409, 421, 429, 503}),
        right=Right.NODES,
        command="weft hub split",
    ),
    Operation(
        "split",
        "post",
        "/v1/splits",
        "Split a shard: about half of its edges move to a new one, for good.",
        "The answer comes when the new shard exists, and a split is never reverted. Refused with 409 if all edges "
        "would be in one of the two, unless `force` is set. Without an answer, read `/v1/status` first: a declared "
        "split is completed.",
        SplitAnswer,
        (Scope.GRANTED,),
        errors=_OF_CHANGES | {429},
        body=Split,
        right=Right.NODES,
        command="weft hub split",
    ),
    Operation(
        "pause_region",
        "put",
        "/v1/regions/{region}",
        "Have the records for a region wait, or continue.",
        "The answer comes when the order is durable; the links of all processes follow some seconds later. While "
        "paused, the log keeps what the region lacks, for the setting `pin` at most. Refused with 404 for an "
        "unknown region, and with 409 if it is to continue and is not paused.",
        RegionOrderAnswer,
        (Scope.GRANTED,),
        errors=_OF_CHANGES | {404},
        body=RegionOrder,
        parameters=(
            Parameter(
                "region",
                str,
                "Its name in the configuration.",
                "path",
                required=True,
                advice="GET /v1/regions names them",
            ),
        ),
        right=Right.NODES,
        command="weft hub region pause",
    ),
    Operation(
        "pipelines",
        "get",
        "/v1/pipelines",
        "Return the last report of each pipeline of Spark.",
        "By name, those whose stream the token may read. The hub does not check reports. The state is `silent` for "
        "a running pipeline that has not reported for 90 s, or for three of its intervals. Needs the right `read`.",
        PipelinesAnswer,
        parameters=(TENANT,),
        errors=frozenset({400, 401, 403, 421, 503}),
    ),
    Operation(
        "report_pipeline",
        "put",
        "/v1/pipelines/{pipeline}",
        "Report the state of a pipeline, again and again.",
        "A pipeline repeats its report. The hub writes it to the store at most every 30 s while state and error "
        "stay the same. It keeps 200 pipelines of a tenant; a further one is refused with 409. Needs the right "
        "`report` for the pipeline.",
        ReportedAnswer,
        (Scope.GRANTED,),
        parameters=(_PIPELINE_OF_PATH, TENANT),
        errors=_OF_CHANGES,
        body=Report,
    ),
    Operation(
        "forget_pipeline",
        "delete",
        "/v1/pipelines/{pipeline}",
        "Forget a pipeline, until it reports again.",
        "Removes the stored report. A pipeline that runs appears again with its next report. Needs the right "
        "`report` for the pipeline.",
        ReportedAnswer,
        (Scope.GRANTED,),
        parameters=(_PIPELINE_OF_PATH, TENANT),
        errors=frozenset({400, 401, 403, 421, 503}),
    ),
)
"""All operations, in the order of the document."""
OF_NAME: Mapping[str, Operation] = {each.name: each for each in OPERATIONS}


def reader_of(parameter: Parameter) -> Reader:
    """Return what makes the value of a parameter from its text: a number, the nanoseconds of a time or a duration, or
    the text itself. It raises ``ApiError`` with 400 for a text that the declared type does not allow."""
    described = msgspec.inspect.type_info(parameter.type)
    more: dict[str, Any] = {}
    if isinstance(described, msgspec.inspect.Metadata):
        more = described.extra_json_schema or {}
        described = described.type
    if parameter.type is TIME:
        return lambda text: _time(parameter, text)
    if isinstance(described, msgspec.inspect.IntType):
        least, most = described.ge, described.le
        assert least is not None, f"{parameter.name} needs bounds"
        assert most is not None, f"{parameter.name} needs bounds"
        return lambda text: _integer(parameter, text, least, most)
    if "enum" in more:
        return lambda text: _one_of(parameter, text, more["enum"])
    assert isinstance(described, msgspec.inspect.StrType), f"{parameter.name} has a type that texts do not have"
    if described.pattern is None:
        return str
    # In a pattern of JSON schema, `$` does not match before the end of a line.
    matches = re.compile(described.pattern.replace("$", r"\Z")).search
    is_duration = parameter.type is _Duration
    return lambda text: _matching(parameter, text, matches, is_duration=is_duration)


def _time(parameter: Parameter, text: str) -> int:
    try:
        return parse_moment(text)
    except ValueError:
        error = f"{parameter.written}{text[: 2 * DIGITS_MAX]!r} is not a time"
        raise ApiError(400, error, "write 2026-01-31T12:00:00Z, or nanoseconds") from None


def _integer(parameter: Parameter, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > DIGITS_MAX or not least <= int(text) <= most:
        error = f"{parameter.written}{text[: 2 * DIGITS_MAX]!r}"
        raise ApiError(400, error, f"expected a number from {least} to {most}")
    return int(text)


def _one_of(parameter: Parameter, text: str, known: list[str]) -> str:
    if text not in known:
        raise ApiError(400, f"{parameter.written}{text[: 2 * DIGITS_MAX]!r}", f"expected {' or '.join(known)}")
    return text


def _matching(parameter: Parameter, text: str, matches: Callable[[str], object], *, is_duration: bool) -> str | int:
    if not matches(text):
        error = f"{parameter.written}{text[:SHOWN_CHARACTERS]!r}"
        raise ApiError(400, error, parameter.advice or f"expected {NAME_RULE}")
    if not is_duration:
        return text
    try:
        return parse_duration_ns(text)
    except ValueError as error:  # the pattern bounds its digits, and not its length
        raise ApiError(400, f"{parameter.written}{text[:SHOWN_CHARACTERS]!r}", str(error)) from None


def operation_of(method: str, path: str) -> tuple[Operation, dict[str, str]]:
    """Return the operation of a request, and the parameters in its path and its query, as texts."""
    where, _, query = path.partition("?")
    parts = where.split("/")
    for each in OPERATIONS:
        of = each.path.split("/")
        if each.method == method.lower() and len(of) == len(parts):
            named = {name[1:-1]: unquote(part) for name, part in zip(of, parts, strict=True) if name.startswith("{")}
            if all(name.startswith("{") or name == part for name, part in zip(of, parts, strict=True)):
                return each, {**dict(parse_qsl(query, keep_blank_values=True)), **named}
    raise LookupError(f"{method} {where} is not an operation of the API")
