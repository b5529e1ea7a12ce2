"""Answers to probes: ``/healthz`` and ``/readyz`` of an edge node and of a hub, the same on both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import msgspec

REASONS_MAX = 10
"""Maximum number of reasons in one response. A hub may have a thousand shards, and a probe's log need not name all of
them."""


class HealthAnswer(TypedDict):
    """The arguments of `aiohttp.web.Response`."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str]


# ``/healthz`` says no only where a restart helps, because a restart that mends nothing drops every client; ``/readyz``
# where a client is better served elsewhere. A link that is down is neither: taking messages then is what an edge is
# for.
def health_answer(word: str, reasons: Sequence[str], headers: Mapping[str, str]) -> HealthAnswer:
    """Return the answer to a probe: 200 without reasons, else 503 with them.

    Probes carry no token, because service managers and load balancers have none.

    Args:
        word: ``healthy`` or ``ready``.
        reasons: reasons against it, one sentence each, without names or paths: everyone who reaches the port may read
            them.
        headers: the request's; ``application/json`` in Accept asks for JSON, anything else gets text.
    """
    shown = list(reasons[:REASONS_MAX])
    if len(reasons) > REASONS_MAX:
        shown.append(f"and {len(reasons) - REASONS_MAX} more")
    status = 503 if reasons else 200
    if "application/json" in headers.get("Accept", ""):
        content_type, body = "application/json", msgspec.json.encode({word: not reasons, "reasons": shown})
    else:
        text = f"not {word}: {'; '.join(shown)}\n" if reasons else f"{word}\n"
        content_type, body = "text/plain", text.encode()
    return HealthAnswer(status=status, content_type=content_type, body=body, headers={"Cache-Control": "no-store"})
