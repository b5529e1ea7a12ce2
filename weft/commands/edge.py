"""``weft edge``: run an edge node, check and reload its configuration.

The node's process loads this module and keeps it, so its head imports only what a node needs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from weft.commands.common import cannot_be_done, config_argument, located, located_edge, log_level_option
from weft.commands.edge_overlay import overlay_of
from weft.config.errors import Finding, format_path
from weft.config.release import SOFTWARE
from weft.edge_node import preflight
from weft.edge_node.check.data_directory import prepare
from weft.edge_node.check.rules import notes
from weft.edge_node.node import EdgeNode
from weft.edge_node.reconfigure import ConfigFile
from weft.output import Failed, Refused
from weft.service.serving import (
    Signals,
    collect_garbage_rarely,
    log_to_stderr,
    read_only_mount,
    run_until_stopped,
    sentence,
)
from weft.storage.segment_log import WrongOwner

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weft.config.load import Loaded
    from weft.config.models import EdgeConfig
    from weft.config.units import Address, UnixSocket
    from weft.protocols.lane import NodeName


_PROTOCOLS = ("mqtt", "mqtts", "ws", "wss", "amqp", "amqps", "http", "https")


@click.command()
@config_argument
@log_level_option
def run(config_file: str, log_level: str) -> None:
    """Run the node of CONFIG until SIGTERM or SIGINT."""
    loaded = located_edge(config_file)
    log_to_stderr(log_level)
    logging.getLogger("weft").info("%s starts with %s, process %d", SOFTWARE, config_file, os.getpid())

    _prepare_key(loaded)
    overlay = overlay_of(config_file, loaded)
    loaded = overlay.begin()
    config = loaded.config

    found = preflight.look(config, loaded.lines, datetime.now(UTC))
    if found.needed:
        raise cannot_be_done(loaded, found.needed)
    for finding in (*found.unfit, *found.doubtful):
        logging.getLogger("weft").warning("%s: %s", format_path(finding.path), finding.message)
    for note in notes(config):
        logging.getLogger("weft").warning("%s", note)

    file = ConfigFile(config_file, overlay.read_again)

    async def serve(signals: Signals) -> None:
        runs = config
        while True:
            node = EdgeNode(runs, SOFTWARE, file, overlay)
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
    try:
        prepare(loaded.config, time.time_ns())
    except OSError as error:
        raise Refused(str(loaded.refuse([Finding(("encryption",), str(error))]))) from None


@contextmanager
def _naming_the_disk(directory: str) -> Iterator[None]:
    """End with the name of the node's disk when it became read-only, whichever error that caused first."""
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
