"""What the golden vectors hold of the link between an edge and the hub: every frame."""

from __future__ import annotations

from tests.vectors.goldens import SMALL, T
from tests.vectors.notation import Notation

CONTROL: Notation = {
    "frames": [
        {
            "type": "HELLO",
            "version": 1,
            "tenant": "default",
            "edge": "pi-1",
            "log_id": 0xFEDCBA9876543210,
            "boot": 0x0123456789ABCDEF,
            "clock": T,
            "software": "weft 0.1.0",
            "features": ["compact-marks"],
            "stay": False,
            "is_synchronised": True,
        },
        {
            "type": "WELCOME",
            "version": 1,
            "cluster_id": "000102030405060708090a0b0c0d0e0f",
            "window_bytes": 8 << 20,
            "batch_bytes_max": 1 << 20,
            "clock": T + 1,
            "software": "weft 0.1.0",
            "features": [],
        },
        {
            "type": "REFUSE",
            "version": 1,
            "code": 3,
            "message": "another node has this identity",
            "advice": "give it its own log",
            "url": "",
        },
        {
            "type": "REFUSE",
            "version": 1,
            "code": 7,
            "message": "another node serves this edge",
            "advice": "nothing: the edge goes there",
            "url": "https://hub-2:8443",
        },
        {
            "type": "LANE_OPEN",
            "lane": 1,
            "tenant": "default",
            "edge": "pi-1",
            "log_id": 0xFEDCBA9876543210,
            "stream": "telemetry",
            "epoch": 3,
            "ranges": [[0, 5], [7, 10]],
            "topics": ["plant/{line}/t"],
            "payload": 2,
            "flags": 0,
            "origins": [[1, 1, "mean-1m", "4", "q80="]],
            "acknowledged": [["5e1f60a2c3d84b7796a0b1c2d3e4f506", [[0, 5]]]],
        },
        {
            "type": "LANE_OPEN",
            "lane": 2,
            "tenant": "default",
            "edge": "pi-7",
            "log_id": 5,
            "stream": "alarms",
            "epoch": 0,
            "ranges": [],
            "topics": [],
            "payload": 0,
            "flags": 3,
            "origins": [],
            "acknowledged": [],
        },
        {"type": "LANE_OPENED", "lane": 1, "ranges": [[0, 5]]},
        {
            "type": "LANE_CLOSED",
            "lane": 2,
            "code": 8,
            "message": "shard 3 has trouble with its store",
            "advice": "try another node",
        },
        {"type": "ORIGINS", "lane": 1, "origins": [[2, 2, "telemetry", "7", ""]]},
        {
            "type": "CLOCK",
            "log_id": 0xFEDCBA9876543210,
            "boot": 1,
            "monotonic": 5_000_000_000,
            "offset": -7,
            "error": 3,
        },
        {"type": "GAP", "lane": 1, "first": 5, "end": 7, "reason": 1},
        {"type": "MARK", "time": T, "lanes": [[1, 10], [3, 0]]},
        {"type": "ACK", "lane": 1, "ranges": [[0, 7]]},
        {"type": "PING", "sent": 123},
        {"type": "PONG", "sent": 123, "clock": T},
    ]
}
DATA: Notation = {"frames": [{"type": "DATA", "lane": 1, "batches": [SMALL, {**SMALL, "base_seq": 10}]}]}
LAST_WORDS: Notation = {"frames": [{"type": "LAST_WORDS", "time": T, "lanes": [[1, 10], [3, 0]]}]}
