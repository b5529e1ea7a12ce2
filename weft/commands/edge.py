"""``weft edge``: run an edge node, check its configuration, show its state, inspect its log."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from weft.commands.acts import ordering
from weft.commands.common import (
    CheckAnswer,
    LaterGroup,
    cannot_be_done,
    config_argument,
    json_option,
    located,
    located_edge,
    log_level_option,
    print_verdicts,
    until,
)
from weft.commands.node_log import NodeLog, readable, target_argument
from weft.config.errors import Finding, format_path
from weft.edge_node.check.rules import notes
from weft.output import FAILURE_EXIT_CODE, Failed, Refused, counted, print_json
from weft.service.serving import log_to_stderr

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weft.config.load import Loaded
    from weft.config.models import EdgeConfig
    from weft.config.units import Address, UnixSocket
    from weft.edge_node.inspect.summary import LogSummary
    from weft.protocols.lane import NodeName


_PROTOCOLS = ("mqtt", "mqtts", "ws", "wss", "amqp", "amqps", "http", "https")


class _EdgeCommands(LaterGroup):
    later = {
        "config": "weft.commands.edge_overlay:edge_config",
        "doctor": "weft.commands.edge:edge_doctor",
        "import": "weft.commands.edge_log:edge_import",
        "init": "weft.commands.edge_setup:edge_init",
        "pair": "weft.commands.edge_setup:edge_pair",
        "query": "weft.commands.edge_log:edge_query",
        "rename": "weft.commands.edge_setup:edge_rename",
        "replay": "weft.commands.edge_functions:edge_replay",
        "status": "weft.commands.edge:edge_status",
        "support-bundle": "weft.commands.support_bundle:edge_support_bundle",
        "tail": "weft.commands.edge_log:edge_tail",
        "test-function": "weft.commands.edge_functions:edge_test_function",
    }


@click.group("edge", cls=_EdgeCommands)
def edge_group() -> None:
    """Run and inspect an edge node, which takes messages from devices, keeps them on disk and sends them to hubs."""


@edge_group.command()
@config_argument
@log_level_option
def run(config_file: str, log_level: str) -> None:
    """Run the node of CONFIG until SIGTERM or SIGINT."""
    from weft.service.serving import Signals, collect_garbage_rarely, run_until_stopped, software

    loaded = located_edge(config_file)
    log_to_stderr(log_level)
    logging.getLogger("weft").info("%s starts with %s, process %d", software(), config_file, os.getpid())
    from weft.commands.edge_overlay import overlay_of

    _prepare_key(loaded)
    overlay = overlay_of(config_file, loaded)
    loaded = overlay.begin()
    config = loaded.config
    from weft.edge_node import preflight

    found = preflight.look(config, loaded.lines, datetime.now(UTC))
    if found.needed:
        raise cannot_be_done(loaded, found.needed)
    for finding in (*found.unfit, *found.doubtful):
        logging.getLogger("weft").warning("%s: %s", format_path(finding.path), finding.message)
    for note in notes(config):
        logging.getLogger("weft").warning("%s", note)
    from weft.edge_node.node import EdgeNode
    from weft.edge_node.reconfigure import ConfigFile
    from weft.storage.segment_log import WrongOwner

    file = ConfigFile(config_file, overlay.read_again)

    async def serve(signals: Signals) -> None:
        runs = config
        while True:
            node = EdgeNode(runs, software(), file, overlay)
            try:
                await node.start(signals.stop)
            except Exception as error:
                if not overlay.failed_start(error):
                    raise
                runs = (await asyncio.to_thread(overlay.begin)).config
                continue
            collect_garbage_rarely()
            try:
                click.echo(f"{runs.tenant}/{runs.node} is ready: {_addresses(node.addresses, node.http)}")
                async with signals.reloading(node.reload):
                    await node.run(signals.stop)
            finally:
                await node.close()
            if signals.stop.is_set():
                return
            logging.getLogger("weft").info("the node starts again with another configuration of its hub")
            runs = (await asyncio.to_thread(overlay.begin)).config

    try:
        with located(loaded, "data_dir"), _naming_the_disk(config.data_dir):
            run_until_stopped(serve)
    except WrongOwner as error:
        # Exit status 2, as for any other mistake in the configuration: a restart does not mend it.
        renamed = _wrong_name(loaded, error.owner)
        if renamed is None:
            raise
        raise Refused(str(loaded.refuse([renamed]))) from None


def _prepare_key(loaded: Loaded[EdgeConfig]) -> None:
    """Open the key ring before the hub's settings are read from the folder."""
    from weft.edge_node.check.data_directory import prepare

    try:
        prepare(loaded.config, time.time_ns())
    except OSError as error:
        raise Refused(str(loaded.refuse([Finding(("encryption",), str(error))]))) from None


