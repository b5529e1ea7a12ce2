"""The running node's control socket for commands: its name, its messages, and requests."""

from __future__ import annotations

import http.client
import os
import socket
from typing import Annotated, Any, Literal

import msgspec

from weft.config.machine import why_denied
from weft.protocols.errors import Corrupt
from weft.protocols.ranges import SEQ_END, RangeSet

SOCKET_NAME = "control.sock"
"""Name of the socket in the node's data_dir."""
DROP_PATH = "/drop"
ACKNOWLEDGE_PATH = "/acknowledge"
RELOAD_PATH = "/reload"
REPLAY_PATH = "/replay"
LINKS_PATH = "/links"
TAKE_OVER_PATH = "/take-over"
REPLY_S_MAX = 20.0
"""Longest time until the node answers, even while its disk does not accept writes."""
_WAIT_S_MAX = REPLY_S_MAX + 10
_REPLY_BYTES_MAX = 16 << 20


class DropRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to drop the records of a stream with numbers below ``below``."""

    log_id: str
    """Log id in the form of ``protocols.lane.format_log_id``: in another log the numbers are those of other records."""
    stream: str
    below: Annotated[int, msgspec.Meta(ge=1, le=SEQ_END)]


class DropReply(msgspec.Struct, frozen=True):
    """The dropped ranges, or the reason why nothing was dropped (``error``)."""

    ranges: list[tuple[int, int]] = []
    error: str = ""


class AcknowledgeReply(msgspec.Struct, frozen=True):
    """The alarms that are ended, or the reason why none is (``error``)."""

    ended: list[str] = []
    error: str = ""


class ReloadReply(msgspec.Struct, frozen=True):
    """The applied configuration, or the reason why the node keeps the former one (``error``)."""

    version: int = 0
    digest: str = ""
    applied: list[str] = []
    """Settings that were applied."""
    restart: list[str] = []
    """Settings that differ in the file and need a restart."""
    error: str = ""


class LinksRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for the status of links, to let their data wait, or to let it continue."""

    action: Literal["status", "pause", "resume"]
    link: str = ""
    """Name of the link; empty for all."""


class LinksReply(msgspec.Struct, frozen=True):
    """The links after the request, or the reason why nothing was done (``error``)."""

    links: dict[str, dict[str, Any]] = {}
    """Name -> its section of the node's status."""
    error: str = ""


class TakeOverReply(msgspec.Struct, frozen=True):
    """The pair after a request to take over, or the reason why nothing was begun (``error``)."""

    pair: dict[str, Any] = {}
    """Its section of the node's status."""
    error: str = ""


class ReplayRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to compute a derived stream again into another one; or, without ``stream``, for its progress."""

    into: str
    stream: str = ""


class ReplayReply(msgspec.Struct, frozen=True):
    """The progress of a replay, or the reason why there is none (``error``)."""

    rows: int = 0
    """Rows read."""
    left: int = 0
    """Records still to read."""
    error: str = ""


class ControlFailed(Exception):
    """A request that the node refused, or whose outcome is unknown; the text has the case and the remedy."""


def socket_path(directory: str) -> str:
    """Return the path of the socket of the node with this data_dir."""
    return os.path.join(directory, SOCKET_NAME)


def ask_drop(directory: str, request: DropRequest) -> RangeSet:
    """Request the node that runs on ``directory`` to drop records. Blocks until it has answered.

    Returns:
        The dropped ranges; their notices are durable.

    Raises:
        ControlFailed: the node dropped nothing, or it is unknown what it dropped. A repeated request is harmless.
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
        or f"the node that runs on {directory} is of another release and answered {status}. Use the release of "
        "Weft that it runs, or stop the node first"
    )


