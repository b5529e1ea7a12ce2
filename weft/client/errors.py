"""Errors of requests to a hub."""

from __future__ import annotations

import http.client
import urllib.error

import msgspec

ERROR_BYTES_MAX = 64 << 10
RETRY_DIGITS_MAX = 5


class _Told(msgspec.Struct, frozen=True):
    """The words of a problem document for people."""

    detail: str = ""
    advice: str = ""


class HubError(Exception):
    """Base of the errors of a request."""


class HubRefusal(HubError):
    """An answer of status 400 or above, or one that leads elsewhere.

    Args:
        detail, advice: the hub's words; empty if another program answers at the address.
        retry_after_s: time after which to ask again, if the hub says one.
    """

    def __init__(
        self, status: int, reason: str, detail: str, advice: str, retry_after_s: int | None = None
    ) -> None:  # fmt: skip
        super().__init__(f"{status} {reason}" + (f": {detail}; {advice}" if detail else ""))
        self.status, self.reason, self.detail, self.advice = status, reason, detail, advice
        self.retry_after_s = retry_after_s


class HubUnreachable(HubError):
    """No whole answer, or one that is not of the API. What the request did is unknown."""


def refusal(error: urllib.error.HTTPError) -> HubRefusal:
    """Return the refusal in an answer."""
    try:
        with error:
            body = error.read(ERROR_BYTES_MAX)
    except (OSError, ValueError, http.client.HTTPException):
        body = b""
    return refusal_of(error.code, error.reason, error.headers.get("Retry-After", ""), body)


def refusal_of(status: int, reason: str, wait: str, body: bytes) -> HubRefusal:
    """Return the refusal in the parts of an answer.

    Args:
        wait: its header ``Retry-After``.
    """
    retry_after_s = int(wait) if wait.isascii() and wait.isdecimal() and len(wait) <= RETRY_DIGITS_MAX else None
    try:
        told = msgspec.json.decode(body, type=_Told)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        told = _Told()
    return HubRefusal(status, reason, told.detail, told.advice, retry_after_s)
