"""Batches, segments, chunks and states of shards that the golden vectors hold."""

from __future__ import annotations

import base64

import msgspec

from tests.vectors.notation import Notation

T = 1_700_000_000_000_000_000

SMALL: Notation = {
    "stream": 1,
    "base_seq": 7,
    "boot_id": 0x0123456789ABCDEF,
    "monotonic": 5_000_000_000,
    "clock": "SYNCED",
    "records": [
        {"time": T, "key": "plant/1/t", "payload": b"21.5".hex()},
        {"time": T + 1_000_000, "key": "plant/2/t", "payload": b"19".hex()},
        {"time": T + 2_000_000, "key": "plant/1/t", "payload": ""},
    ],
}
FULL: Notation = {
    **SMALL,
    "stream": 2,
    "base_seq": 1 << 40,
    "clock": "UNSYNCED",
    "records": [
        {"time": -1, "key": "", "payload": "00ff", "flags": 4},
        {
            "time": T,
            "key": "wärme",
            "payload": "ff" * 9,
            "headers": [["unit", "°C"], ["unit", "again"], ["", ""]],
            "flags": 3,
        },
        {"time": T - 5, "key": "wärme", "payload": "01"},
    ],
}
LARGE: Notation = {
    **SMALL,
    "records": [{"time": T + i, "key": f"plant/{i % 3}", "payload": (b"%08d" % i * 6).hex()} for i in range(100)],
}
LAST: Notation = {**SMALL, "base_seq": (1 << 63) - 1 - 3, "boot_id": (1 << 64) - 1, "stream": (1 << 32) - 1}
MADE: Notation = {**SMALL, "origin": 2}
TYPED: Notation = {
    **SMALL,
    "records": [
        {
            "time": T,
            "key": "a",
            "payload": "",
            "headers": [
                ["text", "x"],
                ["bytes", {"hex": "00ff"}],
                ["int", -(1 << 63)],
                ["int", (1 << 63) - 1],
                ["float", 0.5],
                ["bool", True],
                ["bool", False],
                ["nil", None],
            ],
        }
    ],
}
FIRST_POSITION = 1 << 26
STREAMS = {"1": ["telemetry", 7], "2": ["alarms", 0]}
SEGMENT: Notation = {
    "header": {"log_id": 0xFEDCBA9876543210, "first_position": FIRST_POSITION, "created": T},
    "entries": [
        {"kind": "STREAMS", "body": STREAMS},
        {"kind": "BATCH", "body": SMALL},
        {"kind": "GAP", "body": [2, 0, 5, 1, T]},
        {"kind": "CLOCK", "body": [0x0123456789ABCDEF, 5_000_000_000, -250_000, 1_000]},
        {
            "kind": "FOOTER",
            "body": [
                {"1": "telemetry", "2": "alarms"},
                [[1, [[7, 10]], T, T + 2_000_000, [[7, 71]]]],
                [[2, 0, 5, 1, T]],
            ],
        },
    ],
    "sealed": True,
}
MOVED: Notation = {
    "header": SEGMENT["header"],
    "entries": [
        {"kind": "STREAMS", "body": {"1": ["telemetry", 90]}},
        {"kind": "KEPT", "body": [[[1, 90, [[5, 10], [80, 90]]], [2, 0, []]]]},
        {"kind": "GAP", "body": [1, 5, 7, 1, T]},
        {"kind": "MOVED", "body": SMALL},
        {"kind": "STREAMS", "body": {}},
        {
            "kind": "FOOTER",
            "body": [
                {"1": "telemetry"},
                [],
                [[1, 5, 7, 1, T]],
                [[1, 90, [[5, 10], [80, 90]]]],
                [[0, 200]],
                [[1, [[7, 10]], T, T + 2_000_000, [[7, 120]]]],
            ],
        },
    ],
    "sealed": True,
}
OWNER = ["default", "press-2", [[1, 90]]]
OWNED: Notation = {
    "header": SEGMENT["header"],
    "entries": [
        {"kind": "STREAMS", "body": {"1": ["telemetry", 90]}},
        {"kind": "OWNER", "body": OWNER},
        {"kind": "KEPT", "body": [[[1, 90, []]]]},
        {"kind": "OWNER", "body": OWNER},
        {"kind": "STREAMS", "body": {}},
        {"kind": "FOOTER", "body": [{"1": "telemetry"}, [], [], [[1, 90, []]], [], [], OWNER]},
    ],
    "sealed": True,
}
ORIGINS = [[1, 1, "smooth", "2.0.1", "q80="], [2, 2, "telemetry", "7", ""]]
"""Hashes are base64 text."""
TOGETHER: Notation = {
    "header": SEGMENT["header"],
    "entries": [
        {"kind": "STREAMS", "body": {"1": ["telemetry", 7], "2": ["alarms", 7]}},
        {"kind": "STREAMS", "body": {}},
        {"kind": "ORIGINS", "body": ORIGINS},
        {"kind": "WHOLE", "body": [408]},
        {"kind": "BATCH", "body": MADE},
        {"kind": "BATCH", "body": {**MADE, "stream": 2}},
        {
            "kind": "FOOTER",
            "body": [
                {"1": "telemetry", "2": "alarms"},
                [[1, [[7, 10]], T, T + 2_000_000, [[7, 147]]], [2, [[7, 10]], T, T + 2_000_000, [[7, 351]]]],
                [],
                [],
                [[0, 204], [0, 204]],
                [],
                None,
                ORIGINS,
            ],
        },
    ],
    "sealed": True,
}
OPEN: Notation = {**SEGMENT, "entries": SEGMENT["entries"][:2], "sealed": False}
_LANES: list[list[object]] = [
    [
        "default",
        "pi-1",
        0xFEDCBA9876543210,
        "telemetry",
        2,
        [[8, 9]],
        [[9, 12, 1]],
        [T, 12],
        None,
        None,
        [[1, 1, "mean", "3", "q80="]],
        [T + 5, 8],
        3,
    ],
    [
        "default",
        "pi-1",
        0xFEDCBA9876543210,
        "alarms",
        2,
        [[1 << 40, (1 << 40) + 3]],
        [],
        None,
        ["a/{line}"],
        2,
        [],
        None,
        0,
    ],
]
CHUNK: Notation = {
    "header": {
        "cluster_id": "000102030405060708090a0b0c0d0e0f",
        "n": 3,
        "created": T,
        "shard": 1,
        "previous_footer_crc": 0xDEADBEEF,
        "nonce": 42,
    },
    "must_understand": 1,
    "fold_level": 4,
    "sections": [
        {
            "tenant": "default",
            "stream": "alarms",
            "base_offset": 0,
            "count": 3,
            "first_time": -1,
            "last_time": T,
            "entries": [{"lane": 0, "skip": 0, "take": 3, "received": T + 9, "batch": FULL}],
        },
        {
            "tenant": "default",
            "stream": "telemetry",
            "base_offset": 1000,
            "count": 1,
            "first_time": T,
            "last_time": T + 2_000_000,
            "entries": [{"lane": 1, "skip": 1, "take": 1, "received": T + 9, "batch": SMALL}],
        },
    ],
    "blocks": [
        {"tenant": "default", "stream": "alarms", "lanes": _LANES[1:], "controls": [], "clocks": []},
        {
            "tenant": "default",
            "stream": "telemetry",
            "lanes": [
                ["default", "pi-2", 7, "telemetry", 1, [], [], [T, 4], None, None, [], None, 0],
                _LANES[0],
                ["default", "pi-2", 8, "telemetry", 3, [[0, 2], [5, 6]], [], None, None, None, [], None, 0],
            ],
            "controls": [
                [
                    3,
                    "default",
                    "pi-0",
                    7,
                    "telemetry",
                    base64.b64encode(msgspec.msgpack.encode([2, "scrapped"])).decode(),
                ]
            ],
            "clocks": [["default", "pi-1", 0xFEDCBA9876543210, 0x0123456789ABCDEF, 5_000_000_000, -250_000, 1_000]],
        },
        {
            "tenant": "default",
            "stream": "quiet",
            "lanes": [["default", "pi-2", 7, "quiet", 1, [], [], [T, 0], None, None, [], None, 0]],
            "controls": [],
            "clocks": [],
        },
    ],
    "controls": [[99, "", "", 0, "", "kw=="]],
    "extensions": {"7": "c0"},
}
EMPTY_CHUNK: Notation = {
    **CHUNK,
    "sections": [],
    "blocks": [
        {
            "tenant": "default",
            "stream": "telemetry",
            "lanes": [["default", "pi-1", 1, "telemetry", 1, [], [], [T, 0], ["plant/{line}/t"], 0, [], None, 0]],
            "controls": [],
            "clocks": [],
        }
    ],
    "controls": [],
    "extensions": {},
}
RENAMED_CHUNK: Notation = {
    **EMPTY_CHUNK,
    "blocks": [
        {
            **EMPTY_CHUNK["blocks"][0],
            "lanes": [["default", "pi-1", 1, "telemetry", 1, [], [], [T, 9], None, None, [], None, 4, "pi-2"]],
        }
    ],
}
STATE: Notation = {
    "cluster_id": "000102030405060708090a0b0c0d0e0f",
    "shard": 1,
    "n": 3,
    "footer_crc": 0xDEADBEEF,
    "must_understand": 0,
    "made_with": 4,
    "fold_level": 4,
    "created": T + 7,
    "drops": 0,
    "streams": [
        {
            "tenant": "default",
            "stream": "telemetry",
            "next_offset": 1001,
            "fields": ["line", "machine"],
            "named_by": ["pi-1", "pi-1"],
            "skips": [[700, 702, T + 6, "no row", [["pi-1", 0xFEDCBA9876543210, 700, 702]]]],
            "open_gaps": [["pi-0", 0x0123456789ABCDEF, 200, T - 60, T - 50, 0, False]],
        }
    ],
    "lanes": [
        {
            "tenant": "default",
            "edge": "pi-1",
            "log_id": 0xFEDCBA9876543210,
            "stream": "telemetry",
            "epoch": 2,
            "ranges": [[0, 1003], [1010, 1011]],
            "gaps": [[5, 7, 1], [900, 905, 6]],
            "mark": [T, 1003],
            "whole_mark": [T - 9, 800],
            "pending_marks": [[T, 1003], [T + 1, 1011]],
            "topics": ["plant/{line}/{machine}/telemetry"],
            "payload": 2,
            "origins": [[1, 1, "mean", "3", "q80="]],
            "partial": False,
            "last_seen": T + 7,
            "retired": [T + 7, 1, "not seen for 90 days", 2],
            "conflict": [T + 5, 1, T, T - 9, "a connection with epoch 2 has taken over"],
            "last_word": [T + 1, 1011],
        }
    ],
    "clocks": [["default", "pi-1", 0xFEDCBA9876543210, [[0x0123456789ABCDEF, 5_000_000_000, -250_000, 1_000]]]],
    "extensions": {},
}
EMPTY_STATE: Notation = {**STATE, "n": -1, "footer_crc": 0, "created": 0, "streams": [], "lanes": [], "clocks": []}
RENAMED_STATE: Notation = {**STATE, "lanes": [{**STATE["lanes"][0], "last_word": [T + 1, 1011, "pi-2"]}]}
TWO_STREAMS: Notation = {
    **STATE,
    "streams": [
        {
            "tenant": "default",
            "stream": "alarms",
            "next_offset": 0,
            "fields": [],
            "named_by": [],
            "skips": [],
            "open_gaps": [],
        },
        *STATE["streams"],
    ],
    "lanes": [{**STATE["lanes"][0], "stream": "alarms", "retired": None, "conflict": None}, *STATE["lanes"]],
}

