"""``weft edge check``, ``reload``, ``status`` and ``doctor``: a node, its configuration and its machine."""

from __future__ import annotations

import logging
import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from weft.commands.acts import ordering
from weft.commands.common import CheckAnswer, config_argument, json_option, located_edge, print_verdicts, until
from weft.commands.node_log import NodeLog, readable, target_argument
from weft.config.errors import Finding
from weft.config.release import SOFTWARE
from weft.edge_node.check.rules import notes
from weft.edge_node.control.client import ControlFailed, ask_reload
from weft.edge_node.inspect.summary import forecast, summarise
from weft.edge_node.inspect.view import NoLog, is_locked
from weft.edge_node.streams import STATE_STREAMS
from weft.output import FAILURE_EXIT_CODE, Failed, counted, print_json
from weft.protocols.lane import format_log_id
from weft.storage.segment_log.index import lost_by_reason
from weft.text.edge_status import show_files, show_running

if TYPE_CHECKING:
    from weft.edge_node.inspect.summary import LogSummary


@click.command()
@config_argument
@json_option
def check(config_file: str, as_json: bool) -> int:
    """Check CONFIG and what it names on this machine: files, folders, disk, ports. The command starts and changes
    nothing.

    An error stops a node from running: exit status 2. Warnings go to standard error and leave exit status 0. Run it as
    the node's user, whose access rights may differ from yours. While the node runs, its ports are not checked.
    """
    from weft.edge_node import preflight
    from weft.edge_node.inspect.maintenance import owner_of, wrong_name

    answer = CheckAnswer(config_file, as_json)
    loaded = answer.load(located_edge)
    config, found = loaded.config, preflight.look(loaded.config, loaded.lines, datetime.now(UTC))
    owner = owner_of(config.data_dir)
    renamed = None if owner is None else wrong_name(config, owner, loaded.file)
    taken, untried = preflight.ports(config)
    doubtful = [*found.doubtful, *untried, *(Finding((), note) for note in notes(config))]
    streams = {name: list(stream.from_ or stream.from_stream) for name, stream in config.streams.items()}
    links = {name: list(link.to) for name, link in config.links.items()}
    sources = {name: source.urls for name, source in config.sources.items()}
    sizes = f"{counted(len(streams), 'stream')}, {counted(len(links), 'link')}"
    if sources:
        sizes += f", {counted(len(sources), 'source')}"
    return answer.give(
        loaded,
        errors=[*([renamed] if renamed else []), *found.needed, *found.unfit, *map(loaded.with_default, taken)],
        warnings=doubtful,
        facts={
            "node": config.node,
            "tenant": config.tenant,
            "streams": streams,
            "links": links,
            "sources": sources,
            "certificates": found.certificates,
        },
        summary=f"node {config.node}, {sizes}{until(found.certificates)}",
    )


@click.command()
@target_argument
@json_option
def reload(target: str, *, as_json: bool) -> None:
    """Reload the configuration of a running node, named by its CONFIG or its data_dir.

    Changed streams, functions, links and sources are in force when the command ends. If the file is not valid, or the
    node cannot apply it, the node keeps its settings: exit status 1. The command lists changed settings that need a
    restart. SIGHUP does the same, and also reloads users, access rules and certificates.

    \b
    weft edge reload edge.yaml
    """
    directory = NodeLog.of(target).directory
    try:
        with ordering(directory, "the configuration"):
            reply = ask_reload(directory)
    except ControlFailed as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json(
            {"version": reply.version, "digest": reply.digest, "applied": reply.applied, "restart": reply.restart}
        )
        return
    click.echo(f"configuration {reply.version} ({reply.digest}): {', '.join(reply.applied) or 'nothing has changed'}")
    if reply.restart:
        click.echo(f"need a restart: {', '.join(reply.restart)}")


# ``weft edge status``: show the state of a node, from the running node or from its files.


@click.command("status")
@target_argument
@json_option
def edge_status(target: str, *, as_json: bool) -> int:
    """Show the state of a node: streams, links, disk, and how many hours of outage it survives.

    Name the node by its CONFIG, or by its data_dir. If the node does not run or does not answer, the command reads its
    files. It then shows the contents of the log, and any torn, damaged or lost part that the next start will find. It
    also estimates how long the rest of the disk budget would last in an outage, at the last known rate. Nothing is
    changed. Exit status 0 if the node runs, 1 if it does not.

    \b
    weft edge status edge.yaml
    weft edge status /var/lib/weft --json
    """
    found = NodeLog.of(target)
    try:
        facts = {"running": True, **found.status()}
    except Failed as error:
        facts = _facts_of_files(found, target, str(error.message))
    if as_json:
        print_json(facts)
    elif "started" in facts:
        show_running(facts, time.time())
    else:
        show_files(facts)
    return 0 if facts["running"] else FAILURE_EXIT_CODE


