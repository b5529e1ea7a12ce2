"""Every number, name and order that stands on a disk or goes over a wire.

A failure here means that bytes written by an earlier release would change their meaning. Add, never change: give the
new thing a new number, or the format a new version.
"""

from __future__ import annotations

from enum import ReprEnum

import msgspec
import pytest

from weft.protocols import batch, chunk, chunk_index, lane, link, payloads, segment
from weft.protocols.shard import fold, lane_state, placement, shard_state, snapshot
from weft.storage import cluster_log

ENUMS = {
    batch.Codec: {"NONE": 0, "ZSTD": 1},
    batch.Column: {"HEADERS": 1, "FLAGS": 2, "FLAGS2": 4, "EVENT_TIME": 8},
    batch.Flag: {
        "RETAINED": 1,
        "TOMBSTONE": 2,
        "DUPLICATE_SUSPECTED": 4,
        "PUBLISHED_QOS0": 8,
        "PUBLISHED_QOS2": 16,
        "COPIED_FOR_SESSIONS": 32,
    },
    batch.ClockState: {"UNSYNCED": 0, "SYNCED": 1},
    segment.EntryKind: {
        "END": 0,
        "BATCH": 1,
        "GAP": 2,
        "CLOCK": 3,
        "WHOLE": 4,
        "STREAMS": 5,
        "MOVED": 6,
        "KEPT": 7,
        "OWNER": 8,
        "ORIGINS": 9,
        "FOOTER": 15,
    },
    segment.GapReason: {"BUDGET": 1, "CORRUPTION": 2, "EXPIRED": 3, "OPERATOR": 4, "RENAMED": 5, "ABSENT": 6},
    lane.OriginKind: {"FUNCTION": 1, "SCHEMA": 2},
    chunk.LaneFlag: {"PARTIAL": 1, "RELAY": 2, "LAST_WORD": 4, "UNCOMPARED": 8, "TWO_DISKS": 16},
    chunk.ControlKind: {
        "SCHEMA": 1,
        "CONFIG": 2,
        "RETIRE": 3,
        "ADOPT": 4,
        "SEAL": 5,
        "DROP": 6,
        "CONFLICT": 7,
        "SKIP": 8,
        "FORGET": 9,
        "TIME": 10,
        "APART": 11,
    },
    lane_state.RetiredBy: {"AGE": 1, "OPERATOR": 2},
    lane_state.Missing: {"UNSAID": 0, "NOTHING": 1, "UNKNOWN": 2},
    link.FrameType: {
        "HELLO": 1,
        "WELCOME": 2,
        "REFUSE": 3,
        "DATA": 4,
        "GAP": 5,
        "MARK": 6,
        "ACK": 7,
        "PING": 8,
        "PONG": 9,
        "THROTTLE": 10,
        "PULL": 11,
        "CONFIG": 12,
        "PUBLISH": 13,
        "LANE_OPEN": 14,
        "LANE_OPENED": 15,
        "LANE_CLOSED": 16,
        "CLOCK": 17,
        "ORIGINS": 18,
        "LAST_WORDS": 128,
        "PULLS": 130,
        "PULL_STATE": 131,
        "DOWN_OPEN": 133,
        "MESSAGES": 134,
        "OUTCOMES": 135,
        "CONFIG_DESIRED": 136,
        "CONFIG_STATE": 137,
        "CANARY": 140,
        "CANARY_BACK": 141,
        "THROTTLED": 142,
        "NODE_REPORT": 143,
        "PAIR_REPORT": 144,
    },
    link.ConfigOutcome: {"NONE": 0, "TRIAL": 1, "CONFIRMED": 2, "REFUSED": 3, "ROLLED_BACK": 4},
    link.PullStage: {"SENDING": 1, "DONE": 2, "REFUSED": 3, "WAITING": 4},
    link.OutcomeKind: {"PUBLISHED": 1, "EXPIRED": 2, "REFUSED": 3, "UNKNOWN": 4, "WAITING": 5},
    link.RefuseCode: {
        "VERSION": 1,
        "UNAUTHORISED": 2,
        "IDENTITY_CONFLICT": 3,
        "BAD_HELLO": 4,
        "OVERLOADED": 5,
        "PROTOCOL_ERROR": 6,
        "REDIRECT": 7,
        "UNAVAILABLE": 8,
        "CLOSED": 9,
    },
    payloads.PayloadKind: {"BYTES": 0, "TEXT": 1, "JSON": 2},
}

