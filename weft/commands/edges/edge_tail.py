"""``weft edge tail``: the records of a node's log as they become durable."""

from __future__ import annotations

import sys
import time

import click
import msgspec

from weft.commands.common import json_option
from weft.commands.node_log import NodeLog, parse_since, readable, target_argument
from weft.output import STOPPED_EXIT_CODE, Refused, harmless

LAST_DEFAULT = 10


@click.command("tail")
@target_argument
@click.argument("streams", metavar="[STREAM]...", nargs=-1)
@click.option("--last", type=click.IntRange(0, 1_000_000), help="Start with the newest N records.  [default: 10]")
@click.option("--from", "since", metavar="TIME", help="Start at a time: -10m (ago), or 2026-11-20T07:00 (UTC).")
@click.option("--seq", type=click.IntRange(0), help="Start at a sequence number of a single STREAM.")
@click.option("--filter", "topic_filter", metavar="FILTER", help="Only topics that match an MQTT filter: plant/+/m1/#.")
@click.option("-f", "--follow", is_flag=True, help="Show new records until Ctrl-C, also across restarts of the node.")
@json_option
def edge_tail(
    target: str,
    streams: tuple[str, ...],
    last: int | None,
    since: str | None,
    seq: int | None,
    *,
    topic_filter: str | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Show the records of a node's log, one per line: time, stream, sequence number, topic, payload, headers.
    Records that a function of the node made end with <NAME@VERSION#HASH> of it.

    Name the node by its CONFIG, or by its data_dir. The node may run or not: its files are only read, without locks,
    and it is not slowed down. Records are shown once they are durable. With CONFIG, the status page of a running node
    reports the newest durable record. With DIR, records are shown one second later.

    Payloads that are not text are shown as hex:..., in JSON as payload_base64. Lines with -- report records that can
    never come (gap notices), damaged files, and records that were deleted before they were shown.

    \b
    weft edge tail edge.yaml                          the newest 10 records of all streams
    weft edge tail edge.yaml telemetry -f             and new records
    weft edge tail edge.yaml --from -10m --filter 'plant/press/#'
    weft edge tail /var/lib/weft telemetry --seq 0 --json
    """
    from weft.edge_node.inspect.tail import Item, newest_records, sleep
    from weft.edge_node.inspect.tail import follow as follow_log
    from weft.edge_node.inspect.tail_start import Start
    from weft.edge_node.inspect.view.records import Choice
    from weft.protocols.topics import InvalidTopic, check_filter
    from weft.text.record import facts, line

    if sum(option is not None for option in (last, since, seq)) > 1:
        raise Refused("--last, --from and --seq exclude each other: choose one")
    try:
        check_filter(topic_filter) if topic_filter is not None else None
    except InvalidTopic as error:
        raise Refused(f"--filter: {error}") from None
    found = NodeLog.of(target)
    with readable(found):
        wants = found.wanted(streams)
        if seq is not None and len(streams) != 1:
            raise Refused("--seq needs exactly one STREAM")
        choice = Choice(topic_filter, None if since is None else parse_since("--from", since, time.time_ns()), seq or 0)
        is_counted = since is None and seq is None
        start = Start(choice, (LAST_DEFAULT if last is None else last) if is_counted else None)

        def wait(seconds: float) -> bool:
            sys.stdout.flush()
            return sleep(seconds)

        def text(item: Item) -> str:
            return harmless(msgspec.json.encode(facts(item)).decode() if as_json else line(item))

        _say_clock(found)
        is_empty = True
        try:
            for item in (follow_log if follow else newest_records)(found.log(), wants, start, found.durability(), wait):
                is_empty = False
                sys.stdout.write(text(item) + "\n")
        except KeyboardInterrupt:
            if not follow:
                raise
            sys.stdout.flush()
            raise SystemExit(STOPPED_EXIT_CODE) from None  # Ctrl-C is its only end
        sys.stdout.flush()
    if is_empty and not as_json:
        click.echo("(no records)", err=True)


def _say_clock(node: NodeLog) -> None:
    if differs := node.clock_trouble():
        click.echo(f"-- the clock of this node is {differs}: record times are the node's own", err=True)
