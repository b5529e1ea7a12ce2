"""Answers to probes: ``/healthz`` and ``/readyz`` of an edge node and of a hub, the same on both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

REASONS_MAX = 10
"""Reasons in one answer. A hub may have a thousand shards, and a probe's log need not name all of them."""


class HealthAnswer(NamedTuple):
    """An HTTP answer."""

    status: int
    content_type: str
    body: bytes


def health_answer(word: str, reasons: Sequence[str], accept: str) -> HealthAnswer:
    """Return what a probe gets: 200 without reasons, else 503 with them.

    Args:
        word: ``healthy`` or ``ready``.
        reasons: why not, one sentence each, without names or paths: everyone who reaches the port may read them.
        accept: the request's Accept header; ``application/json`` in it asks for JSON, anything else gets text.
    """
    shown = list(reasons[:REASONS_MAX])
    if len(reasons) > REASONS_MAX:
        shown.append(f"and {len(reasons) - REASONS_MAX} more")
    status = 503 if reasons else 200
    if "application/json" in accept:
        return HealthAnswer(status, "application/json", msgspec.json.encode({word: not reasons, "reasons": shown}))
    text = f"not {word}: {'; '.join(shown)}\n" if reasons else f"{word}\n"
    return HealthAnswer(status, "text/plain", text.encode())