LAYOUTS = {
    "batch header": (batch.HEADER, "<4sIBBBBIIIIIQqqQq", 72),
    "segment header": (segment.HEADER, "<4sIQQQ", 32),
    "segment entry": (segment._ENTRY, "<IIBxxx", 12),
    "segment entry seed": (segment._SEED, "<QIB", 13),
    "segment trailer": (segment._TRAILER, "<QI4s", 16),
    "chunk header": (chunk._HEADER, "<4sI16sQQIIQ", 56),
    "chunk entry": (chunk._ENTRY, "<IIIIq", 24),
    "chunk trailer": (chunk_index._TRAILER, "<II4s", 12),
    "snapshot header": (snapshot._HEADER, "<4sII", 12),
    "cluster log header": (cluster_log._HEADER, "<4sII", 12),
    "link frame": (link.FRAME_HEAD, "<BI", 5),
    "link lane": (link._LANE, "<I", 4),
}

CONSTANTS = {
    "batch": (batch.MAGIC, batch.VERSION, b"WFB", 1),
    "segment": (segment.MAGIC, segment.VERSION, b"WFS", 2),
    "chunk": (chunk.MAGIC, chunk.VERSION, b"WFC", 1),
    "snapshot": (snapshot.MAGIC, snapshot.VERSION, b"WFN", 2),
    "cluster log entry": (cluster_log.ENTRY_MAGIC, cluster_log.VERSION, b"WFE", 1),
    "cluster log snapshot": (cluster_log.SNAPSHOT_MAGIC, cluster_log.VERSION, b"WFA", 1),
    "segment trailer": (segment.TRAILER_MAGIC, 0, b"WFSE", 0),
    "chunk trailer": (chunk.TRAILER_MAGIC, 0, b"WFCE", 0),
    "link": (b"", link.PROTOCOL_VERSION, b"", 1),
}

ARRAYS = {
    segment.GapNotice: "stream first end reason time",
    segment.ClockNotice: "boot_id monotonic offset error",
    segment.LaneIndex: "stream ranges first_time last_time points",
    segment.KeptLane: "stream next_seq ranges",
    segment.Kept: "lanes",
    segment.Owner: "tenant edge begins",
    segment.Footer: "streams lanes gaps kept sizes moved owner origins clocks",
    segment.Whole: "length",
    segment.StreamEntry: "name next_seq",
    chunk.StreamSection: "tenant stream base_offset count first_time last_time position length crc",
    chunk.GapRange: "first end reason",
    chunk.Mark: "time seq",
    chunk.LaneUpdate: "tenant edge log_id stream epoch ranges gaps mark topics payload origins floor flags renamed_to",
    chunk.Control: "kind tenant edge log_id stream body",
    chunk.ClockUpdate: "tenant edge log_id boot_id monotonic offset error",
    chunk_index._Foot: "header must_understand",
    chunk_index.ChunkHead: "header must_understand fold_level blocks controls extensions",
    chunk_index.BlockPlace: (
        "tenant stream position length crc base_offset count first_time last_time section section_length section_crc"
    ),
    chunk_index.BlockColumns: "edges edge log_id epoch first count mark_time mark_seq rest controls clocks",
    chunk_index.LaneRest: "ranges gaps topics payload origins floor flags renamed_to",
    chunk_index.BlockControl: "kind edge log_id body",
    chunk_index.BlockClock: "edge log_id boot_id monotonic offset error",
    snapshot.SnapshotHead: (
        "cluster_id shard n footer_crc must_understand made_with fold_level created drops streams clocks extensions "
        "splits apart"
    ),
    snapshot.StreamPlace: "stream lanes",
    snapshot.SnapshotPlace: "position length crc",
    lane.Origin: "number kind name version hash",
    chunk_index.LastWord: "time seq renamed_to",
    lane_state.Conflict: "time epoch up_to whole_up_to reason",
    lane_state.Retirement: "time by reason missing",
    lane_state.ConflictBody: "epoch reason",
    shard_state.RetireBody: "by reason missing",
    snapshot._Head: "cluster_id shard n footer_crc must_understand",
    snapshot.StreamSnapshot: "tenant stream next_offset fields named_by skips open_gaps forgotten",
    snapshot.ForgetBody: "by reason tabled",
    snapshot.Forgotten: "time by reason tabled",
    placement.SealBody: "shard bit nonce",
    placement.Split: "shard bit n nonce",
    fold.ApartBody: "apart",
    fold.TimeBody: "time reason",
    snapshot.Skip: "first end time reason runs",
    snapshot.SkipBody: "first end reason runs",
    snapshot.SkippedRun: "edge log_id first end",
    snapshot.LaneSnapshot: (
        "tenant edge log_id stream epoch ranges gaps mark whole_mark pending_marks topics payload origins partial "
        "last_seen retired conflict last_word"
    ),
    snapshot.LogClocks: "tenant edge log_id boots",
    snapshot.BootClock: "boot_id monotonic offset error",
    link.LaneOpen: "lane tenant edge log_id stream epoch ranges topics payload flags origins acknowledged",
    link.LaneOpened: "lane ranges",
    link.LaneClosed: "lane code message advice",
    link.LaneOrigins: "lane origins",
    link.Gap: "lane first end reason",
    link.Marks: "time lanes",
    link.LastWords: "time lanes renamed_to",
    link.ConfigLayer: "name version text",
    link.ConfigDesired: "version digest layers",
    link.ConfigState: "version digest outcome reason active_version active_digest",
    link.DownOpen: "next",
    link.DownMessage: "number accepted left topic payload qos",
    link.Messages: "messages",
    link.MessageOutcome: "number accepted outcome reason",
    link.Outcomes: "outcomes",
    link.Canary: "number",
    link.CanaryBack: "number waited",
    link.Throttled: "wait bytes_per_second reason",
    link.FunctionReport: "stream kinds rows_in rows_out errors last_error",
    link.CopyReport: "tenant edge log_id complete_to is_vouched records",
    link.PairReport: "alone copies",
    link.NodeReport: "used_bytes budget_bytes free_bytes bytes_per_second outage_seconds functions functions_more",
    link.PullRequest: "id stream first end bytes_max",
    link.Pulls: "pulls",
    link.PullState: "id stage log_id ranges records bytes kept_from reason",
    lane_state.OpenGap: "edge log_id first since until others forked",
    link.Ack: "lane ranges",
    cluster_log.Declaration: "cluster_id n previous must_understand kind name document at by reason nonce "
    "origin command more",
    cluster_log._EntryHead: "cluster_id n previous must_understand",
    cluster_log.ClusterSnapshot: "cluster_id n crc must_understand kinds skipped",
    cluster_log._SnapshotHead: "cluster_id n crc must_understand",
    cluster_log.KindSnapshot: "kind last facts",
    cluster_log.Fact: "name version document at by reason",
    cluster_log.Skipped: "n why",
    link.Ping: "sent",
    link.Pong: "sent clock",
    link.Clock: "log_id boot monotonic offset error",
}
"""Packed as arrays: the order is the format."""

