"""Lines of a doctor, that of an edge or of a hub: good, unknown, or what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from weft.config.errors import Finding, format_path


class Standing(StrEnum):
    """State of what a line is about."""

    GOOD = "good"
    UNKNOWN = "unknown"
    """It could not be found out here, and the line says why."""
    ACT = "act"
    """The line says what to do."""


class Verdict(NamedTuple):
    """One line."""

    check: str
    """Subject, such as ``disk speed`` or ``link cloud``."""
    state: Standing
    says: str


def good(check: str, says: str) -> Verdict:
    """Return a line about what is as it should be."""
    return Verdict(check, Standing.GOOD, says)


def unknown(check: str, says: str) -> Verdict:
    """Return a line about what could not be found out, with the reason."""
    return Verdict(check, Standing.UNKNOWN, says)


def act(check: str, says: str) -> Verdict:
    """Return a line about what is wrong, with the advice."""
    return Verdict(check, Standing.ACT, says)


def is_well(verdicts: Sequence[Verdict]) -> bool:
    """Return whether there is nothing to do. What is unknown is nothing to do."""
    return all(each.state is not Standing.ACT for each in verdicts)


def of_settings(findings: Sequence[Finding], certificates: Mapping[str, str]) -> Iterator[Verdict]:
    """Yield the lines about a configuration, and about certificates.

    Args:
        certificates: last day of each certificate that is shown to others, by its file.
    """
    of_certificates = list(filter(_is_of_certificate, findings))
    others = [each for each in findings if each not in of_certificates]
    for each in others:
        yield act("configuration", said(each))
    if not others:
        yield good("configuration", "it fits this machine")
    for each in of_certificates:
        yield act("certificates", said(each))
    doubted = " ".join(each.message for each in of_certificates)
    for file, last_day in certificates.items():
        if file not in doubted:
            yield good("certificates", f"{file} is valid until {last_day}")


def of_ports(taken: Sequence[Finding], untried: Sequence[Finding]) -> Iterator[Verdict]:
    """Yield the lines about ports that were bound for a moment."""
    for each in taken:
        yield act("ports", said(each))
    for each in untried:
        yield unknown("ports", each.message)
    if not taken and not untried:
        yield good("ports", "all are free")


def said(finding: Finding) -> str:
    """Return a finding as a line says it."""
    path = format_path(finding.path)
    return f"{path}: {finding.message}" if path else finding.message


def _is_of_certificate(finding: Finding) -> bool:
    return "tls" in finding.path or finding.path[-1:] in (("certificate",), ("key",), ("ca_file",))
