"""Number of processes that share a hub node's shards, and the address of each."""

from __future__ import annotations

import os

from weft.config.errors import Finding
from weft.config.models import HubConfig
from weft.config.units import PORT_MAX, Address, parse_bind


def cores() -> int:
    """Return the number of cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def process_count(config: HubConfig, asked: int | None, cores: int, shards: int) -> int:
    """Return the number of processes: the requested one, else the setting, else one per core, and not more than there
    are URLs for edges, as a split adds shards and no URL. Never more than shards.

    With port 0, each process would get any free port, which the others could not know: then there is one process.

    Args:
        shards: of the store, or of the configuration for a new one.
    """
    if parse_bind(config.listen).port == 0:
        return 1
    return min(asked or config.processes or min(cores, len(config.advertise or ()) or cores), shards)


def addresses(config: HubConfig, processes: int) -> list[Address]:
    """Return the address of each process: the port of ``listen`` and the following ones."""
    host, port = parse_bind(config.listen)
    return [Address(host, port + number) for number in range(processes)]


def check_processes(config: HubConfig, processes: int) -> list[Finding]:
    """Return the findings that keep this many processes from running."""
    findings = []
    last = addresses(config, processes)[-1]
    if last.port > PORT_MAX:
        findings.append(
            Finding(
                ("listen",),
                f"{processes} processes need the ports up to {last.port}, the last is {PORT_MAX}. Choose a lower port, "
                "or fewer processes",
            )
        )
    if config.advertise is not None and len(config.advertise) != processes:
        message = f"expected a URL for each of the {processes} processes, got {len(config.advertise)}"
        findings.append(Finding(("advertise",), f"{message}. Add or remove some, or set processes"))
    return findings