SEALED_CHUNK: Notation = {
    **EMPTY_CHUNK,
    "must_understand": 3,
    "controls": [[5, "", "", 0, "", base64.b64encode(msgspec.msgpack.encode([16, 4, 0x0123456789ABCDEF])).decode()]],
    "sections": [],
    "blocks": [],
}
APART_CHUNK: Notation = {
    **SEALED_CHUNK,
    "must_understand": 5,
    "controls": [[11, "acme", "", 0, "", base64.b64encode(msgspec.msgpack.encode([True])).decode()]],
}
SPLIT_STATE: Notation = {**TWO_STREAMS, "must_understand": 1, "splits": [[16, 4, 2, 0x0123456789ABCDEF], [19, 5, 3, 7]]}
APART_STATE: Notation = {**TWO_STREAMS, "must_understand": 2, "apart": ["acme", "b"]}


# --- The meaning of the golden vectors of the cluster log


CLUSTER_ID = "000102030405060708090a0b0c0d0e0f"
DECLARED: Notation = {
    "cluster_id": CLUSTER_ID,
    "n": 7,
    "previous": 0xA1B2C3D4,
    "must_understand": 0,
    "kind": "tenant",
    "name": "acme",
    "document": '{"quotas":{"edges":40}}',
    "at": T,
    "by": "mara@ops-1",
    "reason": "a new plant",
    "nonce": (1 << 64) - 1,
}
ACTED: Notation = {
    **DECLARED,
    "n": 9,
    "kind": "act",
    "name": "00112233445566ff",
    "document": '{"target":"shard 3"}',
    "by": "mara",
    "origin": "root@ops-1 (sudo by mara)",
    "command": "hub split",
}
"""With the fields that came after the first release."""
SEVERAL: Notation = {
    **ACTED,
    "n": 10,
    "must_understand": 1,
    "kind": "token",
    "name": "press-1",
    "document": '{"scope":"edge"}',
    "command": "hub token add",
    "more": [["token", "press-2", '{"scope":"edge"}'], ["token", "press-3", None]],
}
"""With further facts."""
WITHDRAWN: Notation = {**DECLARED, "n": 8, "document": None, "reason": "", "nonce": 0}
SNAPSHOT: Notation = {
    "cluster_id": CLUSTER_ID,
    "n": 9,
    "crc": 0x01020304,
    "kinds": [
        {
            "kind": "of-a-later-release",
            "last": 3,
            "facts": [{"name": "x", "version": 3, "document": "{}", "at": T, "by": "", "reason": ""}],
        },
        {
            "kind": "tenant",
            "last": 8,
            "facts": [
                {"name": "acme", "version": 7, "document": "{}", "at": T, "by": "mara@ops-1", "reason": "a new plant"},
                {"name": "b", "version": 2, "document": "{}", "at": T, "by": "jo@ops-1", "reason": ""},
            ],
        },
        {"kind": "token", "last": 9, "facts": []},
    ],
    "skipped": [{"n": 5, "why": "cluster/entry/00000000000000000005 is damaged"}],
}
EMPTY: Notation = {"cluster_id": CLUSTER_ID, "n": 0, "crc": 0, "kinds": [], "skipped": []}


# --- What the golden vectors hold of the link between an edge and the hub: every frame


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
PAIR_REPORT: Notation = {
    "frames": [
        {
            "type": "PAIR_REPORT",
            "alone": [[T, T + 9], [T + 20, None]],
            "copies": [["default", "press-2", 0xFEED, T, True, 300], ["default", "press-2", 0xFEED, None, False, 0]],
        },
        {"type": "PAIR_REPORT", "alone": [], "copies": []},
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
