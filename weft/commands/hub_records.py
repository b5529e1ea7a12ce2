"""Streams of a running hub: their records, messages to edges, and windows of records that edges keep."""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from weft.client import HubRefusal
from weft.commands.common import existing_store, json_option, store_trouble, tenant_option
from weft.commands.node_log import parse_since
from weft.commands.running import (
    TIMEOUT_S,
    RunningHub,
    access_options,
    any_hub_argument,
    hub_argument,
    in_commands,
    running_hub,
    whole,
)
from weft.config.units import approximate_duration, approximate_size, parse_duration, parse_size
from weft.hub_api.answers import ApiError
from weft.hub_api.records import SQL_ROWS_DEFAULT, SQL_ROWS_MAX, SQL_S, SQL_WAIT_S
from weft.output import (
    FAILURE_EXIT_CODE,
    STOPPED_EXIT_CODE,
    Failed,
    Refused,
    counted,
    harmless,
    print_facts,
    print_json,
    print_table,
)
from weft.protocols.lane import valid_name
from weft.storage.cluster import ClusterUnusable, read_cluster
from weft.storage.hub_keys import latest_key, table_key
from weft.storage.object_store import StoreError
from weft.storage.table.actions import TableError
from weft.text.hub_status import show_streams
from weft.text.record import shown, shown_payload

if TYPE_CHECKING:
    from weft.hub_api.messages import PublishedTo
    from weft.hub_api.pulls import PullAnswer
    from weft.hub_api.records import RecordOfStream, SqlAnswer, TraceAnswer


MEMORY_BYTES = 1 << 30
"""Memory of a query over a store."""

# ``weft hub tail`` and ``weft hub trace``: records of a stream at a running hub, and the way of one.

NAME, PLACE = re.compile(r"([^/]+)/([0-9a-f]{16})/([0-9]{1,19})"), re.compile(r"([0-9]{1,9})/([0-9]{1,19})")
token_option = access_options("a token of scope reader or admin")
stream_tenant_option = click.option(
    "--tenant", help="Tenant of the stream. Unset: the token's; without tokens, `default`."
)


@click.command()
@hub_argument
@click.argument("stream")
@click.option("--edge", help="Only records of this edge.")
@click.option("--key", metavar="FILTER", help="Only keys that match an MQTT filter: plant/+/m1/#.")
@click.option(
    "--position", help="Continue here: the position that an earlier tail ended with, or 0:0 for all of shard 0."
)
@click.option("--count", type=click.IntRange(1), help="End after this many records.")
@stream_tenant_option
@token_option
@json_option
def tail(
    hub: str,
    stream: str,
    *,
    edge: str | None,
    key: str | None,
    position: str | None,
    count: int | None,
    tenant: str | None,
    token_file: str | None,
    as_json: bool,
) -> None:
    """Show new records of STREAM at the running hub HUB, one per line, until Ctrl-C: edge, time, number, key, payload.

    Each record is shown once, even if hub processes restart meanwhile. The position behind the last one is printed at
    the end: a later tail continues from it without a gap.

    \b
    weft hub tail https://hub.example.com telemetry --token-file reader.token
    weft hub tail plant telemetry --key 'plant/press/#' --json
    """
    running = running_hub(hub, token_file)
    reached, left = position, count
    try:
        with _told():
            events = running.client().tail(stream, position=position, tenant=tenant, edge=edge, key=key)
            for event in events:
                for record in event.records[:left]:
                    text = msgspec.json.encode(record).decode() if as_json else _line(record)
                    sys.stdout.write(harmless(text) + "\n")
                sys.stdout.flush()
                if left is not None and (left := left - len(event.records)) <= 0:
                    return  # no position: the event may have had more records
                reached = event.position
    except KeyboardInterrupt:
        sys.stdout.flush()
        if reached is not None:
            click.echo(f"\n-- to continue after the last record: --position {reached}", err=True)
        raise SystemExit(STOPPED_EXIT_CODE) from None  # Ctrl-C is its ordinary end


@contextmanager
def _told() -> Iterator[None]:
    """Turn the end of a tail into a sentence."""
    try:
        yield
    except HubRefusal as refusal:
        raise Failed(f"the hub answered {in_commands(str(refusal))}") from None
    except BrokenPipeError:
        raise  # of the reader of our output
    except (OSError, ValueError) as error:  # a token's file without a token
        raise Failed(str(error)) from None


