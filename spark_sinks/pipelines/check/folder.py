"""Check of a folder of this machine to write to, which may not exist yet."""

from __future__ import annotations

import os

from spark_sinks.pipelines.check.report import Report
from weft.config.errors import KeyPath


def check_folder(setting: KeyPath, folder: str, report: Report) -> bool:
    """Add an error if a folder cannot be written or made. Return whether it can."""
    existing = folder
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing) or "."
    if not os.path.isdir(existing):
        report.refuse(setting, f"{existing} is no folder. Name another place")
        return False
    if not os.access(existing, os.W_OK | os.X_OK):
        report.refuse(setting, f"{existing} cannot be written by this user. Change its owner, or name another place")
        return False
    return True
