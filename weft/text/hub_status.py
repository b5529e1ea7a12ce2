"""Text of ``weft hub status`` and ``weft streams``."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec import UNSET

from weft.config.units import YEAR_S, approximate_duration, approximate_size, format_size
from weft.output import counted, print_facts, print_table
from weft.text.record import shown

if TYPE_CHECKING:
    from msgspec import UnsetType

    from weft.hub_api.edges import DiskOfEdge, EdgeOfHub
    from weft.hub_api.status import (
        CertificateInForce,
        ClusterLogPosition,
        DiskOfStore,
        EndOfToken,
        KeysOfIssuer,
        LinkOfProcess,
        QualityOfNode,
        StatusAnswer,
        StoppedOffsets,
        TableOfNode,
    )
    from weft.hub_api.streams import HeldBackReason, StreamOf, TableOfStream

# What counts as trouble, a function for each list: the text and ``--trouble --json`` read it here, so that they agree.

ENDS_SOON_S = 14 * 86_400.0
"""Time before the end of a token or a certificate from which on it is trouble."""
CLOCK_DIFFERS_S = 60.0
"""Difference of an edge's clock from which on it is trouble."""


def only_trouble(facts: StatusAnswer, now: float) -> StatusAnswer:
    """Return a status whose lists have nothing but what is in trouble. The facts of the process itself stay.

    Args:
        now: seconds since 1970.
    """
    kept, alone = clocks_that_differ(facts.links)
    return msgspec.structs.replace(
        facts,
        shards=[each for each in facts.shards if each.trouble],
        tables=[each for each in facts.tables if each.error or each.stopped],
        latest_tables=[each for each in facts.latest_tables or () if each.error],
        iceberg_tables=[each for each in facts.iceberg_tables or () if each.error],
        quality=quality_in_alarm(facts.quality or ()),
        links=[*kept, *(each for each in alone if each not in kept)],
        cluster_log=msgspec.structs.replace(facts.cluster_log, ends=tokens_that_end(facts.cluster_log, now)),
    )


def edges_in_trouble(edges: Sequence[EdgeOfHub]) -> list[EdgeOfHub]:
    """Return the edges with an alarm, without a link, with lost records, or with new records on one disk of a pair."""
    return [each for each in edges if each.alarms or each.lost_records or is_gone(each) or alone_since(each)]


def is_gone(edge: EdgeOfHub) -> bool:
    """Return whether an edge has no link, and should have one."""
    return edge.connected_since is None and not edge.retired


def alone_since(edge: EdgeOfHub) -> str | None:
    """Return the time since which records of an edge of a pair have one disk; None if they have two, or no pair."""
    times = edge.pair.times_alone if edge.pair else []
    return times[-1].since if times and times[-1].until is None else None


def clocks_that_differ(links: Sequence[LinkOfProcess]) -> tuple[list[LinkOfProcess], list[LinkOfProcess]]:
    """Return the links to edges whose clock is wrong: those with a time service, and those without one."""
    kept = [each for each in links if abs(each.clock_off_seconds or 0.0) > CLOCK_DIFFERS_S]
    return kept, [each for each in links if abs(each.unkept_clock_off_seconds or 0.0) > CLOCK_DIFFERS_S]


def quality_in_alarm(streams: Sequence[QualityOfNode]) -> list[QualityOfNode]:
    """Return the streams with quality rules in alarm or vanished fields, without their other rules."""
    found = [
        msgspec.structs.replace(each, rules=[rule for rule in each.rules if rule.state == "alarm"]) for each in streams
    ]
    return [each for each in found if each.rules or each.vanished]


def tokens_that_end(facts: ClusterLogPosition, now: float) -> list[EndOfToken]:
    """Return the tokens that end soon and have no later secret.

    Args:
        now: seconds since 1970.
    """
    ends = facts.ends or ([facts.next_end] if facts.next_end else [])
    return [each for each in ends if seconds_until(each.until, now) < ENDS_SOON_S]


def certificate_ends(facts: CertificateInForce | None, now: float) -> bool:
    """Return whether a hub's certificate ends soon.

    Args:
        now: seconds since 1970.
    """
    return facts is not None and seconds_until(facts.expires, now) < ENDS_SOON_S


