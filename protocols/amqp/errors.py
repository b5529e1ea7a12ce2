"""Errors of AMQP 0-9-1, each with its reply code (section 1.2 of the specification's reference)."""

from __future__ import annotations

from enum import IntEnum

REPLY_TEXT_BYTES_MAX = 255
"""Longest reply text: it is a short string."""


class ReplyCode(IntEnum):
    """Reply codes. Those from 500 on, and three others, end the connection; the rest end a channel."""

    SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541

    @property
    def ends_connection(self) -> bool:
        """Return whether it is a hard error."""
        return self >= 500 or self in (ReplyCode.CONNECTION_FORCED, ReplyCode.INVALID_PATH)


class AmqpError(Exception):
    """A client's violation of the protocol. The message is for the client and the log.

    Args:
        code: reply code, which decides whether the channel or the connection ends.
        reason: what went wrong, then what to do.
        method: index of the method that failed (class << 16 | method), 0 for none.
    """

    def __init__(self, code: ReplyCode, reason: str, method: int = 0) -> None:
        super().__init__(reason)
        self.code = code
        self.method = method

    @property
    def text(self) -> str:
        """Return the reply text: the code's name and the message, cut to the length of a short string."""
        whole = f"{self.code.name} - {self}"
        return whole.encode()[:REPLY_TEXT_BYTES_MAX].decode(errors="ignore")
