"""Lines of the doctor: good, unknown, or what to do."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


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
