"""Problem documents (RFC 9457): the body of every refusal over HTTP, of a hub's API and of an edge node."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

PROBLEM_JSON = "application/problem+json"
NO_TYPE = "about:blank"
"""Type of a problem of which the status says the kind."""


def problem(status: int, detail: str, advice: str | None = None, *, type_: str = NO_TYPE) -> bytes:
    """Return the document of a problem.

    Args:
        status: of the answer.
        detail: the mistake or the failure.
        advice: the remedy; None if ``detail`` has it.
        type_: URI that says what kind of problem it is.
    """
    document = {"type": type_, "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return msgspec.json.encode(document if advice is None else document | {"advice": advice}) + b"\n"