def _line(record: RecordOfStream) -> str:
    payload = (
        record.payload.encode()
        if isinstance(record.payload, str)
        else base64.b64decode(record.payload_base64)
        if isinstance(record.payload_base64, str)
        else b""
    )
    parts = [record.edge, record.time, str(record.seq), shown(record.key), shown_payload(payload)]
    if isinstance(record.headers, list):
        parts.append("{" + ", ".join(f"{shown(name)}: {shown(str(value))}" for name, value in record.headers) + "}")
    if isinstance(record.origin, str):
        parts.append(f"<{shown(record.origin)}>")
    return " ".join(parts)


@click.command()
@hub_argument
@click.argument("stream")
@click.argument("record", metavar="EDGE/LOG/SEQ|SHARD/OFFSET")
@stream_tenant_option
@token_option
@json_option
def trace(hub: str, stream: str, record: str, *, tenant: str | None, token_file: str | None, as_json: bool) -> int:
    """Show the path of one record of STREAM: edge and number, function, chunk of the log, file and row of the table.

    Name the record by columns of its table: _edge, _log and _seq, or _shard and _offset. Exit status 1 if it is not
    here. `weft trace` reads a store instead, and follows what pipelines made.

    \b
    weft hub trace plant telemetry press-7/00c0ffee00c0ffee/1042
    weft hub trace hub.yaml telemetry 3/120845
    """
    if (name := NAME.fullmatch(record)) is not None:
        asked: dict[str, Any] = {"edge": name[1], "log": name[2], "seq": int(name[3])}
    elif (place := PLACE.fullmatch(record)) is not None:
        asked = {"shard": int(place[1]), "offset": int(place[2])}
    else:
        raise Refused(f"{record!r} names no record: expected EDGE/LOG/SEQ (LOG has 16 digits), or SHARD/OFFSET")
    asked["tenant"] = tenant
    running = running_hub(hub, token_file)
    found = running.trace(stream, **asked)
    while found.record is None and (found.next_chunk is not None or found.next_shard is not None):
        begun = asked | {"chunk": found.next_chunk}
        if found.next_shard is not None:
            begun["shard" if "offset" in asked else "from_shard"] = found.next_shard
        found = running.trace(stream, **begun)
    if as_json:
        print_json(found)
    else:
        _show(found)
    return 0 if found.record is not None else FAILURE_EXIT_CODE


_STANDING = {
    "here": "here",
    "gone": "it was here, and log and table have it no more",
    "to_come": "it has not arrived yet",
    "never_comes": "it never comes",
    "unknown": "the hub does not know it",
}


def _show(found: TraceAnswer) -> None:
    record, gap, chunk, row = found.record, found.gap, found.chunk, found.row
    why = f": {gap.reason}, with numbers {gap.first} to {gap.end - 1}" if gap else ""
    facts = {"record": _STANDING[found.standing] + why}
    if record is not None:
        facts |= {
            "edge": f"{record.edge}, log {record.log}, number {record.seq}",
            "taken in": f"{record.time} at the edge, {record.received} at the hub",
            "key": shown(record.key),
            "made by": shown(record.origin or "") or "a device",
        }
        of = [shown(str(value)) for name, value in record.headers or () if name == "weft.source"]
        if of:
            facts["made of"] = "; ".join(of)
        facts["place"] = f"offset {record.offset} of shard {record.shard}"
    facts["chunk"] = "the log has it no more" if chunk is None else chunk.key
    facts["row"] = "none yet, or none any more" if row is None else f"{row.number} of {row.file}"
    print_facts(facts)


# ``weft sql``: a query over the tables of streams, by a running hub or over a store.


