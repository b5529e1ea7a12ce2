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
            "mark_interval": 60_000_000_000,
            "record_bytes_max": 8 << 20,
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
DOWN: Notation = {
    "frames": [
        {"type": "DOWN_OPEN", "next": 7},
        {"type": "MESSAGES", "messages": [[7, T, 60_000_000_000, "down/recipe", "AAE=", 1]]},
        {"type": "OUTCOMES", "outcomes": [[7, T, 1, ""], [8, T, 3, "not allowed"]]},
    ]
}
PULL: Notation = {
    "frames": [
        {"type": "PULLS", "pulls": [["5f0c3a9b1d2e", "vibration", T, T + 900_000_000_000, 1 << 30]]},
        {
            "type": "PULL_STATE",
            "id": "5f0c3a9b1d2e",
            "stage": 1,
            "log_id": 0xFEDCBA9876543210,
            "ranges": [[200, 500], [510, 520]],
            "records": 310,
            "bytes": 12_400,
            "kept_from": T - 86_400_000_000_000,
            "reason": "",
        },
    ]
}
CANARY: Notation = {
    "frames": [{"type": "CANARY", "number": 3}, {"type": "CANARY_BACK", "number": 3, "waited": 61_000_000_000}]
}
THROTTLED: Notation = {
    "frames": [
        {
            "type": "THROTTLED",
            "wait": 250_000_000,
            "bytes_per_second": 65_536,
            "reason": "tenant default has 1MiB a second, its quota",
        },
        {"type": "THROTTLED", "wait": 0, "bytes_per_second": 0, "reason": ""},
    ]
}
NODE_REPORT: Notation = {
    "frames": [
        {
            "type": "NODE_REPORT",
            "used_bytes": 700_000_000,
            "budget_bytes": 1_000_000_000,
            "free_bytes": 300_000_000,
            "bytes_per_second": 2_000,
            "outage_seconds": 150_000,
            "functions": [["hourly", "where, window", 86_400, 24, 3, "3 rows in 1,000 have no field rms"]],
            "functions_more": 0,
        },
        {
            "type": "NODE_REPORT",
            "used_bytes": 0,
            "budget_bytes": 1_000_000_000,
            "free_bytes": 1_000_000_000,
            "bytes_per_second": None,
            "outage_seconds": None,
            "functions": [],
            "functions_more": 0,
        },
    ]
}
LAST_WORDS: Notation = {"frames": [{"type": "LAST_WORDS", "time": T, "lanes": [[1, 10], [3, 0]], "renamed_to": "pi-2"}]}
CONFIG: Notation = {
    "frames": [
        {
            "type": "CONFIG_DESIRED",
            "version": 9,
            "digest": "7a2fd1fcd2a6c1b0",
            "layers": [["group presses", 9, "streams: {alarms: {from: 'alarms/#'}}\n"], ["edge pi-1", 7, "links: {}"]],
        },
        {
            "type": "CONFIG_STATE",
            "version": 9,
            "digest": "7a2fd1fcd2a6c1b0",
            "outcome": 4,
            "reason": "the link was down on it for 90 s: connection refused",
            "active_version": 7,
            "active_digest": "0011223344556677",
        },
    ]
}
