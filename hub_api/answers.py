"""Types of the answers of the API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from weft.config.payload_schema.model import Compatibility, PayloadSchema
from weft.config.units import parse_duration_ns

# Types that several answers of the API have in common.

Moment = Annotated[str, Meta(description="RFC 3339 in UTC with nanoseconds; a time outside the calendar is a number.")]
LogId = Annotated[str, Meta(pattern="^[0-9a-f]{16}$", description="Id of an edge's log. A new disk is a new log.")]
Count = Annotated[int, Meta(ge=0)]
NextAfter = Annotated[str | None, Meta(description="`after` of the next page; null at the end of the list.")]


_SECOND = 1_000_000_000


def moment(time: int | None) -> Moment | None:
    """Return nanoseconds since 1970 as text. None remains None; a time outside the calendar remains a number."""
    return None if time is None else moment_of(time)


def moment_of(time: int) -> Moment:
    """Return nanoseconds since 1970 as text; a time outside the calendar remains a number."""
    seconds, rest = divmod(time, _SECOND)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
    except (ValueError, OverflowError, OSError):
        return str(time)


def parse_moment(text: str) -> int:
    """Return nanoseconds since 1970 from RFC 3339 text (without an offset: UTC) or from the number itself.

    Raises:
        ValueError: it is neither.
    """
    if text.isascii() and text.lstrip("-").isdigit():
        return int(text)
    time = datetime.fromisoformat(text)
    whole = time.replace(tzinfo=time.tzinfo or UTC, microsecond=0)
    return int(whole.timestamp()) * _SECOND + time.microsecond * 1000


def moment_after(text: str, now: int) -> int:
    """Return the moment that a text gives as a duration from now on, such as ``90d``, or as ``parse_moment`` reads it.

    Args:
        now: nanoseconds since 1970.

    Raises:
        ValueError: it is neither, in the past, or too far away.
    """
    try:
        until = now + parse_duration_ns(text)
    except ValueError:
        try:
            until = parse_moment(text)
        except ValueError:
            raise ValueError(f"expected a duration such as 90d, or a date such as 2030-06-30, got {text!r}") from None
    if until < now and text.isdecimal():
        raise ValueError(f"{text} is a moment of the past. A duration has a unit: {text}d")
    if not now <= until < 1 << 63:
        raise ValueError(f"{text} is in the past, or too far away")
    return until


class ApiError(Exception):
    """An error response: HTTP status, the error, and advice.

    Args:
        retry_s: seconds after which the same request may succeed; None if that is not known.
    """

    def __init__(self, status: int, error: str, advice: str, *, retry_s: float | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.advice = advice
        self.retry_s = retry_s


class Problem(msgspec.Struct, frozen=True):
    """The body of every answer whose status is 400 or above, as RFC 9457 has it."""

    type: str
    """URI of the kind of problem, relative to the hub: the description of the status in this document."""
    title: str
    """The name of the kind, the same for each problem of the type."""
    status: Annotated[int, Meta(ge=400, le=599)]
    """Status of the answer."""
    detail: str
    """The mistake or the failure."""
    advice: str
    """The remedy."""


class MissingShard(msgspec.Struct, frozen=True):
    """A shard that cannot be read. What it holds is not in the answer, and not known."""

    shard: Count
    trouble: str


class OfShards(msgspec.Struct, frozen=True, kw_only=True):
    """An answer about all shards."""

    missing_shards: list[MissingShard] | UnsetType = UNSET
    """Absent when every shard could be read."""
    as_of: Moment | UnsetType = UNSET
    """Oldest moment that a part of the answer is of; absent when it is of now, and in answers about one stream."""


class SeqRange(msgspec.Struct, frozen=True):
    """Sequence numbers from `first` to before `end`."""

    first: Count
    end: Count


class GapView(SeqRange, frozen=True):
    """Sequence numbers whose records can never arrive."""

    reason: str
    """`budget`, `corruption`, `expired`, `absent`, `operator` or `renamed`; a number for one of a later release."""


class MarkView(msgspec.Struct, frozen=True):
    """All records that the edge received up to `time` have numbers below `seq`."""

    time: Moment
    seq: Count


class RetiredView(msgspec.Struct, frozen=True):
    """The end of a lane."""

    since: Moment
    by: str
    """`age` or `operator`."""
    reason: str


class OpenGapView(msgspec.Struct, frozen=True):
    """A loss whose number of records is unknown."""

    edge: str
    log: LogId
    first: Count
    """Sequence number from which on records may be missing."""
    records: Count | None
    """Number of lost records; null: unknown."""
    since: Moment | None
    """The records were received after this time; null if no mark ever arrived."""
    until: Moment
    other_lanes: Count
    """Number of further lanes that are joined to this gap."""
    why: str


# Types of the answers about what happened: administrative acts, and changes as they come.


class ActLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the record of administrative acts: an entry of the cluster log."""

    entry: Annotated[int, Meta(ge=1)]
    """Its number. The lines are in the order in which the acts were written."""
    at: Moment | None
    """Time by the clock of the writer."""
    by: str
    """The person or the token that decided, as the writer names it."""
    origin: str
    """User and machine of the writer, as it claims, or the address of a client of the API; empty if unknown."""
    command: str
    """The command line, or method and path of a request; empty if unknown."""
    act: str
    """`declared` or `withdrew` a fact; `began` or `ended` another act; `unusable` for a damaged line."""
    kind: str
    """Kind of the fact; `act` for other acts."""
    name: str
    """Name of the fact, of several the first, or the id that the two lines of another act have in common."""
    target: str
    """The part of the hub that an act that began changes, or the names of all facts where one line has several."""
    reason: str
    """Reason from the author. For an act that ended: `done`, or `failed` with the reason."""


class ActsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Lines in their order."""

    acts: list[ActLine]
    last: Count
    """Number of the last line that this process knows."""
    next_after: str | None


class ChangeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Data of one event: what changed since the previous one. The first one confirms that the stream is open."""

    streams: list[str]
    """Streams of the tenant that have new records."""
    streams_more: Count
    """Number of streams that are left out."""
    edges: list[str]
    """Edges of the tenant whose link to this process began or ended."""
    edges_more: Count
    """Number of edges that are left out."""
    acts: Count | UnsetType = UNSET
    """Number of the last administrative act; absent without the right `acts`."""


# Types of the answers about edges, and about who asks.


class EdgeAlarm(msgspec.Struct, frozen=True, kw_only=True):
    """A reason that holds lanes of an edge back."""

    reason: str
    lanes: Count
    stream: str
    """Stream of the lane that is held back the most."""
    log: LogId | None
    since: Moment | None
    why: str
    what_to_do: str


class DiskOfEdge(msgspec.Struct, frozen=True, kw_only=True):
    """The disk of an edge, as it last reported: its log and the budget, not the file system."""

    reported: Moment
    """Time of that report. Edges report changes, at most every 30 s."""
    used_bytes: Count
    budget_bytes: Count
    free_bytes: Count
    """Bytes left for records that no hub has yet."""
    bytes_per_second: Count | None
    """Growth of the log in the hour before; null if that was not known yet."""
    outage_seconds_left: Count | None
    """Time for which the free bytes last at that rate, from `reported` on: 0 when the log is full or has stopped, null
    when nothing was received or the rate was not known yet."""