@click.command("sql")
@click.argument("query")
@click.option("--hub", metavar="HUB", help="A configuration on this machine, a URL or the name of a login.")
@click.option("--store", "uri", metavar="URI", help="Ask the tables of a store instead: a folder, or a bucket's URI.")
@click.option(
    "--limit", type=click.IntRange(1, SQL_ROWS_MAX), default=SQL_ROWS_DEFAULT, show_default=True, help="Most rows."
)
@stream_tenant_option
@token_option
@json_option
def sql_command(
    query: str,
    *,
    hub: str | None,
    uri: str | None,
    limit: int,
    tenant: str | None,
    token_file: str | None,
    as_json: bool,
) -> None:
    """Answer QUERY, one SELECT of DuckDB's SQL over the tables of streams.

    Without --store, a running hub with `sql: true` answers: HUB, or WEFT_HUB. With --store, this process reads the
    tables, and needs the extra `sql`. `telemetry` is the table of that stream, `latest.telemetry` its latest table,
    `"press-1"` one with a hyphen in its name. `weft.completeness`, of a hub, says up to when streams are complete.

    \b
    weft sql "SELECT _edge, count(*) FROM telemetry GROUP BY ALL" --hub https://hub.example.com
    weft sql "SELECT max(_time) FROM latest.telemetry" --store /var/lib/weft/store
    """
    if uri is None:
        asked = running_hub(hub, token_file)
        asked.timeout_s = SQL_S + SQL_WAIT_S + TIMEOUT_S
        found = asked.sql(query, limit=limit, tenant=tenant)
    else:
        found = _of_store(uri, query, limit, tenant or "default")
    if as_json:
        print_json(found)
    else:
        cells = ([shown("" if each is None else str(each)) for each in row] for row in found.rows)
        print_table([shown(each.name) for each in found.columns], cells)
    if not found.is_whole:
        click.echo(f"-- there are more rows than these {len(found.rows)}: give --limit, or ask for less", err=True)


def _of_store(uri: str, query: str, limit: int, tenant: str) -> SqlAnswer:
    from weft.cloud_hub.reads import sql
    from weft.hub_api.records import SqlAnswer

    store = existing_store(uri)
    try:
        asyncio.run(read_cluster(store))  # says where a tenant's tables are
        of_schema = ((sql.STREAMS, table_key), (sql.LATEST, latest_key))
        tables = {
            f"{schema}.{name}": sql.TablePlace(*store.location(key(tenant, name)))
            for name in sql.possible_names(query)
            if valid_name(name)
            for schema, key in of_schema
        }
        task = sql.SqlTask(query=query, tables=tables, rows_max=limit, bytes_max=1 << 30, memory_bytes=MEMORY_BYTES)
        return msgspec.json.decode(sql.encoded(sql.answer(task)), type=SqlAnswer)  # as a hub says it
    except ApiError as error:
        raise Failed(f"{error.error}; {error.advice}") from None
    except (ClusterUnusable, TableError) as error:
        raise Failed(f"--store {uri}: {error}") from None
    except StoreError as error:
        raise Failed(f"--store {uri}: {store_trouble(uri, error)}") from None
    except ImportError:
        raise Failed("DuckDB is not installed: install the extra `sql`") from None


# ``weft hub publish`` and ``weft hub messages``: messages from a hub to its edges.

PAYLOAD_BYTES_MAX = 256 << 10
HOPS_MAX = 4
"""Maximum number of processes that are asked in turn for one edge: shards may move meanwhile."""

publisher_token_option = access_options("a token of scope publish or admin")
edges_tenant_option = tenant_option("Tenant of the edges.")


@click.command()
@hub_argument
@click.argument("words", nargs=-1, required=True, metavar="[EDGE[,EDGE...]] TOPIC [PAYLOAD]")
@click.option("--group", default="", help="Publish at all edges of this group, and name none.")
@click.option("--expires", default="1h", show_default=True, help="Time after which no edge publishes it; 7d at most.")
@click.option("--qos", type=click.IntRange(0, 1), default=1, show_default=True, help="QoS of the edge's publish.")
@click.option("--key", default="", help="Idempotency key: repeating the command with it publishes nothing again.")
@edges_tenant_option
@publisher_token_option
@json_option
def publish(
    hub: str,
    words: tuple[str, ...],
    *,
    group: str,
    expires: str,
    qos: int,
    key: str,
    tenant: str,
    token_file: str | None,
    as_json: bool,
) -> None:
    """Publish PAYLOAD to TOPIC at edges of the running hub HUB; `-` reads the payload from standard input.

    The command ends when the message is durable at the hub. An edge that is not linked gets it when it links, within
    --expires. Clients of the edge get it as any other message. The edge's configuration decides which topics a hub may
    publish to (`links.<name>.down`); by default none.

    \b
    weft hub publish hub.yaml press-7 down/recipe '{"speed": 3}' --expires 10m
    weft hub publish hub.yaml --group presses down/recipe '{"speed": 3}'
    """
    edges, topic, payload = _named(words, group)
    data = sys.stdin.buffer.read(PAYLOAD_BYTES_MAX + 1) if payload == "-" else payload.encode(errors="surrogateescape")
    if len(data) > PAYLOAD_BYTES_MAX:
        raise Refused(f"the payload has more than {PAYLOAD_BYTES_MAX} bytes: publish a shorter one")
    try:
        expires_s = parse_duration(expires)
    except ValueError as error:
        raise Refused(f"--expires: {error}") from None
    running = running_hub(hub, token_file)
    message = {"topic": topic, "payload": data, "expires_s": expires_s, "qos": qos, "tenant": tenant}
    sending = _Sending(running, message, key or (secrets.token_hex(8) if group else ""))
    began = time.monotonic()
    try:
        for made in sending.to_group(group) if group else [sending.to(running, {"edges": edges})]:
            for each in [] if as_json else made:
                if not each.error:
                    click.echo(f"{each.edge}: message {each.number} is stored, until {each.expires}")
    except Failed as failure:
        if not group:
            raise
        stored = counted(sum(not each.error for each in sending.made), "message")
        advice = f"to continue, and publish none of them again, add `--key {sending.key}`"
        raise Failed(f"{failure}. {stored} stored before; {advice}") from None
    if as_json:
        print_json({"messages": sending.made})
    elif group:
        click.echo(f"group {group}: {counted(len(sending.made), 'edge')} in {time.monotonic() - began:.1f} s")
    _print_failures(sending)


