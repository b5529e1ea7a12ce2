"""The number of files that the node may open, beside what its limits of connections need."""

from __future__ import annotations

import resource
import socket
import struct

from weft.config.models import EdgeConfig
from weft.config.verdict import Verdict, act, good, unknown
from weft.edge_node.control.client import socket_path
from weft.edge_node.servers.listeners.listeners import FILES_RESERVED

_CHECK = "open files"
_PEER = struct.Struct("3i")
_LINE = "Max open files"
_ADVICE = "Raise the limit (systemd: `LimitNOFILE`), or lower `limits.connections`"


def open_files(config: EdgeConfig, *, is_running: bool) -> Verdict:
    """Return the line about open files: of the running node, or of one that this user would start here."""
    wanted = config.limits.connections + config.limits.half_open + FILES_RESERVED
    if is_running:
        process = _node_of(config.data_dir)
        limit = _limit_of(process) if process else None
        if limit is None:
            return unknown(_CHECK, "the node runs, and its limit cannot be read from here")
        whose = "the node"
    else:
        # A node raises its own limit up to the hard one.
        _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = wanted if limit == resource.RLIM_INFINITY else limit
        whose = "a node that is started here"
    if limit < wanted:
        takes = max(limit - FILES_RESERVED, 2)
        return act(_CHECK, f"{whose} may open {limit:,}, and so takes some {takes:,} connections. {_ADVICE}")
    return good(_CHECK, f"{whose} may open {limit:,}; its limits of connections need {wanted:,} at most")


def _node_of(directory: str) -> int | None:
    """Return the process that listens at the control socket of a node; None if that is not known."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(1.0)
        try:
            link.connect(socket_path(directory))
            process, _, _ = _PEER.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        except OSError:
            return None
    # 0 is a process of another container.
    return process or None


def _limit_of(process: int) -> int | None:
    try:
        with open(f"/proc/{process}/limits", encoding="ascii") as file:
            (line,) = [line for line in file if line.startswith(_LINE)]
        return int(line.removeprefix(_LINE).split()[0])
    except (OSError, ValueError):
        return None
