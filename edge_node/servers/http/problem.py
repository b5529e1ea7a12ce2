"""Refusal of a request: its status, and a sentence with the remedy."""

from __future__ import annotations

from collections.abc import Sequence

QUOTED_MAX = 80
"""Maximum number of characters of a client's input in an answer."""


class Problem(Exception):
    """A refused request.

    Args:
        status: of the answer.
        sentence: the problem, then the remedy.
        closes: whether the connection ends, because later data on it cannot be parsed.
        fields: further fields of the answer's head.
        code: InfluxDB's error code, for its clients.
    """

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        closes: bool = False,
        fields: Sequence[tuple[str, str]] = (),
        code: str | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.closes = closes
        self.fields = fields
        self.code = code or _CODES.get(status, "invalid")


_CODES = {
    401: "unauthorized", 403: "forbidden", 404: "not found", 405: "method not allowed", 409: "conflict",
    413: "request too large", 429: "too many requests", 500: "internal error", 503: "unavailable",
}  # fmt: skip


def quoted(text: str) -> str:
    """Return a client's input, shortened for an answer."""
    return repr(text if len(text) <= QUOTED_MAX else f"{text[:QUOTED_MAX]}...")


def try_later(status: int, sentence: str, seconds: int = 1) -> Problem:
    """Return a refusal after which the same request may be sent again."""
    return Problem(status, sentence, fields=(("Retry-After", str(seconds)),))