def _named(words: tuple[str, ...], group: str) -> tuple[list[str], str, str]:
    """Return edges, topic and payload."""
    edges = [] if group else [edge for edge in words[0].split(",") if edge]
    topic, *more = words if group else words[1:] or ("",)
    if not topic or len(more) > 1:
        form = "--group GROUP TOPIC [PAYLOAD]" if group else "EDGE[,EDGE...] TOPIC [PAYLOAD]"
        raise click.UsageError(f"expected {form}, got {counted(len(words), 'word')}; quote a payload with spaces")
    return edges, topic, more[0] if more else ""


class _Sending:
    """A message to edges, and what became of it so far.

    Args:
        message: arguments of ``publish`` but for the edges.
        key: idempotency key; empty for none.
    """

    def __init__(self, hub: RunningHub, message: dict[str, Any], key: str) -> None:
        self._hub, self._message, self.key = hub, message, key
        self.made: list[PublishedTo] = []
        """An entry for each edge."""
        self.missing: dict[int, str] = {}
        """Shards whose edges are not known at present, each with the reason."""

    def to_group(self, group: str) -> Iterator[list[PublishedTo]]:
        """Publish to a group page by page; yield the entries of each."""
        after: str | None = ""
        while after is not None:
            yield self.to(self._hub, {"group": group, "after": after})
            before, after = after, self._next_after
            if after is not None and after <= before:
                raise Failed(f"the hub answered page {after!r} of the group after {before!r}: report this")

    def to(self, hub: RunningHub, whom: dict[str, Any]) -> list[PublishedTo]:
        """Publish to edges, at the processes that own their shards; return the entries."""
        made: list[PublishedTo] = []
        left = {hub.url: whom}
        for hop in range(HOPS_MAX):
            asked, left = left, {}
            for where, of in asked.items():
                sent = {**self._message, **of, "redirect": hop < HOPS_MAX - 1}
                answer = hub.at(where).publish(**sent, idempotency_key=self.key or None)
                if "group" in of:
                    self._next_after = answer.next_after or None
                    self.missing |= {each.shard: each.trouble for each in answer.missing_shards or ()}
                for each in answer.messages:
                    if each.url:
                        left.setdefault(each.url.rstrip("/"), {"edges": []})["edges"].append(each.edge)
                    else:
                        made.append(each)
                        self.made.append(each)
        return made


def _print_failures(sending: _Sending) -> None:
    """Raise ``Failed`` if a message was not stored, or may be missing."""
    failed = [each for each in sending.made if each.error]
    failures = [f"{each.edge}: {each.error}. {each.advice}" for each in failed[:3]]
    if len(failed) > len(failures):
        failures.append(f"and {len(failed) - len(failures)} more; `--json` has all of them")
    if failed:
        raise Failed(f"{counted(len(failed), 'message')} not stored: {'; '.join(failures)}")
    if sending.missing:
        shard, why = next(iter(sending.missing.items()))
        raise Failed(
            f"shard {shard} is not loaded ({harmless(why)}), so edges of the group may have been left out. Try again "
            f"with `--key {sending.key}`, which publishes nothing twice"
        )


