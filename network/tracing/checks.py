"""Checks of the settings of traces against this machine. Nothing is sent to the collector."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from weft.config.errors import Finding, KeyPath
from weft.config.intake.tracing import Collector
from weft.config.machine import too_readable, why_unreadable
from weft.config.units import Address
from weft.network.tracing.settings import MISSING, is_installed, read_headers


class TracingFindings(NamedTuple):
    """Findings, by their effect: a node takes and keeps messages in any case."""

    unfit: list[Finding]
    """Findings with which nothing is exported."""
    doubtful: list[Finding]


def look_at(collector: Collector | None) -> TracingFindings:
    """Open what the section ``tracing`` names. Blocks."""
    found = TracingFindings([], [])
    if collector is None:
        return found
    section: KeyPath = ("tracing",)
    if not is_installed():
        found.unfit.append(Finding(section, MISSING))
    if collector.ca_file is not None:
        try:
            with open(collector.ca_file, "rb"):
                pass
        except OSError as error:
            found.unfit.append(Finding((*section, "ca_file"), f"{collector.ca_file}: {why_unreadable(error)}"))
    file, place = collector.headers_file, (*section, "headers_file")
    if file is None:
        return found
    try:
        read_headers(file)
    except OSError as error:
        found.unfit.append(Finding(place, f"{file}: {why_unreadable(error)}"))
    except ValueError as error:
        found.unfit.append(Finding(place, str(error)))
    else:
        if problem := too_readable(file):
            found.doubtful.append(Finding(place, problem))
    url = urlsplit(collector.endpoint)
    if url.scheme == "http" and not Address(url.hostname or "", 0).is_loopback:
        message = f"the headers of {file} cross the network in clear text to {collector.endpoint}. Use https"
        found.doubtful.append(Finding((*section, "endpoint"), message))
    return found
