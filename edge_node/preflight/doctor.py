"""The doctor of an edge: what is looked at, measured and called, line by line. Harmless beside the running node."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Container, Iterator
from datetime import UTC, datetime

from weft.config.errors import Finding, KeyPath
from weft.config.models import EdgeConfig
from weft.config.units import approximate_size, format_size
from weft.config.verdict import Verdict, act, good, of_ports, of_settings, unknown
from weft.edge_node.control.client import ControlFailed, LinksRequest, ask_links
from weft.edge_node.inspect.view import is_locked
from weft.edge_node.preflight.findings import EdgeFindings, look, ports
from weft.edge_node.preflight.hub_answers import HubCalls
from weft.edge_node.preflight.open_files import open_files
from weft.protocols.lane import NodeName
from weft.storage.disk_speed import disk_speed
from weft.storage.disk_wear import disk_wear
from weft.storage.kernel_clock import clock_verdict

_BUDGET: KeyPath = ("disk", "budget")


def examine(
    config: EdgeConfig, written: Container[KeyPath], clock: Callable[[], float], wall_clock: Callable[[], float],
    *, software: str,
) -> Iterator[Verdict]:  # fmt: skip
    """Yield the lines, each when it is known. Blocks; each step has a bound of some seconds.

    Args:
        written: settings in the file.
        clock: seconds of a clock that is never set.
        wall_clock: seconds since 1970.
        software: release that the node is, or will be when it starts.
    """
    is_running = bool(is_locked(config.data_dir))
    found = look(config, written, datetime.fromtimestamp(wall_clock(), UTC))
    yield from of_settings([each for each in _all(found) if each.path != _BUDGET], found.certificates)
    yield clock_verdict()
    yield _space(config, found)
    yield disk_speed(config.data_dir, clock)
    yield disk_wear(config.data_dir)
    yield open_files(config, is_running=is_running)
    yield from of_ports(*ports(config))
    if is_running:
        yield from _links_of_node(config)
    for name, link in config.links.items():
        node = NodeName(config.tenant, config.node)
        yield from HubCalls(name, link, clock, wall_clock, node=node, software=software).verdicts()


def _space(config: EdgeConfig, found: EdgeFindings) -> Verdict:
    for each in _all(found):
        if each.path == _BUDGET:
            return act("disk space", each.message)
    if not os.path.isdir(config.data_dir):
        return unknown("disk space", f"{config.data_dir} is not there yet. The first start of the node creates it")
    free = approximate_size(shutil.disk_usage(config.data_dir).free)
    return good("disk space", f"{free} is free beside the log; the budget is {format_size(config.disk.budget_bytes)}")


def _links_of_node(config: EdgeConfig) -> Iterator[Verdict]:
    """Yield what the running node says of its links, which also knows whether the hub takes its token."""
    try:
        links = ask_links(config.data_dir, LinksRequest("status"))
    except ControlFailed as error:
        yield unknown("links of the node", str(error))
        return
    for name, facts in links.items():
        if facts.get("state") == "connected":
            yield good(f"link {name}", f"the node is connected to {facts.get('url')}")
        else:
            yield act(f"link {name}", f"the node is not connected: {facts.get('last_error') or facts.get('state')}")


def _all(found: EdgeFindings) -> list[Finding]:
    return [*found.needed, *found.unfit, *found.doubtful]