@click.command()
@hub_argument
@click.argument("edge")
@edges_tenant_option
@publisher_token_option
@json_option
def messages(hub: str, edge: str, *, tenant: str, token_file: str | None, as_json: bool) -> None:
    """Show the messages to EDGE of the running hub HUB: those that wait, and the outcomes of others.

    A hub process remembers outcomes since it took over the edge, 20,000 of each shard at most. The stream `weft-down`,
    and its table, have all of them.
    """
    running = running_hub(hub, token_file)
    for _ in range(HOPS_MAX):
        facts = running.messages(edge, tenant=tenant, redirect="1")
        if not facts.url:
            break
        running = running.at(facts.url)
    else:
        raise Failed("the hub's processes are dividing the shards: try again in some seconds")
    if as_json:
        print_json(facts)
        return
    rows = [
        (each.number, each.topic, "waiting", each.accepted, "expired" if each.expired else "")
        for each in facts.waiting or ()
    ]
    rows += [(each.number, each.topic, each.outcome, each.accepted, each.reason or "") for each in facts.outcomes or ()]
    print_table(
        ("message", "topic", "state", "accepted", "why"), [[harmless(str(cell)) for cell in row] for row in rows]
    )
    if facts.trouble:
        click.echo(f"the edge reports: {harmless(facts.trouble)}")


# ``weft hub pull`` and ``weft hub pulls``: windows of records that edges keep, brought to the hub.

LOOK_S = 1.0
SILENT_S_MAX = 60.0
"""Time for which a hub may give no answer while a command waits for a pull."""
OVER = ("done", "refused", "failed", "cancelled", "expired")
pull_token_option = access_options("a token of scope pull or admin")


@click.command()
@hub_argument
@click.argument("edge", required=False)
@click.argument("stream", required=False)
@click.option("--from", "since", help="Beginning of the window: 2026-11-25T10:00 (UTC), or -2h.")
@click.option("--to", "until", help="End of the window, likewise, or a time of the same day: 10:15.")
@click.option("--max", "size", default="1GiB", show_default=True, help="Size beyond which the edge refuses.")
@click.option("--expires", default="24h", show_default=True, help="Time after which the hub asks no more; 30d at most.")
@click.option("--wait", is_flag=True, help="Wait until all records have arrived, or no more will.")
@click.option("--cancel", metavar="ID", help="Cancel pull ID instead. Records that have arrived stay.")
@edges_tenant_option
@pull_token_option
@json_option
def pull(
    hub: str,
    edge: str | None,
    stream: str | None,
    *,
    since: str | None,
    until: str | None,
    size: str,
    expires: str,
    wait: bool,
    cancel: str | None,
    tenant: str,
    token_file: str | None,
    as_json: bool,
) -> None:
    """Request the records of STREAM that EDGE received from --from until before --to.

    For streams that no link carries: their records become those of the same stream at the hub, and rows of its table.
    Each record arrives once, however often it is requested. The records do not affect completeness. The edge's
    configuration decides what a hub may ask for (`links.<name>.pull`); by default nothing. An edge that is not linked
    is asked when it links, within --expires.

    \b
    weft hub pull hub.yaml press-7 vibration --from 2026-11-25T10:00 --to 10:15 --wait
    weft hub pull hub.yaml --cancel 5f0c3a9b1d2e
    """
    running = running_hub(hub, token_file)
    if cancel is not None:
        if edge is not None:
            raise Refused("give either EDGE and STREAM, or --cancel ID")
        made = running.cancel_pull(cancel, tenant=tenant)
    else:
        if edge is None or stream is None or since is None or until is None:
            raise Refused("give EDGE, STREAM, --from and --to; or --cancel ID")
        first, end = window(since, until, time.time_ns())
        try:
            bytes_max, expires_s = parse_size(size), parse_duration(expires)
        except ValueError as error:
            raise Refused(f"--max or --expires: {error}") from None
        made = running.pull(edge, stream, first, end, bytes_max=bytes_max, expires_s=expires_s, tenant=tenant)
    if wait:
        made = until_over(made, lambda: running.pulls(tenant=tenant, id=made.id).pulls[0])
    if as_json:
        print_json(made)
    else:
        click.echo(said(made))
    if made.state in ("refused", "failed", "expired"):
        raise Failed(f"pull {made.id} has brought {counted(made.records_received, 'record')}: see the reason")