def seconds_until(moment: str, now: float) -> float:
    """Return the seconds until a moment of an answer, 0 if it is over; infinity for one outside the calendar."""
    try:
        return max(datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp() - now, 0.0)
    except ValueError:
        return math.inf


# The text.

_UNKNOWN = "unknown"
_EDGE_COLUMNS = (
    "edge",
    "log",
    "last seen",
    "link",
    "version",
    "outage left",
    "records missing",
    "lost",
    "complete up to",
    "alarms",
)
COLUMNS_STREAMS_MAX = 8
"""Number of streams up to which their columns are printed: each is a line of some hundred characters."""
ENDS_NAMED = 8
"""Number of tokens that end soon that are named."""


def show_edges(
    edges: Sequence[EdgeOfHub],
    now: float,
    most: int | None,
    here: Collection[str],
    unknown_at: Sequence[str],
    *,
    only_trouble: bool = False,
) -> None:
    """Print the edges that a hub knows: those with an alarm first, then those without a link; of these, the edge that
    was heard of the longest ago is first.

    Args:
        now: seconds since 1970.
        most: maximum number of edges that are printed; None for all.
        here: names of this machine's processes.
        unknown_at: names of processes whose links are not known.
        only_trouble: whether to print only edges that are in trouble.
    """
    all_known = not unknown_at
    if unknown_at:
        click.echo(f"warning: the edges that are linked to {', '.join(unknown_at)} are not known here yet", err=True)
    away = sum(is_gone(each) for each in edges)

    def order(each: EdgeOfHub) -> tuple[object, ...]:
        gone, last_seen = is_gone(each), each.last_seen or ""
        return not each.alarms, not gone, last_seen if each.alarms or gone else "", each.tenant, each.edge

    ordered = sorted(edges_in_trouble(edges) if only_trouble else edges, key=order)
    shown_edges = ordered if most is None else ordered[:most]
    if shown_edges:
        print_table(_EDGE_COLUMNS, [_edge_row(each, now, here, all_known=all_known) for each in shown_edges])
    alarmed, linked = sum(bool(each.alarms) for each in edges), sum(bool(each.connected_since) for each in edges)
    not_connected = f"{away} not connected" + ("" if all_known else " or unknown")
    click.echo(f"{counted(len(edges), 'edge')}: {linked} connected, {not_connected}, {alarmed} with an alarm")
    if len(shown_edges) < len(ordered):
        click.echo(f"{len(ordered) - len(shown_edges)} of them are not shown: --edges 0 shows all")


def _pair(edge: EdgeOfHub) -> list[str]:
    """Return what is to be known of an edge's pair: that it works alone, and what its peer has when it is away."""
    found = []
    if (since := alone_since(edge)) is not None:
        found.append(f"alone: records have one disk since {since}")
    for copy in edge.pair.copies if edge.pair and is_gone(edge) else ():
        if copy.vouched:
            has = "all that it acknowledged"
        else:
            has = "an unknown part" if copy.complete_to is None else f"all that it took in until {copy.complete_to}"
        left = f", {counted(copy.records, 'record')} of it not here yet" if copy.records else ""
        found.append(f"copy at {copy.at}: it and the hub have {has}{left}")
    return found


def disk_text(disk: DiskOfStore | UnsetType | None, now: float) -> str:
    """Return the free space of the store's disk, and until when it lasts.

    Args:
        now: seconds since 1970.
    """
    if disk is None:
        return "a bucket: it has no such bound"
    if not disk or disk.free_bytes is None:
        return _UNKNOWN
    if not disk.free_bytes:
        return "none free: the hub accepts nothing until space is freed"
    free = f"{approximate_size(disk.free_bytes)} free"
    if (by_day := disk.bytes_per_day) is None:
        return f"{free}; until when it lasts is unknown for an hour after the start"
    over = f"of the last {approximate_duration(disk.seen_seconds)}"
    if (left := disk.seconds_left) is None:
        return f"{free}; it did not shrink in the time {over}".replace("in the time of", "in")
    until = (
        "for more than a year" if left > YEAR_S else f"until {datetime.fromtimestamp(now + left, UTC):%Y-%m-%d %H:%MZ}"
    )
    return f"{free}; it lasts {until} at the rate {over}: {approximate_size(by_day)} a day"


