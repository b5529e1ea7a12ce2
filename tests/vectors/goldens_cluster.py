"""The meaning of the golden vectors of the cluster log."""

from __future__ import annotations

from tests.vectors.goldens import T
from tests.vectors.notation import Notation

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
