"""A request that is refused: its status, and a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Sequence

QUOTED_MAX = 80
"""Characters of what a client sent that an answer quotes."""


class Problem(Exception):
    """A request is not carried out.

    Args:
        status: of the answer.
        sentence: what is wrong, then what to do.
        closes: whether the connection ends, since what follows on it cannot be read.
        fields: further fields of the answer's head.
        code: InfluxDB's word for it, where its clients ask.
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
    """Return what a client sent, short enough for an answer."""
    return repr(text if len(text) <= QUOTED_MAX else f"{text[:QUOTED_MAX]}...")


def try_later(status: int, sentence: str, seconds: int = 1) -> Problem:
    """Return a refusal after which the same request may be sent again."""
    return Problem(status, sentence, fields=(("Retry-After", str(seconds)),))