def _edge_row(edge: EdgeOfHub, now: float, here: Collection[str], *, all_known: bool) -> tuple[object, ...]:
    since, at = edge.connected_since, edge.connected_at
    link = ("none" if all_known else _UNKNOWN) if since is None else f"for {_ago(since, now)}"
    if at and at not in here:
        link += f" at {shown(at)}"
    alarms = [f"{each.reason} ({each.stream}): {each.why}" for each in edge.alarms]
    alarms += _pair(edge)
    if edge.retired:
        alarms.append("retired")
    return (
        f"{edge.tenant}/{edge.edge}",
        edge.logs[0] if edge.logs else "",
        "never" if edge.last_seen is None else f"{_ago(edge.last_seen, now)} ago",
        link,
        shown((edge.software or _UNKNOWN).removeprefix("weft ")),
        _outage_left(edge.disk or None, now, is_linked=since is not None),
        edge.missing_records,
        _UNKNOWN if edge.lost_records is UNSET else edge.lost_records,
        _UNKNOWN if edge.complete_up_to is None else f"{_ago(edge.complete_up_to, now)} ago",
        shown("; ".join(alarms)),
    )


def _outage_left(disk: DiskOfEdge | None, now: float, *, is_linked: bool) -> str:
    """Return the time for which an edge can take records without a hub, as it said; from then on without a link."""
    if disk is None:
        return _UNKNOWN
    left = disk.outage_seconds_left
    if left is None:
        return _UNKNOWN if disk.bytes_per_second is None else "no end"
    lasts = "none" if left == 0 else "over a year" if left > YEAR_S else approximate_duration(left)
    return lasts if is_linked else f"{lasts}, {_ago(disk.reported, now)} ago"


def show_streams(streams: Sequence[StreamOf], now: float, *, with_columns: bool = False) -> None:
    """Print a hub's streams, and of a few of them their columns.

    Args:
        now: seconds since 1970.
        with_columns: print the columns, however many streams there are.
    """
    columns = ("stream", "records", "records/s", "edges", "complete up to", "held back by", "table", "behind")
    print_table(columns, [_stream_row(each, now) for each in streams])
    click.echo()
    if with_columns or len(streams) <= COLUMNS_STREAMS_MAX:
        print_facts({each.stream: _columns(each) for each in streams})
    else:
        click.echo(f"{len(streams)} streams: --columns shows the columns of their tables")


def _stream_row(stream: StreamOf, now: float) -> tuple[object, ...]:
    rate, up_to = stream.records_per_second, stream.complete_up_to
    return (
        stream.stream,
        stream.records,
        _UNKNOWN if rate is None else f"{rate:.3g}" if rate < 1000 else f"{rate:,.0f}",
        stream.edges,
        _UNKNOWN if up_to is None else f"{_ago(up_to, now)} ago",
        shown("; ".join(_held_back(each) for each in stream.held_back_by or ())),
        *_table(stream.table),
    )


def _held_back(reason: HeldBackReason) -> str:
    return f"{reason.edge or 'the hub'} ({reason.reason})"


def _table(table: TableOfStream | None) -> tuple[object, ...]:
    if table is None:
        return _UNKNOWN, _UNKNOWN
    behind = "nothing" if not table.lag_records else counted(table.lag_records, "record")
    if table.is_stopped:
        behind += ", STOPPED: see `weft hub status`"
    if table.error:
        behind += f", {shown(table.error)}"
    size = ""
    if isinstance(table.bytes, int) and isinstance(table.files, int):
        size = f", {format_size(table.bytes)} in {counted(table.files, 'file')}"
    return f"{table.path} (version {table.version}{size})", behind


def _columns(stream: StreamOf) -> str:
    """Return the columns of a stream's table; before there is one, the topic levels that it will have."""
    table = stream.table
    if table is None:
        levels = ", ".join(stream.fields) or "none"
        return f"topic levels: {levels}; payload: {stream.payload} (the table is not known here)"
    return ", ".join(f"{each.name} {each.type}" for each in table.columns)


def _ago(moment: str, now: float) -> str:
    """Return the time that has passed since a moment of an answer."""
    try:
        then = datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return _UNKNOWN  # outside the calendar
    return approximate_duration(max(now - then, 0.0))


def cluster_log_position(facts: ClusterLogPosition) -> str:
    """Return the position of the cluster log that a hub process knows."""
    return f"entry {facts.entry}, as of {approximate_duration(facts.seen_seconds_ago or 0.0)} ago"