MAPS = {
    link.Hello: "version tenant edge log_id boot clock software features stay is_synchronised",
    link.Welcome: "version cluster_id window_bytes batch_bytes_max clock software features mark_interval "
    "record_bytes_max",
    link.Refuse: "version code message advice url",
    link._Greeting: "version",
}
"""Packed as maps: the names are the format."""


SHARDS = [9, 4, 1, 3, 8, 13, 1, 3]
"""Of the edges pi-0 to pi-7 among 16 shards."""


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_enum_numbers(enum: type[ReprEnum]) -> None:
    assert {member.name: member.value for member in enum} == ENUMS[enum]


@pytest.mark.parametrize("name", LAYOUTS)
def test_fixed_layouts(name: str) -> None:
    layout, text, size = LAYOUTS[name]
    assert (layout.format, layout.size) == (text, size)


@pytest.mark.parametrize("name", CONSTANTS)
def test_magics_and_versions(name: str) -> None:
    magic, version, expected_magic, expected_version = CONSTANTS[name]
    assert (magic, version) == (expected_magic, expected_version)


@pytest.mark.parametrize("kind", ARRAYS, ids=lambda kind: kind.__name__)
def test_order_of_packed_arrays(kind: type[msgspec.Struct]) -> None:
    assert kind.__struct_config__.array_like
    assert " ".join(kind.__struct_fields__) == ARRAYS[kind]


@pytest.mark.parametrize("kind", MAPS, ids=lambda kind: kind.__name__)
def test_names_in_packed_maps(kind: type[msgspec.Struct]) -> None:
    assert not kind.__struct_config__.array_like
    assert " ".join(kind.__struct_encode_fields__) == MAPS[kind]


MODULES = (
    batch,
    segment,
    chunk,
    chunk_index,
    link,
    lane_state,
    lane,
    shard_state,
    snapshot,
    fold,
    placement,
    cluster_log,
)


def test_every_struct_of_the_formats_is_listed() -> None:
    found = {
        value
        for module in MODULES
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value is not msgspec.Struct
    }
    # DATA is laid out by hand: a lane number and batches.
    # A lane's state is stored as ``LaneSnapshot``. A pairing is JSON over HTTP.
    assert found - {link.Data, link.PairRequest, link.PairAnswer, lane_state.LaneState} == {*ARRAYS, *MAPS}


def test_the_order_of_the_header_in_a_footer() -> None:
    assert " ".join(chunk.ChunkHeader._fields) == "cluster_id n created shard previous_footer_crc nonce"


def test_the_shard_of_an_edge() -> None:
    """A lane that moved to another shard would be there twice."""
    assert placement.TENANT_EDGE == "tenant-edge"
    assert [placement.shard_of("default", f"pi-{i}", 16) for i in range(8)] == SHARDS


def test_file_names() -> None:
    assert segment.file_name(4096) == "00000000000000004096.seg"
    assert chunk.file_name(7) == "00000000000000000007"
