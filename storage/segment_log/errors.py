"""Errors of a segment log, each with the caller's next step."""

from __future__ import annotations

from weft.protocols.lane import NodeName


class LogError(Exception):
    """Base of the log's errors."""


class LogFull(LogError):
    """No room: nothing in the disk budget may be deleted, or too many bytes wait for the disk.

    Nothing of the refused run was appended. Do not acknowledge it; the device sends it again.
    """


class LogFailed(LogError):
    """A write or sync failed, so it is unknown what reached the disk. Reads still work; to append, open the log
    again."""


class WrongOwner(LogError):
    """The log belongs to another node, or this node had another name. Nothing was changed."""

    def __init__(self, directory: str, owner: NodeName, asked: NodeName) -> None:
        """Word the error, with the log's owner and the name that opened it."""
        super().__init__(
            f"the log in {directory} belongs to {owner}, not to {asked}. Put that name back in the configuration, or "
            "give the log the new one with weft edge rename"
        )
        self.owner = owner


class LogVersionError(LogError):
    """The directory was written by a later release. Nothing was changed."""


class RecordTooLarge(LogError, ValueError):
    """One record is longer than ``RECORD_BYTES_MAX``, or has too many headers: it can never be stored."""
