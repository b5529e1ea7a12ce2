"""The doctor of an edge: what is looked at, measured and called, line by line. Harmless beside the running node."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Container, Iterator, Sequence
from datetime import UTC, datetime

from weft.config.errors import Finding, KeyPath, format_path
from weft.config.models import EdgeConfig
from weft.config.units import approximate_size, format_size
from weft.edge_node.control.client import ControlFailed, LinksRequest, ask_links
from weft.edge_node.inspect.view import is_locked
from weft.edge_node.preflight.disk_speed import disk_speed
from weft.edge_node.preflight.findings import EdgeFindings, look, ports
from weft.edge_node.preflight.hub_answers import HubCalls
from weft.edge_node.preflight.open_files import open_files
from weft.edge_node.preflight.verdict import Standing, Verdict, act, good, unknown
from weft.storage.kernel_clock import synchronised_reader

_BUDGET: KeyPath = ("disk", "budget")


def examine(
    config: EdgeConfig, written: Container[KeyPath], clock: Callable[[], float], wall_clock: Callable[[], float]
) -> Iterator[Verdict]:
    """Yield the lines, each when it is known. Blocks; each step has a bound of some seconds.

    Args:
        written: settings in the file.
        clock: seconds of a clock that is never set.
        wall_clock: seconds since 1970.
    """
    is_running = bool(is_locked(config.data_dir))
    found = look(config, written, datetime.fromtimestamp(wall_clock(), UTC))
    yield from _settings(found)
    yield from _certificates(found)
    yield _clock()
    yield _space(config, found)
    yield disk_speed(config.data_dir, clock)
    yield open_files(config, is_running=is_running)
    yield from _ports(config)
    if is_running:
        yield from _links_of_node(config)
    for name, link in config.links.items():
        yield from HubCalls(name, link, clock, wall_clock).verdicts()


def is_well(verdicts: Sequence[Verdict]) -> bool:
    """Return whether there is nothing to do. What is unknown is nothing to do."""
    return all(each.state is not Standing.ACT for each in verdicts)


def _settings(found: EdgeFindings) -> Iterator[Verdict]:
    others = [each for each in _all(found) if each.path != _BUDGET and not _is_of_certificate(each)]
    for each in others:
        yield act("configuration", _said(each))
    if not others:
        yield good("configuration", "it fits this machine")


def _certificates(found: EdgeFindings) -> Iterator[Verdict]:
    wrong = [each for each in _all(found) if _is_of_certificate(each)]
    for each in wrong:
        yield act("certificates", _said(each))
    doubted = " ".join(each.message for each in wrong)
    for file, last_day in found.certificates.items():
        if file not in doubted:
            yield good("certificates", f"{file} is valid until {last_day}")


def _is_of_certificate(finding: Finding) -> bool:
    return "tls" in finding.path or finding.path[-1:] in (("certificate",), ("key",), ("ca_file",))


def _clock() -> Verdict:
    if synchronised_reader()():
        return good("clock", "a time source keeps it right")
    return act("clock", "no time source keeps it right. Run a time service: `timedatectl set-ntp true`")


def _space(config: EdgeConfig, found: EdgeFindings) -> Verdict:
    for each in _all(found):
        if each.path == _BUDGET:
            return act("disk space", each.message)
    if not os.path.isdir(config.data_dir):
        return unknown("disk space", f"{config.data_dir} is not there yet. The first start of the node creates it")
    free = approximate_size(shutil.disk_usage(config.data_dir).free)
    return good("disk space", f"{free} is free beside the log; the budget is {format_size(config.disk.budget_bytes)}")


def _ports(config: EdgeConfig) -> Iterator[Verdict]:
    taken, untried = ports(config)
    for each in taken:
        yield act("ports", _said(each))
    for each in untried:
        yield unknown("ports", each.message)
    if not taken and not untried:
        yield good("ports", "all are free")


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


def _said(finding: Finding) -> str:
    path = format_path(finding.path)
    return f"{path}: {finding.message}" if path else finding.message