def _facts_of_files(found: NodeLog, named: str, why_not_asked: str) -> dict[str, Any]:
    """Return the facts in the files; ``running`` is None if the system does not report whether a node runs."""
    from weft.edge_node.inspect.maintenance import owner_of, wrong_name

    with readable(found):
        try:
            summary = summarise(found.log())
        except NoLog as error:
            raise Failed(f"{error}. It was not asked either: {why_not_asked}" if found.config else str(error)) from None
        running = is_locked(found.directory)
        next_start = None if running else _next_start(found.directory)
    owner = owner_of(found.directory)
    finding = wrong_name(found.config, owner, named) if found.config is not None and owner is not None else None
    lost = sum(gap.end - gap.first for stream in summary.streams.values() for gap in stream.gaps)
    return {
        "running": running,
        "not_asked": why_not_asked,
        "node": found.config.node if found.config else None,
        "tenant": found.config.tenant if found.config else None,
        "owner": None if owner is None else {"tenant": owner.tenant, "node": owner.edge},
        "wrong_name": None if finding is None else finding.message,
        "data_dir": os.path.abspath(found.directory),
        "log_id": None if summary.log_id is None else format_log_id(summary.log_id),
        "disk": _disk(found, summary),
        "torn_bytes": summary.torn_bytes,
        "records_lost": lost,
        "next_start": next_start,
        "damage": [{"file": each.file, "offset": each.offset, "end": each.end} for each in summary.damage],
        "streams": {
            name: {
                "next_seq": stream.next_seq,
                "held": stream.held.count(),
                "gaps": len(stream.gaps),
                "records_lost": sum(gap.end - gap.first for gap in stream.gaps),
                "lost": lost_by_reason(stream.gaps),
                "oldest": _seconds(stream.first_time),
                "newest": _seconds(stream.last_time),
            }
            for name, stream in summary.streams.items()
            if name not in STATE_STREAMS
        },
    }


def _next_start(directory: str) -> dict[str, Any] | None:
    """Return the findings that recovery will make; None when a node started meanwhile and changed the files."""

    # The facts below hold everything that recovery would log.
    logging.getLogger("weft.storage").addHandler(logging.NullHandler())
    try:
        coming = forecast(directory)
    except FileNotFoundError:
        return None
    return {
        "torn_bytes": coming.torn_bytes,
        "unreadable_bytes": coming.unreadable_bytes,
        "records_lost": coming.records_lost,
        "lost": [{"stream": stream, "first": gap.first, "end": gap.end} for stream, gap in coming.lost],
        "damaged_files": list(coming.damaged),
        "strange_files": list(coming.strange),
    }


def _disk(found: NodeLog, summary: LogSummary) -> dict[str, Any]:
    """Return sizes in bytes. The free room is a lower bound: only the running node knows the records that hubs
    have, which may be deleted."""
    stat = os.statvfs(found.directory)
    free = stat.f_bavail * stat.f_frsize
    budget = found.config.disk.budget_bytes if found.config else None
    rate = summary.bytes_per_second()
    left = None
    if budget is not None and rate:
        left = max(0, min(budget - summary.bytes, free)) / rate
    times = [(stream.first_time, stream.last_time) for stream in summary.streams.values()]
    return {
        "bytes": summary.bytes,
        "budget_bytes": budget,
        "free_bytes": free,
        "segments": summary.segments,
        "oldest": _seconds(min((first for first, _ in times if first is not None), default=None)),
        "newest": _seconds(max((last for _, last in times if last is not None), default=None)),
        "bytes_per_second": rate,
        "outage_seconds_left": left,
    }


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9


# ``weft edge doctor``: what this machine, its disk, its clock and the way to the hubs are like.


@click.command("doctor")
@config_argument
@json_option
def edge_doctor(config_file: str, *, as_json: bool) -> int:
    """Examine the machine of CONFIG: clock, disk, files, ports, certificates, and the network to each hub and source.

    Each line is `good`, `unknown` with the reason, or `act` with what to do. The command makes the checks of
    `weft edge check`, measures the disk with at most 20 small syncs, and calls each hub. It asks for /readyz without a
    token, and a hub that is ready for /v1/whoami with the link's token. It connects to sources, and asks them for
    nothing. It is harmless beside the running node, whose links it asks for. Run it as the node's user. Exit status 1
    if something is to be done.

    \b
    weft edge doctor edge.yaml
    """
    from weft.edge_node.doctor import examine

    loaded = located_edge(config_file)
    found = examine(loaded.config, loaded.lines, time.monotonic, time.time, software=SOFTWARE)
    return print_verdicts(config_file, found, as_json=as_json)
