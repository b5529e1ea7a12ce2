"""SIGHUP before the event loop runs. Imports nothing that takes time, because an early SIGHUP would end the process."""

from __future__ import annotations

import signal

_has_come = False


def hold_sighup() -> None:
    """Hold a SIGHUP that comes while the node is starting, and deliver it afterwards.

    `systemctl reload` sends one whenever a person says so, also while a large log is being recovered.
    """

    def hold(_number: int, _frame: object) -> None:
        global _has_come  # noqa: PLW0603  # a signal's handler has nowhere else to leave it
        _has_come = True

    signal.signal(signal.SIGHUP, hold)


def sighup_was_held() -> bool:
    """Return whether a SIGHUP was held."""
    return _has_come