@contextmanager
def _naming_the_disk(directory: str) -> Iterator[None]:
    """End with the name of the node's disk when it became read-only, whichever error that caused first."""
    from weft.service.serving import read_only_mount, sentence
    from weft.storage.segment_log import WrongOwner

    try:
        yield
    except (WrongOwner, click.ClickException, Refused):
        # These errors name their cause already.
        raise
    except Exception as error:
        mount = read_only_mount(directory)
        if mount is None:
            raise
        raise Failed(sentence(directory, mount, error)) from error


def _wrong_name(loaded: Loaded[EdgeConfig], owner: NodeName | None) -> Finding | None:
    """Return the finding for a configuration whose node name differs from the log's in its data_dir."""
    from weft.edge_node.inspect.maintenance import wrong_name

    return wrong_name(loaded.config, owner, loaded.file) if owner is not None else None


def _addresses(listeners: Mapping[str, Address | UnixSocket], http: Address | None) -> str:
    known = [f"{name.upper() if name in _PROTOCOLS else name} at {address}" for name, address in listeners.items()]
    if http is not None:
        known.append(f"status at http://{http}/")
    return ", ".join(known) or "no listeners"


@edge_group.command()
@config_argument
@json_option
def check(config_file: str, as_json: bool) -> int:
    """Check CONFIG and what it names on this machine: files, folders, disk, ports. The command starts and changes
    nothing.

    An error stops a node from running: exit status 2. Warnings go to standard error and leave exit status 0. Run it as
    the node's user, whose access rights may differ from yours. While the node runs, its ports are not checked.
    """
    from weft.edge_node import preflight
    from weft.edge_node.inspect.maintenance import owner_of

    answer = CheckAnswer(config_file, as_json)
    loaded = answer.load(located_edge)
    config, found = loaded.config, preflight.look(loaded.config, loaded.lines, datetime.now(UTC))
    renamed = _wrong_name(loaded, owner_of(config.data_dir))
    taken, untried = preflight.ports(config)
    doubtful = [*found.doubtful, *untried, *(Finding((), note) for note in notes(config))]
    streams = {name: list(stream.from_ or stream.from_stream) for name, stream in config.streams.items()}
    links = {name: list(link.to) for name, link in config.links.items()}
    sources = {name: list(source.settings.url) for name, source in config.sources.items()}
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


@edge_group.command()
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
    from weft.edge_node.control.client import ControlFailed, ask_reload

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
    from weft.text.status import show_files, show_running

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
    from weft.edge_node.inspect.summary import summarise
    from weft.edge_node.inspect.view import NoLog, is_locked
    from weft.edge_node.streams import STATE_STREAMS
    from weft.protocols.lane import format_log_id
    from weft.storage.segment_log.index import lost_by_reason

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
    from weft.edge_node.inspect.summary import forecast

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
    """Examine the machine of CONFIG: clock, disk, files, ports, certificates, and the way to each hub.

    Each line is `good`, `unknown` with the reason, or `act` with what to do. The command does what `weft edge check`
    does, measures the disk with at most 20 small syncs, and calls each hub. It asks for /readyz without a token, and a
    hub that is ready for /v1/whoami with the link's token. It is harmless beside the running node, whose links it asks
    for. Run it as the node's user. Exit status 1 if something is to be done.

    \b
    weft edge doctor edge.yaml
    """
    from weft.edge_node.doctor import examine
    from weft.service.serving import software

    loaded = located_edge(config_file)
    found = examine(loaded.config, loaded.lines, time.monotonic, time.time, software=software())
    return print_verdicts(config_file, found, as_json=as_json)
