"""Messages between a node and the process that runs a user's code: four bytes of length, then MessagePack."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

LENGTH = struct.Struct("<I")
FRAME_BYTES_MAX = 64 << 20
"""Longest frame. The node requests less at a time, and a process that sends more is ended."""
RECORD_BYTES_MAX = 16 << 20
"""Longest record that is sent to a process."""
RESULT_BYTES_MAX = 1 << 20
"""Maximum size of a user's results for one record."""
ANSWER_BYTES_ENOUGH = 4 << 20
"""Size of an answer at which the process sends it without handling the remaining records."""
LINES_MAX = 20
"""Maximum number of ``ctx.log`` lines in one answer; further ones are only counted."""
LINE_CHARACTERS_MAX = 500
EXIT_NO_MEMORY = 75
"""Exit status of a process whose code needed more memory than it may have."""


class Begin(msgspec.Struct, array_like=True, tag=1):
    """First message to the process. It answers with ``Ready`` or ``Broken``."""

    file: str
    """Path of the code, relative to the current folder."""
    shown_as: str
    """Name of the file for people."""
    function: str
    by_batch: bool
    timeout_s: float
    memory_bytes: int
    state_bytes: int
    stream: str
    parent: int
    """Process id of the node."""
    result_bytes: int = RESULT_BYTES_MAX
    """Maximum size of the results of one record."""


class Put(msgspec.Struct, array_like=True, tag=2):
    """The whole state, which replaces that of the process. It has no answer."""

    state: dict[str, Any]


class Record(msgspec.Struct, array_like=True):
    """A record to handle."""

    time: int
    """Time at which the node received it, ns since 1970."""
    key: bytes
    levels: dict[str, str]
    input: str
    values: dict[str, Any]


class Ask(msgspec.Struct, array_like=True, tag=3):
    """Records to handle. The process answers with ``Answer``."""

    records: list[msgspec.Raw]
    """Encoded ``Record`` each."""


class Asked(msgspec.Struct, array_like=True, tag=3):
    """``Ask`` in the form that the process decodes."""

    records: list[Record]


class Ready(msgspec.Struct, array_like=True, tag=4):
    """The code is loaded."""


class Broken(msgspec.Struct, array_like=True, tag=5):
    """The code cannot be loaded, and the process ends."""

    reason: str


Result = list[dict[str, Any]] | str | None
"""Result of a record: the values of new records, the reason why it failed, or None when it was dropped."""


class Answer(msgspec.Struct, array_like=True, tag=6):
    """Results for the records of an ``Ask``, or for the first of them."""

    results: list[Result]
    state: dict[str, Any]
    """Changes of the state; None for deleted keys."""
    lines: list[str]
    lines_left_out: int
    failed: str = ""
    """Reason why the call for a whole batch failed; then there are no results, and nothing was changed."""


class Answering(msgspec.Struct, array_like=True, tag=6):
    """``Answer`` in the form that the process writes: its parts are encoded already."""

    results: list[msgspec.Raw]
    state: dict[str, msgspec.Raw | None]
    lines: list[str]
    lines_left_out: int
    failed: str = ""


ToProcess = Begin | Put | Asked
FromProcess = Ready | Broken | Answer


def framed(message: msgspec.Struct, encoder: msgspec.msgpack.Encoder) -> bytes:
    """Return a message with its length before it.

    Raises:
        ValueError: it is longer than ``FRAME_BYTES_MAX``.
    """
    body = encoder.encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise ValueError(f"a message of {len(body):,} bytes is longer than {FRAME_BYTES_MAX:,}")
    return LENGTH.pack(len(body)) + body


# Time of a process without its waits for a processor.
#
# A user's code has a low priority: on a busy node it waits. A limit on elapsed time would then reject records because
# of the node's load, not because of the code.


def waited_s(process: str = "self") -> float:
    """Return the seconds that a process has waited for a processor since it began: the second number of
    ``/proc/PID/schedstat`` (proc(5), kernels with CONFIG_SCHED_INFO). 0 where the system does not report it."""
    try:
        with open(f"/proc/{process}/schedstat", encoding="ascii") as file:
            return int(file.read(100).split()[1]) / 10**9
    except (OSError, ValueError, IndexError):
        return 0.0
