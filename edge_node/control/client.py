"""The running node's control socket as commands see it: how it is named, what is said there, and asking."""

from __future__ import annotations

import http.client
import os
import socket
from typing import Annotated

import msgspec

from weft.config.machine import why_denied
from weft.protocols.errors import Corrupt
from weft.protocols.ranges import SEQ_END, RangeSet

SOCKET_NAME = "control.sock"
"""In the node's data_dir."""
DROP_PATH = "/drop"
REPLY_S_MAX = 20.0
"""The node answers within this, also while its disk takes nothing."""
_WAIT_S_MAX = REPLY_S_MAX + 10
_REPLY_BYTES_MAX = 16 << 20


class DropRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be given up: records of a stream with numbers below ``below``."""

    log_id: str
    """As ``protocols.lane.format_log_id`` writes it: another log's numbers mean other records."""
    stream: str
    below: Annotated[int, msgspec.Meta(ge=1, le=SEQ_END)]


class DropReply(msgspec.Struct, frozen=True):
    """What was given up, or why nothing was (``error``)."""

    ranges: list[tuple[int, int]] = []
    error: str = ""


class ControlFailed(Exception):
    """The node did not do it, or nobody knows; the sentence says which, and what to do."""


def socket_path(directory: str) -> str:
    """Where the node with this data_dir listens."""
    return os.path.join(directory, SOCKET_NAME)


def ask_drop(directory: str, request: DropRequest) -> RangeSet:
    """Have the node that runs on ``directory`` give up records. Blocks until it has answered.

    Returns:
        What was given up; its notices are durable.

    Raises:
        ControlFailed: it was not, or not as far as anybody knows. To ask again is harmless.
    """
    status, body = _post(directory, DROP_PATH, msgspec.json.encode(request))
    try:
        reply = msgspec.json.decode(body, type=DropReply)
        if status == http.HTTPStatus.OK:
            return RangeSet.from_wire(reply.ranges)
    except (msgspec.MsgspecError, Corrupt):
        reply = DropReply()
    raise ControlFailed(
        reply.error
        or f"the node that runs on {directory} is of another release, and answers {status}: use the release of "
        "Weft that it runs, or stop the node first"
    )


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_WAIT_S_MAX)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_WAIT_S_MAX)
        self.sock.connect(self._path)


def check_listens(directory: str) -> None:
    """Make sure that the node that runs on ``directory`` takes requests from this user.

    Raises:
        ControlFailed: it does not.
    """
    _connected(directory).close()


def _connected(directory: str) -> _Connection:
    path = socket_path(directory)
    connection = _Connection(path)
    try:
        connection.connect()
    except PermissionError:
        connection.close()
        raise ControlFailed(f"a node runs with {directory}: {why_denied(path, 'connect to')}") from None
    except OSError as error:
        connection.close()
        raise ControlFailed(
            f"{directory} is in use, and nobody takes requests at {path} ({error.strerror or error}): "
            "stop the node first"
        ) from None
    return connection


def _post(directory: str, path: str, body: bytes) -> tuple[int, bytes]:
    connection = _connected(directory)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read(_REPLY_BYTES_MAX)
    except TimeoutError:
        raise ControlFailed(
            f"the node that runs on {directory} has not answered for {_WAIT_S_MAX:.0f} s: see with weft edge status "
            "whether the records are gone, and run this again if not"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise ControlFailed(
            f"the node that runs on {directory} ended before it answered ({error or type(error).__name__}): the "
            "records are either given up under a notice or still there; run this again"
        ) from None
    finally:
        connection.close()
