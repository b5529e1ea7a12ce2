"""Check of a pipeline's checkpoint: a folder that can be written, and positions of this stream in it."""

from __future__ import annotations

import json
import os

from spark_sinks.errors import ReadError
from spark_sinks.pipelines.check.report import Report
from spark_sinks.source.positions import check_offsets, from_json
from spark_sinks.source.stream_log import StreamLog
from weft.config.pipelines.pipeline import Pipeline

OFFSETS_BYTES_MAX = 8 << 20
PATH = ("checkpoint",)


def check_checkpoint(pipeline: Pipeline, log: StreamLog | None, report: Report) -> None:
    """Add what is wrong with a checkpoint on a file system of this machine. Others are not looked at."""
    folder = pipeline.checkpoint
    if folder is None or "://" in folder:
        return
    existing = folder
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        report.refuse(PATH, f"{existing} is no folder. Name another place")
    elif not os.access(existing, os.W_OK | os.X_OK):
        report.refuse(PATH, f"{existing} cannot be written by this user. Change its owner, or name another place")
    elif log is not None and os.path.isdir(os.path.join(folder, "offsets")):
        _check_positions(folder, log, report)


def _check_positions(folder: str, log: StreamLog, report: Report) -> None:
    offsets = os.path.join(folder, "offsets")
    numbers = [int(name) for name in os.listdir(offsets) if name.isdecimal()]
    if not numbers:
        return
    path = os.path.join(offsets, str(max(numbers)))
    advice = "Name another folder, or move this one away: the sinks keep their own positions"
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read(OFFSETS_BYTES_MAX).splitlines()
        sources = [line for line in lines[2:] if line.strip()]
        if len(sources) != 1:
            raise ValueError(f"it has {len(sources)} sources, and a pipeline has one")
        check_offsets("the checkpoint", from_json(json.loads(sources[0])), log.heads)
    except ReadError as error:
        report.refuse(PATH, f"{error}. {advice}")
    except (OSError, ValueError) as error:
        report.refuse(PATH, f"{folder} is the checkpoint of another query: {error}. {advice}")