def ask_acknowledge(directory: str) -> list[str]:
    """Request the node that runs on ``directory`` to end the alarms of its links; return them. Blocks until it has
    answered.

    Raises:
        ControlFailed: the node ended none.
    """
    status, body = _post(directory, ACKNOWLEDGE_PATH, b"{}")
    try:
        reply = msgspec.json.decode(body, type=AcknowledgeReply)
        if status == http.HTTPStatus.OK:
            return reply.ended
    except msgspec.MsgspecError:
        reply = AcknowledgeReply()
    raise ControlFailed(reply.error or f"the node that runs on {directory} is of another release and answered {status}")


def ask_reload(directory: str) -> ReloadReply:
    """Request the node that runs on ``directory`` to read its configuration again. Blocks until it has answered.

    Raises:
        ControlFailed: the node keeps its settings, or is of another release.
    """
    status, body = _post(directory, RELOAD_PATH, b"{}")
    try:
        reply = msgspec.json.decode(body, type=ReloadReply)
        if status == http.HTTPStatus.OK:
            return reply
    except msgspec.MsgspecError:
        reply = ReloadReply()
    raise ControlFailed(reply.error or f"the node that runs on {directory} is of another release and answered {status}")


def ask_links(directory: str, request: LinksRequest) -> dict[str, dict[str, Any]]:
    """Request the node that runs on ``directory`` to report, pause or resume links; return them. Blocks until it has
    answered.

    Raises:
        ControlFailed: the node did nothing, or is of another release.
    """
    status, body = _post(directory, LINKS_PATH, msgspec.json.encode(request))
    try:
        reply = msgspec.json.decode(body, type=LinksReply)
        if status == http.HTTPStatus.OK:
            return reply.links
    except msgspec.MsgspecError:
        reply = LinksReply()
    raise ControlFailed(reply.error or f"the node that runs on {directory} is of another release and answered {status}")


def ask_replay(directory: str, request: ReplayRequest) -> ReplayReply:
    """Request the node that runs on ``directory`` to begin a replay, or to report the progress of one. Blocks until it
    has answered.

    Raises:
        ControlFailed: it replays nothing.
    """
    status, body = _post(directory, REPLAY_PATH, msgspec.json.encode(request))
    try:
        reply = msgspec.json.decode(body, type=ReplayReply)
        if status == http.HTTPStatus.OK:
            return reply
    except msgspec.MsgspecError:
        reply = ReplayReply()
    raise ControlFailed(reply.error or f"the node that runs on {directory} is of another release and answered {status}")


def ask_take_over(directory: str) -> dict[str, Any]:
    """Request the node that runs on ``directory`` to send what it has of its peer to the hubs; return its section about
    the pair. Blocks until it has answered.

    Raises:
        ControlFailed: the node did nothing, or is of another release.
    """
    status, body = _post(directory, TAKE_OVER_PATH, b"{}")
    try:
        reply = msgspec.json.decode(body, type=TakeOverReply)
        if status == http.HTTPStatus.OK:
            return reply.pair
    except msgspec.MsgspecError:
        reply = TakeOverReply()
    raise ControlFailed(reply.error or f"the node that runs on {directory} is of another release and answered {status}")


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_WAIT_S_MAX)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_WAIT_S_MAX)
        self.sock.connect(self._path)


def check_listens(directory: str) -> None:
    """Check that the node that runs on ``directory`` accepts requests from this user.

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
        if not os.path.exists(os.path.join(directory, "lock")):
            raise ControlFailed(f"no node has run with {directory}. Start one (`weft edge run CONFIG`)") from None
        raise ControlFailed(
            f"no node answers at {path} ({error.strerror or error}). Stop the node first if one runs with this folder, "
            "or start it (`weft edge run CONFIG`)"
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
            f"the node that runs on {directory} did not answer within {_WAIT_S_MAX:.0f} s. See with `weft edge "
            "status` whether the records are still there; if so, run this again"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise ControlFailed(
            f"the node that runs on {directory} ended before it answered ({error or type(error).__name__}). The "
            "records are either dropped, with a gap notice, or still there; run this again"
        ) from None
    finally:
        connection.close()
