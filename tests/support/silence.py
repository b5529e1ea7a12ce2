"""Logs that say nothing, where a search makes thousands of expected complaints."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silent_logs(below: int = logging.CRITICAL) -> Iterator[None]:
    """Write no records of the log up to a level."""
    logging.disable(below)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
