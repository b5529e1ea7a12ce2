"""SIGHUP before the event loop runs. Imports nothing that takes time: until then a SIGHUP ends the process."""

from __future__ import annotations

import signal

_has_come = False


def hold_hang_ups() -> None:
    """Keep a SIGHUP that comes before the node has started for when it has.

    `systemctl reload` sends one whenever a person says so, also while a large log is being recovered.
    """

    def hold(_number: int, _frame: object) -> None:
        global _has_come  # noqa: PLW0603  # a signal's handler has nowhere else to leave it
        _has_come = True

    signal.signal(signal.SIGHUP, hold)


def hang_up_has_come() -> bool:
    """Return whether one was held."""
    return _has_come