class TimeAlone(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which records that an edge of a pair acknowledged were on one disk, by its clock."""

    since: Moment
    until: Moment | None
    """Null while it lasts."""


class CopyOfEdge(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of the log of an edge that is away, by the word of its peer."""

    at: str
    """Edge that has the copy."""
    reported: Moment
    log: LogId
    complete_to: Moment | None
    """Time by the clock of the edge that is away up to which copy and hub have all that it took in; null if it is
    unknown."""
    vouched: bool
    """True if they have all that it acknowledged, until whenever it was."""
    records: Count
    """Records of the copy that the hub is not known to have yet: `weft edge take-over` brings them."""


class PairOfEdge(msgspec.Struct, frozen=True, kw_only=True):
    """The pair of an edge, by its own word and its peer's. Nothing at the hub depends on it."""

    times_alone: list[TimeAlone]
    """The latest, at most eight."""
    copies: list[CopyOfEdge]


class FunctionOfEdge(msgspec.Struct, frozen=True, kw_only=True):
    """The functions of a derived stream at an edge, with figures since the edge started."""

    stream: str
    kinds: str
    """Names of the functions, in their order; cut where they are many."""
    rows_in: Count
    rows_out: Count
    errors: Count
    """Rows that were rejected, and restarts of the functions after an error."""
    last_error: str | None
    """The error, as a sentence; null if there is none."""


class EdgeOfHub(msgspec.Struct, frozen=True, kw_only=True):
    """An edge that the hub knows."""

    tenant: str
    edge: str
    shard: Count
    logs: list[LogId]
    """The one last heard of first, at most eight."""
    streams: Count
    last_seen: Moment | None
    """Time at which the hub last stored anything from the edge."""
    groups: list[str] | UnsetType = UNSET
    """Declared groups of the edge."""
    connected_since: Moment | None
    """Null when the edge is linked to no process of the hub, as far as is known (`links_unknown_at`)."""
    connected_at: str | UnsetType | None = UNSET
    """Name of the process; null without a link."""
    software: str | None
    """Null when the edge is not linked, and was not linked to this process since it started."""
    clock_off_seconds: float | UnsetType | None = UNSET
    """Seconds that the edge's clock was ahead when it linked; null for an edge without a link to this process, or
    without a time source."""
    missing_records: Count
    lost_records: Count | UnsetType = UNSET
    """Records that the edge gave up: its log was full, they were too old, or it was damaged. Their gaps are in
    `lanes`. Absent while it is not known."""
    complete_up_to: Moment | None
    retired: bool
    disk: DiskOfEdge | UnsetType | None = UNSET
    """Null for an edge that has not reported its disk: its release does not, or it has not linked since the process
    started."""
    pair: PairOfEdge | UnsetType = UNSET
    """Absent for an edge that has told nothing of a pair, and of which no other one has a copy."""
    alarms: list[EdgeAlarm]


class EdgeAnswer(EdgeOfHub, frozen=True, kw_only=True):
    """One edge, with its functions."""

    stream_names: list[str] | UnsetType = UNSET
    """Streams of its lanes by name, at most 64; empty while its shard is held by an earlier release."""
    functions: list[FunctionOfEdge] | None
    """At most 32; null if unknown: the edge is not linked, or its release does not report them."""
    functions_more: Count
    """Number of derived streams that are left out."""
    links_unknown_at: list[str] | UnsetType = UNSET
    """Processes whose links are not known here; absent when all are."""


class EdgesAnswer(OfShards, frozen=True, kw_only=True):
    """Edges by tenant and name."""

    edges: list[EdgeOfHub]
    next_after: NextAfter
    links_unknown_at: list[str] | UnsetType = UNSET
    """Processes whose links are not known here; absent when all are."""


class LossOfEdge(GapView, frozen=True, kw_only=True):
    """A gap of one of an edge's lanes."""

    stream: str
    log: LogId


class LossesOfEdge(msgspec.Struct, frozen=True, kw_only=True):
    """Gaps of one edge that no record fills."""

    tenant: str
    edge: str
    shard: Count
    last_seen: Moment | None
    """Time at which the hub last stored anything from the edge."""
    retired: bool
    losses: list[LossOfEdge]
    """At most eight, those with the most records first. The lanes of each stream have all."""
    losses_more: Count
    """Number of other gaps of the edge."""
    records: Count
    """Number of records in all of its gaps."""


class LossesAnswer(OfShards, frozen=True, kw_only=True):
    """Edges with losses, by tenant and name."""

    edges: list[LossesOfEdge]
    next_after: NextAfter


class WhoAmI(msgspec.Struct, frozen=True, kw_only=True):
    """The rights of a request, by its token."""

    token: str | None
    """Name of the token; null when the hub has no tokens, and with a certificate."""
    scope: str
    """`edge`, `reader`, `publish`, `pull`, `admin`, or `granted` for `rights` one by one; `anonymous` when the hub has
    no tokens."""
    tenant: str | None
    """Tenant of requests without `tenant`."""
    edge: str | None
    """The edge that may link with the token."""
    until: Moment | UnsetType | None = UNSET
    """End of the token; null for none."""
    certificate: str | UnsetType | None = UNSET
    """Common name of the request's client certificate, if it gives the rights; null for a token."""
    rights: list[str] | UnsetType = UNSET
    """Rights of the token, such as `read:press-*`; empty when the hub has no tokens."""
    software: str | UnsetType = UNSET
    """Release of the hub, such as `weft 0.1.0`."""
    link_protocol: int | UnsetType = UNSET
    """Version of the protocol of links that the hub speaks."""


# Types of the answers about messages to edges.


class PublishedTo(msgspec.Struct, frozen=True, kw_only=True):
    """One edge's part of a publication: stored (`number`), refused (`status`), or left to another process (`url`)."""

    edge: str
    number: Count | UnsetType = UNSET
    accepted: Moment | UnsetType = UNSET
    expires: Moment | UnsetType = UNSET
    status: Count | UnsetType = UNSET
    """HTTP status that the error has as an answer of its own."""
    error: str | UnsetType = UNSET
    advice: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    """Process that owns the edge's shard; this process stored nothing."""


class PublishedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An entry for each edge. Stored messages are durable."""

    tenant: str
    topic: str
    messages: list[PublishedTo]
    group: str | UnsetType = UNSET
    """With `group` of the request."""
    next_after: str | UnsetType | None = UNSET
    """`after` of the next request to the group; null after its last edge."""
    missing_shards: list[MissingShard] | UnsetType = UNSET
    """Shards that cannot be read, whose edges of the group may be left out."""


class WaitingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message without an outcome."""

    number: Count
    accepted: Moment
    expires: Moment
    topic: str
    bytes: Count
    expired: bool
    by: str | None
    """Name of the token that published it."""


class MessageOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a message."""

    number: Count
    accepted: Moment
    topic: str
    outcome: str
    """`published`, `expired`, `refused` or `unknown`."""
    reason: str | None
    time: Moment


class MessagesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Messages to one edge; only `edge` and `url` when another process owns the edge's shard."""

    tenant: str | UnsetType = UNSET
    edge: str
    waiting: list[WaitingMessage] | UnsetType = UNSET
    trouble: str | UnsetType | None = UNSET
    """The edge's reason why messages wait."""
    outcomes: list[MessageOutcome] | UnsetType = UNSET
    """The newest first, at most 1,000."""
    url: str | UnsetType = UNSET
    """Process that owns the edge's shard, if `redirect` was asked for."""


# Types of the answers about pipelines of Spark.


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last report of a query, unchecked."""

    pipeline: str
    stream: str
    """The stream that it reads; `*` for several."""
    state: str
    """`running`, `ended` or `failed`; `silent` where a running one has not reported for some time."""
    error: str | None
    batch: Count | None
    """Number of the last micro-batch."""
    records: Count | None
    """Records of the last micro-batch."""
    seconds: float | None
    """Duration of the last micro-batch."""
    rate: float | None
    """Records a second, between the last two reports."""
    lag: Count | None
    """Records of the log that it has not read; null: unknown."""
    complete_until: str | None
    """Moment up to which its windows are complete."""
    idle_seconds: float | None
    """Time between the end of the last micro-batch with records and the report."""
    every_seconds: float
    seen: Moment
    """Moment of the report."""
    seen_seconds_ago: float


class PipelinesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The pipelines of a tenant that have reported, by name, at most 200."""

    pipelines: list[PipelineReport]


class ReportedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A report that was accepted, or forgotten."""

    pipeline: str


# Types of the answers about pulls: windows of records that the hub asks edges for.


class PullAnswer(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """One pull."""

    id: str
    tenant: str
    edge: str
    stream: str
    from_: Moment
    """Start of the window, by the edge's clock."""
    to: Moment
    """End of the window, which it leaves out."""
    state: str
    """`asked` or `sending`, and then `done`, `refused`, `failed`, `cancelled` or `expired`."""
    reason: str | None
    """Reason of the state, or why no records arrive at present."""
    linked_here: bool
    """True while the edge is linked to this process, and knows pulls."""
    records: Count
    """Records that the edge found, before it sent the first of them."""
    bytes: Count
    """Their bytes, as stored at the edge."""
    records_received: Count
    bytes_received: Count
    """An estimate by `records_received`."""
    rest_seconds: float | None
    """Estimated time for the rest."""
    kept_from: Moment | None
    """Time of the oldest record that the edge then had of the stream."""
    lost: list[SeqRange]
    """Numbers that the edge no longer had when it sent them, 64 ranges at most."""
    log: LogId | None
    """Log of the edge that the numbers belong to."""
    asked: Moment
    expires: Moment
    ended: Moment | None
    """Time of the last state."""
    by: str | None
    """Name of the token that asked."""


class PullsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Pulls of a tenant, the latest first."""

    tenant: str
    pulls: list[PullAnswer]
    more: Count
    """Pulls that are not in the answer."""


# Types of the answers about tenants: quotas, and an account of use.


class QuotasAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Declared quotas; `null` for no bound."""

    edges: Count | None
    """Edges that tokens of the cluster log may name."""
    streams: Count | None
    bytes_per_second: Count | None
    """Bytes of batches that links bring, as the edges stored them."""
    stored_bytes: Count | None
    """Recorded, not enforced."""
    records_per_second: Count | None
    lanes: Count | None
    links: Count | None
    """Edges that are linked at one time."""
    table_bytes: Count | None
    """Bytes of the tables of all rows."""


class TenantAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A declared tenant."""

    tenant: str
    version: Count
    """Number of the entry of the cluster log that declared this; 0 for `default` without a declaration."""
    quotas: QuotasAnswer
    """Without a bound, too, if the release cannot read them: see `unusable`."""
    isolation: Literal["own"] | UnsetType | None = UNSET
    """`own` for a tenant with shards and tables below a prefix of its own; null for one that shares those of others."""
    tokens: Count | UnsetType = UNSET
    """Declared tokens of the tenant that the release can read."""
    streams_with_edges: Count | UnsetType = UNSET
    """Streams of the tenant for which edges are declared (`weft hub stream expect`)."""
    changed: Moment | UnsetType | None = UNSET
    """Time of the declaration; null without one."""
    by: str | UnsetType = UNSET
    """Author of the declaration; empty without one."""
    reason: str | UnsetType = UNSET
    unusable: str | UnsetType | None = UNSET
    """Reason why the release cannot read the declaration; null if it can."""


class TenantsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The declared tenants, and `default`, by name."""

    tenants: list[TenantAnswer]
    next_after: str | None


class RemovedTenantAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant that was withdrawn. Its records, streams and tables stay."""

    tenant: str


class SchemaAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the declared schema of a stream's payloads."""

    tenant: str
    stream: str
    version: Count
    """Number of the entry of the cluster log that declared it; rows have it in the column `_schema`."""
    before: Count | None
    """The version before; null for the first."""
    compatibility: Compatibility
    """Rule that the next version has to keep."""
    schema: PayloadSchema
    changed: Moment
    by: str
    reason: str


class SchemaOfStream(msgspec.Struct, frozen=True, kw_only=True):
    """A declared schema in a list."""

    tenant: str
    stream: str
    version: Count
    """Number of the entry of the cluster log that declared it."""
    format: str | None
    """Null, as other fields, if the release cannot read it: see `unusable`."""
    fields: Count | None
    """Number of its fields."""
    compatibility: Compatibility | None
    personal: list[str] | None
    """Fields with personal data."""
    changed: Moment
    by: str
    reason: str
    unusable: str | None
    """Reason why the release cannot read it; null if it can."""


class SchemasAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The declared schemas, by tenant and stream."""

    schemas: list[SchemaOfStream]
    next_after: NextAfter


class RemovedSchemaAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A schema that was withdrawn. The table keeps its columns; they are null in later rows."""

    tenant: str
    stream: str


class TokenOfStore(msgspec.Struct, frozen=True, kw_only=True):
    """A declared token. Its secrets are not in the store."""

    name: str
    scope: str | None
    """Null, as other fields, if the release cannot read it: see `unusable`."""
    tenant: str | None
    edge: str | None
    grants: list[str]
    until: str | None
    """End of the last secret; `ended`, or `not paired yet`; null for no end."""
    older_until: Moment | None
    """End of the secret before, while both are in force."""
    last_used: Moment | None
    """Last known use, up to an hour old; null: none is known."""
    secrets: Count
    """Secrets in force."""
    version: Count
    """Number of the entry of the cluster log that declared this."""
    changed: Moment
    by: str
    reason: str
    unusable: str | None
    """Reason why it is refused; null if it can be read."""


class TokensAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Declared tokens by name. Those of an issuer are not among them."""

    tokens: list[TokenOfStore]
    next_after: str | None


class SecretAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that was made. It is shown this once."""

    name: str
    token: str
    until: Moment | None
    """Its end; null for none."""


class PairingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A code by which an edge gets a token. It is shown this once."""

    name: str
    """Name of the token."""
    code: str
    tenant: str
    edge: str
    until: Moment
    """End of the code."""


class ImportedTokensAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an import of tokens."""

    added: list[str]
    """Names of the tokens that it declared."""
    existing: Count
    """Number of the others, which were declared already and stay as they are."""
    other_secret: list[str]
    """Names of those among them that have another secret than the import."""


class RemovedTokenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A token that was withdrawn."""

    name: str
    left: Count
    """Number of declared tokens that are left."""


class ReceivedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Data that links brought to this process since `since`, repetitions included."""

    bytes: Count
    records: Count


class StreamUseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one stream."""

    stream: str
    records: Count
    """Records in the log since its begin, of all shards."""
    received: ReceivedAnswer
    table_bytes: Count | None
    """Bytes of the stream's table of all rows, as of the last look for small files; null: unknown to this process."""


class UsageAnswer(OfShards, frozen=True, kw_only=True):
    """The use of the hub by one tenant."""

    tenant: str
    quotas: QuotasAnswer
    since: Moment
    """Start of this process."""
    share: float
    """Part of the rates that this process lets in; the others have the rest."""
    links: Count
    """Linked edges, of all processes as of some seconds ago."""
    lanes: Count
    streams_count: Count
    table_bytes: Count | None
    """Bytes of the tables of all rows, if they have a quota and this process writes tables."""
    received: ReceivedAnswer
    throttled_seconds: float
    """Time for which links to this process were slowed."""
    refused: Count
    """Links and lanes that this process refused for a quota."""
    streams: list[StreamUseAnswer]
    next_after: str | None


# Types of the answers about streams.


class TableColumn(msgspec.Struct, frozen=True):
    """A column of a table."""

    name: str
    type: str
    """Delta's name of the type."""


class TableOfStream(msgspec.Struct, frozen=True, kw_only=True):
    """The table of a stream."""

    path: str
    """Path in the store."""
    kind: Literal["all", "latest"] | UnsetType = UNSET
    """`all` for the table of all rows, `latest` for a latest table that replaces it."""
    version: int
    """Newest version; -1 before the first."""
    columns: list[TableColumn]
    lag_records: Count
    """Records in the log that are no rows yet."""
    committed_at: Moment | None
    """Time at which this node last moved rows."""
    error: str | None
    """Error of the last round."""
    is_stopped: bool
    """True while the table waits behind records that cannot become rows."""
    removed_until: Moment | UnsetType | None = UNSET
    """Time at which the hub received the newest row that retention removed; null if it removed none."""
    files: Count | UnsetType | None = UNSET
    """Files of the table of all rows, as of the last look for small ones; null: unknown."""
    bytes: Count | UnsetType | None = UNSET
    """Bytes of these files."""
    made_by: str | UnsetType | None = UNSET
    """Name of the hub process that makes it, or of another maker; null: unknown."""
    vacuumed_at: Moment | UnsetType | None = UNSET
    """Time at which a vacuum last ended that removed files, as of the last look for small ones; null: unknown."""


class HeldBackReason(msgspec.Struct, frozen=True, kw_only=True):
    """A reason why completeness does not advance."""

    edge: str
    """Name, or the pattern of an expected edge; empty when the reason is no edge."""
    log: LogId | None
    reason: str
    """The reference page lists the reasons."""
    severity: Literal["info", "warning", "error"] | UnsetType = UNSET
    """Urgency for an operator: nothing, a look or an act."""
    since: Moment | None
    complete_up_to: Moment | None
    why: str
    what_to_do: str


class StreamOf(msgspec.Struct, frozen=True, kw_only=True):
    """A stream of a tenant."""

    tenant: str
    stream: str
    records: Count
    """Records that the log holds."""
    records_per_second: float | None
    """Mean of the last one to two minutes; null while unknown."""
    table_rows: Count | None
    """Records that are rows of the table; null when this node does not know it."""
    next_offset: dict[str, int]
    """Shard -> offset behind its last record."""
    lanes: Count
    edges: Count
    fields: list[str]
    """Named topic levels."""
    payload: str
    """`bytes`, `text` or `json`."""
    complete_up_to: Moment | None
    """Moment up to which every edge's records are here or under a gap notice; null while unknown."""
    held_back_by: list[HeldBackReason] | UnsetType = UNSET
    """Edges that the moment waits for, at most three; the completeness names all."""
    skipped: Count
    """Offsets that an operator removed from the table."""
    table: TableOfStream | None
    """Null when this node does not know it."""


class StreamAnswer(StreamOf, frozen=True, kw_only=True):
    """One stream."""

    missing_shards: list[MissingShard] | UnsetType = UNSET
    """Absent when every shard could be read."""


class StreamsAnswer(OfShards, frozen=True, kw_only=True):
    """Streams of a tenant, by name."""

    streams: list[StreamOf]
    next_after: NextAfter


class LaneOfStream(msgspec.Struct, frozen=True, kw_only=True):
    """The hub's knowledge of one log of an edge."""

    edge: str
    log: LogId
    shard: Count
    epoch: Count
    ranges: list[SeqRange]
    """Sequence numbers that are accounted for."""
    gaps: list[GapView]
    """Those among them that have no record."""
    mark: MarkView | None
    """The newest mark that is proven."""
    newest_mark: MarkView | None
    """The newest mark; records below it may still be in flight."""
    last_word: MarkView | None
    """Mark of an edge that stopped in order; null while it runs."""
    retired: RetiredView | None
    open_gap: OpenGapView | None
    topics: list[str]
    """Topic patterns of the stream at the edge."""
    payload: str
    """`bytes`, `text` or `json`."""


class LanesAnswer(OfShards, frozen=True, kw_only=True):
    """Lanes of a stream, by edge and log."""

    tenant: str
    stream: str
    lanes: list[LaneOfStream]
    next_after: NextAfter


class LaneCompleteness(msgspec.Struct, frozen=True, kw_only=True):
    """Moment up to which a lane is complete, and what it lacks."""

    edge: str
    log: LogId
    shard: Count
    complete_up_to: Moment | None
    complete_below_seq: Count
    newest_mark: MarkView | None
    gaps: list[GapView]
    open_gap: OpenGapView | None
    last_word: MarkView | None
    retired: RetiredView | None
    holes: list[SeqRange]
    """Sequence numbers that are not held yet."""


class LaneName(msgspec.Struct, frozen=True):
    """A lane of the stream."""

    edge: str
    log: LogId


class SkippedRun(LaneName, frozen=True):
    """Records of one lane."""

    first: Count
    end: Count


class SkippedOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets that an operator removed from the table."""

    shard: Count
    first_offset: Count
    end_offset: Count
    since: Moment
    reason: str
    records: list[SkippedRun]


class CompletenessAnswer(OfShards, frozen=True, kw_only=True):
    """Time up to which a stream is complete, the lanes that it covers, and what prevents a later one."""

    tenant: str
    stream: str
    complete_up_to: Moment | None
    """Null while a lane that counts, or an expected edge, has not reported, and while a shard is missing."""
    covers: list[LaneName]
    """Lanes of this page that the time covers."""
    held_back_by: list[HeldBackReason]
    held_back_by_more: Count
    """Number of reasons that are left out."""
    open_gaps: list[OpenGapView]
    open_gaps_more: Count
    """Number of open gaps that are left out."""
    skipped: list[SkippedOffsets]
    lanes: list[LaneCompleteness]
    next_after: NextAfter
    removed_until: Moment | UnsetType = UNSET
    """Time at which the hub received the newest row that retention removed."""
    only_latest: Literal[True] | UnsetType = UNSET
    """The stream has no table of all rows: records that left the log are in no answer."""


class RecordOfStream(msgspec.Struct, frozen=True, kw_only=True):
    """A record."""

    shard: Count
    offset: Count
    edge: str
    log: LogId
    stream: str
    seq: Count
    """Number of the record in its lane: (edge, log, stream, seq) is its name, which never changes."""
    time: Moment
    """Settled time of the edge; column `_time` of tables."""
    clock: str
    received: Moment
    """Time at which the hub received it."""
    key: str
    resent: bool
    """True when the device marked the message as possibly sent before."""
    edge_time: Moment | UnsetType = UNSET
    """The edge's own stamp, when it differs from `time`."""
    origin: str | UnsetType = UNSET
    """The function that made the record."""
    payload: str | UnsetType = UNSET
    """Payload that is text, or JSON in a stream of JSON; otherwise `payload_base64` is set, also for a text above 1 MiB
    whose JSON is more than twice as long."""
    payload_base64: str | UnsetType = UNSET
    headers: list[tuple[str, Any]] | UnsetType = UNSET
    """Pairs of name and value."""


class RecordsAnswer(OfShards, frozen=True, kw_only=True):
    """Records in the order of their offsets, shard by shard, and where to continue."""

    tenant: str
    stream: str
    records: list[RecordOfStream]
    next_offset: dict[str, int]
    """Shard -> `offset` to continue with."""
    next_chunk: dict[str, int]
    """Shard -> `chunk` to continue from, where the shard had more than one request reads."""
    removed_until: Moment | UnsetType = UNSET
    """Time at which the hub received the newest row that retention removed."""
    only_latest: Literal[True] | UnsetType = UNSET
    """The stream has no table of all rows: records that left the log are in no answer."""
    next_shard: Count | UnsetType = UNSET
    """`from_shard` to continue with, when the request had no room for the shards from this one on."""


class RowsAnswer(msgspec.Struct, frozen=True):
    """Rows of one shard as JSON, for a look."""

    rows: list[dict[str, Any]]
    """Columns of each row that are not null, by name: times as RFC 3339, and bytes as text.

    Bytes that are no text are under the name of the column and `_base64`.
    """
    next_offset: Count | None
    """`offset` to continue with. Null while the search for the first row continues."""
    next_chunk: Count | None
    end_offset: Count


class SeriesRow(msgspec.Struct, frozen=True):
    """A number of a record, or what an interval of them makes."""

    time: Moment
    """Time of the record, or the interval's begin."""
    edge: str
    key: str
    field: str
    """Path of the number in the payload; `value` for a payload that is a number."""
    value: float | None
    """Null if records of the edge are missing: charts draw a gap there."""
    count: Count
    """Number of values that it was made of."""


class SeriesAnswer(OfShards, frozen=True, kw_only=True):
    """Numbers of a stream over time."""

    tenant: str
    stream: str
    rows: list[SeriesRow]
    """Rows in the order of time."""
    complete_up_to: Moment | None
    """Time up to which the stream is complete: later rows may still arrive. Null while it is not known."""
    is_whole: bool
    """False when a bound was reached, or a shard cannot be read: ask for a shorter span, one edge or fewer keys."""


class SqlColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of an answer."""

    name: str
    type: str
    """Type in SQL, as DuckDB writes it."""


class SqlTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that a query read."""

    name: str
    """`streams.NAME` for the table of all rows, `latest.NAME` for a latest table."""
    version: int
    """Version of the Delta table."""


class SqlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that a query in SQL has made."""

    columns: list[SqlColumn]
    rows: list[list[Any]]
    """Values in the order of the columns: times as RFC 3339, bytes in base64, maps as lists of pairs."""
    is_whole: bool
    """False when there are more rows than the limit, or than an answer may have bytes."""
    tables: list[SqlTable]


class TailEvent(msgspec.Struct, frozen=True, kw_only=True):
    """New records of a stream, or the reason of the end."""

    records: list[RecordOfStream] = []
    position: str
    """Position behind the event, to continue with."""
    error: str | UnsetType = UNSET
    """Reason of the end. It is the last event."""
    advice: str | UnsetType = UNSET


class ChunkOfRecord(msgspec.Struct, frozen=True):
    """The chunk of the log that has a record."""

    shard: Count
    n: Count
    key: str
    """Key of the object in the store."""


class RowOfRecord(msgspec.Struct, frozen=True):
    """The row of a record in the stream's table."""

    file: str
    """Path of the file in the table's folder."""
    number: Count
    """Number of the row in the file, from 0."""


class TraceAnswer(OfShards, frozen=True, kw_only=True):
    """The path of one record from a device to a row."""

    tenant: str
    stream: str
    standing: Literal["here", "gone", "to_come", "never_comes", "unknown"]
    """The hub's knowledge of the number. With `never_comes`, `gap` is set; `unknown` is a lane that the hub does not
    know, or an offset without a record."""
    record: RecordOfStream | None
    """Null if it is not here, or not found yet. `origin` names the function and version that made it, and the header
    `weft.source` of what."""
    chunk: ChunkOfRecord | None
    """Null when the log no longer has it."""
    row: RowOfRecord | None
    """Null when the table had no row of it up to a minute ago."""
    next_chunk: Count | None
    """`chunk` of the next request, when the search has reached its bound."""
    next_shard: Count | None
    """`from_shard`, or `shard` beside `offset`, of the next request; null at the end of the search."""
    gap: GapView | UnsetType = UNSET