@click.command()
@any_hub_argument
@click.option("--edge", help="Only those of one edge.")
@edges_tenant_option
@pull_token_option
@json_option
def pulls(hub: str | None, *, edge: str | None, tenant: str, token_file: str | None, as_json: bool) -> None:
    """Show the pulls of the running hub HUB, the latest first, those of the last week included.

    \b
    weft hub pulls hub.yaml --edge press-7
    """
    facts = running_hub(hub, token_file).pulls(tenant=tenant, edge=edge)
    if as_json:
        print_json(facts)
        return
    rows = [
        (
            each.id,
            each.edge,
            each.stream,
            _short(each.from_),
            _short(each.to),
            each.state,
            f"{each.records_received}/{each.records}",
            approximate_size(each.bytes_received),
            "" if each.rest_seconds is None else approximate_duration(each.rest_seconds),
            _why(each),
        )
        for each in facts.pulls
    ]
    print_table(
        ("pull", "edge", "stream", "from", "to", "state", "records", "bytes", "rest", "why"),
        [[harmless(str(cell)) for cell in row] for row in rows],
    )
    if facts.more:
        click.echo(f"and {facts.more} older ones")


def until_over(
    made: PullAnswer, look: Callable[[], PullAnswer], sleep: Callable[[float], None] = time.sleep
) -> PullAnswer:
    """Return a pull that is over. A hub that restarts meanwhile does not end the wait.

    Raises:
        Failed: the hub does not answer for a minute.
    """
    silent_s = 0.0
    while made.state not in OVER:
        sleep(LOOK_S)
        try:
            made, silent_s = look(), 0.0
        except Failed:
            silent_s += LOOK_S
            if silent_s >= SILENT_S_MAX:
                raise
    return made


def window(since: str, until: str, now_ns: int) -> tuple[int, int]:
    """Return the window of ``--from`` and ``--to``, nanoseconds since 1970.

    Raises:
        Refused: one is no time.
    """
    first = parse_since("--from", since, now_ns)
    if len(until) in (5, 8) and until[2:3] == ":":
        until = f"{datetime.fromtimestamp(first // 10**9, UTC):%Y-%m-%d}T{until}"
    return first, parse_since("--to", until, now_ns)


def said(made: PullAnswer) -> str:
    """Return a pull for people."""
    text = f"pull {made.id}: {made.state}"
    if made.records:
        text += f", {made.records_received} of {counted(made.records, 'record')}"
        text += f", about {approximate_size(made.bytes)} in all"
    why = _why(made)
    return harmless(f"{text}; {why}" if why else text)


def _why(made: PullAnswer) -> str:
    lost = [f"{each.first}-{each.end - 1}" for each in made.lost[:3]]
    more = f" and {len(made.lost) - 3} more ranges" if len(made.lost) > 3 else ""
    text = f"the edge no longer had the records {', '.join(lost)}{more}" if lost else ""
    reason = made.reason or ""
    if made.state == "refused" and made.kept_from:
        reason += f"; its oldest record of the stream is of {_short(made.kept_from)}"
    if made.state == "asked" and not made.linked_here:
        reason = reason or "waits until the edge links"
    return "; ".join(each for each in (reason, text) if each)


def _short(moment: str) -> str:
    return moment[:19].replace("T", " ")


# ``weft streams``: the streams of a running hub.


@click.command("streams")
@any_hub_argument
@click.option("--tenant", help="Tenant of the streams. Unset: the token's; without tokens, `default`.")
@access_options("a token of scope reader or admin")
@click.option("--columns", is_flag=True, help="Show the columns of all tables, also of more than eight streams.")
@json_option
def streams_command(
    hub: str | None, *, tenant: str | None, token_file: str | None, columns: bool, as_json: bool
) -> None:
    """List the streams of the running hub HUB: records, rate, completeness, table and its columns.

    The rate is that of the last one to two minutes. It is unknown for the first ten seconds after a hub's start, and
    up to a minute longer for shards of its other processes.
    """
    running = running_hub(hub, token_file)
    facts = whole("streams", running.streams, tenant=tenant or None)
    of_token: str | None = "default"
    if running.has_token and not tenant and not facts.streams:
        of_token = running.whoami().tenant
    if as_json:
        print_json(facts)
        return
    for missing in facts.missing_shards or ():
        click.echo(f"warning: shard {missing.shard} cannot be read: {missing.trouble}", err=True)
    if facts.streams:
        show_streams(facts.streams, time.time(), with_columns=columns)
    else:
        click.echo(f"the hub has no streams of tenant {tenant or of_token} yet; --tenant names another")
