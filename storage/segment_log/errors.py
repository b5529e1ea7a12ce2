"""Errors of a segment log, each with what the caller does about it."""

from __future__ import annotations

from weft.protocols.lane import NodeName


class LogError(Exception):
    """Base of the log's errors."""


class LogFull(LogError):
    """No room: the disk budget holds nothing that may be deleted, or too much waits for the disk.

    Nothing of the refused run was taken. Do not acknowledge it; the device sends it again.
    """


class LogFailed(LogError):
    """A write or sync failed, so what reached the disk is unknown. Reads still work; to append, open the log again."""


class WrongOwner(LogError):
    """The log is another node's, or this node had another name. Nothing was changed."""

    def __init__(self, directory: str, owner: NodeName, asked: NodeName) -> None:
        """Say whose log it is, and under which name it was opened."""
        super().__init__(
            f"the log in {directory} belongs to {owner}, not to {asked}. Put that name back in the configuration, or "
            "give the log the new one with weft edge rename"
        )
        self.owner = owner


class LogVersionError(LogError):
    """The directory was written by a later release. Nothing was changed."""


class RecordTooLarge(LogError, ValueError):
    """One record is longer than ``RECORD_BYTES_MAX``, or has too many headers: it can never be taken."""