def show_quality(streams: Sequence[QualityOfNode]) -> None:
    """Print the quality rules in alarm and the vanished fields, if there are some."""
    for stream in quality_in_alarm(streams):
        name = f"{stream.tenant}/{stream.stream}"
        for rule in stream.rules:
            click.echo(f"QUALITY: {name}, rule {rule.name}: {rule.why}")
        for each in stream.vanished:
            click.echo(f"QUALITY: {name}, field {each.field} has no value in the last {each.rows:,} rows")


def show_issuer(facts: KeysOfIssuer | None) -> None:
    """Print what is wrong with the keys of the issuer of tokens at a hub process, if something is."""
    if facts is None or not facts.trouble:
        return
    kept = "its tokens are refused"
    if facts.keys:
        kept = f"its {counted(facts.keys, 'key')} may be used until {facts.kept_until}"
    age = approximate_duration(facts.failing_seconds)
    click.echo(f"JWT: the key set {shown(facts.key_set)} could not be read for {age}, {kept}: {shown(facts.trouble)}")


def show_certificate(facts: CertificateInForce | None, now: float) -> None:
    """Print that a hub's certificate ends soon, if it does.

    Args:
        now: seconds since 1970.
    """
    if facts is not None and certificate_ends(facts, now):
        rest = approximate_duration(seconds_until(facts.expires, now))
        click.echo(f"CERTIFICATE: {facts.certificate} ends in {rest}: replace the file")


def show_cluster_log(hub: str, facts: ClusterLogPosition, now: float) -> None:
    """Print what is wrong with the cluster log at a hub process, if something is, and which tokens end soon.

    Args:
        hub: the hub, as a command names it.
        now: seconds since 1970.
    """
    age = approximate_duration(facts.seen_seconds_ago or 0.0)
    if facts.trouble:
        click.echo(f"CLUSTER LOG: not read for {age}, entry {facts.entry} stays in force: {facts.trouble}")
    soon = [(shown(each.token), seconds_until(each.until, now)) for each in tokens_that_end(facts, now)]
    for token, rest_s in soon[:ENDS_NAMED]:
        click.echo(
            f"TOKENS: {token} ends in {approximate_duration(rest_s)}, and has no later secret: "
            f"`weft hub token rotate {hub} {token}`"
        )
    if len(soon) > ENDS_NAMED:
        click.echo(f"TOKENS: and {len(soon) - ENDS_NAMED} more end soon: `weft hub token list {hub}`")
    for each in facts.skipped:
        click.echo(f"CLUSTER LOG: entry {each.entry} is passed over: {each.why}")
    for fact in facts.unusable:
        click.echo(f"CLUSTER LOG: this release cannot use {fact.kind} {fact.name!r}: {fact.why}")


# Makers of a hub's tables, for a person.

TABLES_NAMED = 5
HUB = "hub"


def table_makers(tables: Sequence[TableOfNode]) -> list[tuple[str, str, str, int]]:
    """Return a row for each maker of tables: names of tables, the maker, its start, and its records that are not rows.

    Args:
        tables: as in ``/v1/status``.

    Returns:
        The rows; none if the hub's nodes make all tables.
    """
    groups: dict[tuple[str, str], list[TableOfNode]] = {}
    for table in tables:
        made_by = table.made_by
        maker = (made_by.name, made_by.since or "") if made_by else (HUB, "")
        groups.setdefault(maker, []).append(table)
    if groups.keys() <= {(HUB, "")}:
        return []
    return [(_named(group), *maker, sum(each.lag_records for each in group)) for maker, group in sorted(groups.items())]


def _named(tables: Sequence[TableOfNode]) -> str:
    names = [f"{each.tenant}/{each.stream}" for each in tables[:TABLES_NAMED]]
    more = len(tables) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def print_stopped(config_file: str, table: TableOfNode, stopped: StoppedOffsets) -> None:
    """Print the records that stop a table, and the command that skips them."""
    click.echo(
        f"STOPPED: the table of {table.tenant}/{table.stream} waits behind offsets {stopped.first} to "
        f"{stopped.end - 1} of shard {stopped.shard}: {stopped.reason}"
    )
    click.echo(
        f"  To skip them: weft hub skip {config_file} {table.stream} --tenant {table.tenant} "
        f"--shard {stopped.shard} --from {stopped.first} --to {stopped.end} --reason '...'"
    )
