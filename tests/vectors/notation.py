"""The formats in JSON: what a golden vector, or an example in the documentation, says that its bytes mean.

``decode`` turns bytes into this notation with the decoders under test, ``encode`` turns the notation into bytes with
the encoders. Bytes are hexadecimal text, except keys, which are text, and bytes in packed arrays, which are base64.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any

import msgspec
from crc32c import crc32c

from weft.edge_node.queues.state import Changes, read_changes
from weft.protocols import batch, chunk, link, segment
from weft.protocols.batch import ClockReading, ClockState, Codec, HeaderPairs, HeaderValue
from weft.protocols.chunk_index import ChunkIndex, FoldRules, StreamBlock
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane, Origin
from weft.protocols.link import split_batches
from weft.protocols.shard import snapshot
from weft.protocols.shard.placement import Split
from weft.protocols.shard.shard_state import ShardState
from weft.storage import cluster_log

Notation = dict[str, Any]


def encode(kind: str, meaning: Notation) -> bytes:
    """The bytes of a vector's kind, a folder beside this module (no zstd)."""
    return _ENCODERS[kind](meaning)


def decode(kind: str, data: bytes) -> Notation:
    """The meaning of the bytes; raises what the format's decoder raises."""
    return _DECODERS[kind](data)


def _builtins(value: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _headers(noted: list[Any]) -> HeaderPairs:
    return tuple((name, bytes.fromhex(value["hex"]) if isinstance(value, dict) else value) for name, value in noted)


def _note_header(value: HeaderValue) -> Any:
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def _encode_batch(meaning: Notation) -> bytes:
    records = meaning["records"]
    made = batch.columns_from_lists(
        struct.pack(f"<{len(records)}q", *(record["time"] for record in records)),
        [record["key"].encode() for record in records],
        [bytes.fromhex(record["payload"]) for record in records],
        {i: _headers(record["headers"]) for i, record in enumerate(records) if "headers" in record},
        {i: record["flags"] for i, record in enumerate(records) if "flags" in record},
    )
    clock = ClockReading(meaning["boot_id"], meaning["monotonic"], ClockState[meaning["clock"]])
    return batch.encode(meaning["stream"], meaning["base_seq"], made, clock, origin=meaning.get("origin", 0))


def _decode_batch(data: bytes) -> Notation:
    header = batch.verify(data)
    if header.length != len(data):
        raise Corrupt(f"{len(data) - header.length} bytes follow the batch")
    records = []
    for record in batch.records(data):
        found: Notation = {"time": record.time, "key": record.key.decode(), "payload": record.payload.hex()}
        if record.headers:
            found["headers"] = [[name, _note_header(value)] for name, value in record.headers]
        if record.flags:
            found["flags"] = int(record.flags)
        records.append(found)
    return {
        "stream": header.stream,
        "base_seq": header.base_seq,
        "boot_id": header.boot_id,
        "monotonic": header.monotonic,
        "clock": header.clock.name,
        **({"origin": header.origin} if header.origin else {}),
        **({"codec": header.codec.name} if header.codec is not Codec.NONE else {}),
        "records": records,
    }


_BODIES: dict[str, Any] = {
    "GAP": segment.GapNotice,
    "CLOCK": segment.ClockNotice,
    "STREAMS": dict[int, segment.StreamEntry],
    "KEPT": segment.Kept,
    "OWNER": segment.Owner,
    "WHOLE": segment.Whole,
    "ORIGINS": list[Origin],
    "FOOTER": segment.Footer,
}


def _encode_segment(meaning: Notation) -> bytes:
    header = segment.SegmentHeader(**meaning["header"])
    data, at = segment.encode_header(header), segment.HEADER_BYTES
    for entry in meaning["entries"]:
        kind, at = segment.EntryKind[entry["kind"]], len(data)
        if kind in (segment.EntryKind.BATCH, segment.EntryKind.MOVED):
            body = _encode_batch(entry["body"])
        else:
            body = segment.encode_body(msgspec.convert(entry["body"], _BODIES[kind.name], str_keys=True))
        data += segment.encode_entry_header(header.first_position + at, kind, body) + body
    return data + segment.encode_trailer(at) if meaning["sealed"] else data


def _note(kind: segment.EntryKind, body: bytes) -> Any:
    value = segment.decode_body(kind, body)
    return _builtins(segment.footer_fields(value) if isinstance(value, segment.Footer) else value)


def _decode_segment(data: bytes) -> Notation:
    header = segment.decode_header(data)
    entries: list[Notation] = []
    at, sealed = segment.HEADER_BYTES, False
    while not sealed and (entry := segment.decode_entry(data, at, header.first_position)) is not None:
        body = data[entry.body_start : entry.body_end]
        is_batch = entry.kind in (segment.EntryKind.BATCH, segment.EntryKind.MOVED)
        entries.append({"kind": entry.kind.name, "body": _decode_batch(body) if is_batch else _note(entry.kind, body)})
        if entry.kind is segment.EntryKind.FOOTER:
            sealed = segment.decode_trailer(data) == at
        at = entry.end
    fields = {name: value for name, value in header._asdict().items() if (name, value) != ("version", 1)}
    return {"header": fields, "entries": entries, "sealed": sealed}


def _encode_chunk(meaning: Notation) -> bytes:
    header = chunk.ChunkHeader(**{**meaning["header"], "cluster_id": bytes.fromhex(meaning["header"]["cluster_id"])})
    data, streams = chunk.encode_header(header), []
    for noted in meaning["sections"]:
        section = b"".join(map(_encode_chunk_entry, noted["entries"]))
        fields = {name: value for name, value in noted.items() if name != "entries"}
        crc = crc32c(section)
        streams.append(chunk.StreamSection(**fields, position=len(data), length=len(section), crc=crc))
        data += section
    extensions = {int(number): bytes.fromhex(body) for number, body in meaning["extensions"].items()}
    needs, level = meaning["must_understand"], meaning["fold_level"]
    controls = msgspec.convert(meaning["controls"], list[chunk.Control])
    blocks = {(each["tenant"], each["stream"]): _block(each) for each in meaning["blocks"]}
    index = ChunkIndex(header, level, streams, blocks, controls, extensions)
    tail = chunk.encode_footer(index)[0]
    length = chunk.footer_bytes(tail)
    # Put in afterwards, since no release writes bits that it does not know.
    head = msgspec.msgpack.decode(tail[-length : -chunk.TRAILER_BYTES])
    head[1] = needs
    return data + tail[:-length] + with_trailer(msgspec.msgpack.encode(head))


def with_trailer(head: bytes) -> bytes:
    """The head of a chunk's index with a trailer that fits."""
    return head + struct.pack("<II4s", len(head), crc32c(head), chunk.TRAILER_MAGIC)


def _block(noted: Notation) -> StreamBlock:
    return StreamBlock(
        msgspec.convert(noted["lanes"], list[chunk.LaneUpdate]),
        msgspec.convert(noted["controls"], list[chunk.Control]),
        msgspec.convert(noted["clocks"], list[chunk.ClockUpdate]),
    )


def _encode_chunk_entry(entry: Notation) -> bytes:
    data = _encode_batch(entry["batch"])
    return chunk.encode_entry_header(entry["lane"], entry["skip"], entry["take"], len(data), entry["received"]) + data


def _decode_chunk(data: bytes) -> Notation:
    found = chunk.decode(data)
    sections = []
    for stream in found.footer.streams:
        names = ("tenant", "stream", "base_offset", "count", "first_time", "last_time")
        section: Notation = {name: getattr(stream, name) for name in names}
        section["entries"] = [
            {
                "lane": e.lane,
                "skip": e.skip,
                "take": e.take,
                "received": e.received,
                "batch": _decode_batch(bytes(e.batch)),
            }
            for e in chunk.section_entries(
                stream, data[stream.position : stream.position + stream.length], found.footer.lanes_of(stream)
            )
        ]
        sections.append(section)
    footer = found.footer
    noted = {
        "header": {**found.header._asdict(), "cluster_id": found.header.cluster_id.hex()},
        "must_understand": footer.must_understand,
        "fold_level": footer.fold_level,
        "sections": sections,
    }
    blocks: list[Notation] = [
        {"tenant": tenant, "stream": stream, **{name: _builtins(each) for name, each in block._asdict().items()}}
        for (tenant, stream), block in footer.blocks.items()
    ]
    for lane in (lane for block in blocks for lane in block["lanes"]):
        _leave_out(lane, 13)
    noted["blocks"] = blocks
    noted["controls"] = _builtins(footer.cluster_controls)
    return {**noted, "extensions": {str(number): body.hex() for number, body in footer.extensions.items()}}


_FRAMES: dict[str, Any] = {
    "HELLO": link.Hello,
    "WELCOME": link.Welcome,
    "REFUSE": link.Refuse,
    "GAP": link.Gap,
    "MARK": link.Marks,
    "ACK": link.Ack,
    "PING": link.Ping,
    "PONG": link.Pong,
    "LANE_OPEN": link.LaneOpen,
    "LANE_OPENED": link.LaneOpened,
    "LANE_CLOSED": link.LaneClosed,
    "CLOCK": link.Clock,
    "ORIGINS": link.LaneOrigins,
    "LAST_WORDS": link.LastWords,
    "CONFIG_DESIRED": link.ConfigDesired,
    "CONFIG_STATE": link.ConfigState,
    "DOWN_OPEN": link.DownOpen,
    "MESSAGES": link.Messages,
    "OUTCOMES": link.Outcomes,
    "PULLS": link.Pulls,
    "PULL_STATE": link.PullState,
    "CANARY": link.Canary,
    "CANARY_BACK": link.CanaryBack,
    "THROTTLED": link.Throttled,
    "NODE_REPORT": link.NodeReport,
    "PAIR_REPORT": link.PairReport,
}


def frame(noted: Notation) -> link.Frame:
    """The frame that an entry of a ``link`` notation stands for."""
    fields = {name: value for name, value in noted.items() if name != "type"}
    if noted["type"] == "DATA":
        return link.Data(fields["lane"], b"".join(map(_encode_batch, fields["batches"])))
    kind = _FRAMES[noted["type"]]
    packed = list(fields.values()) if kind.__struct_config__.array_like else fields
    return msgspec.convert(packed, kind)  # type: ignore[no-any-return]


def note_frame(found: link.Frame) -> Notation:
    """The entry of a ``link`` notation for a frame."""
    if isinstance(found, link.Data):
        batches = [_decode_batch(bytes(view)) for _, view in split_batches(found.batches)]
        return {"type": "DATA", "lane": found.lane, "batches": batches}
    name = next(name for name, kind in _FRAMES.items() if isinstance(found, kind))
    fields = {field: _builtins(getattr(found, field)) for field in found.__struct_fields__}
    return {"type": name, **fields}


def _encode_frames(meaning: Notation) -> bytes:
    return b"".join(link.encode_frame(frame(noted)) for noted in meaning["frames"])


def _decode_frames(data: bytes) -> Notation:
    frames, at = [], 0
    while at < len(data):
        found, at = link.decode_frame(data, at)
        frames.append(note_frame(found))
    return {"frames": frames}


def _encode_state(meaning: Notation) -> bytes:
    lists = {
        "streams": msgspec.convert([_listed(each) for each in meaning["streams"]], list[snapshot.StreamSnapshot]),
        "clocks": msgspec.convert(meaning["clocks"], list[snapshot.LogClocks]),
        "splits": msgspec.convert(meaning.get("splits", []), list[Split]),
    }
    known = {name: value for name, value in meaning.items() if name not in {"lanes", "extensions"}}
    extensions = {int(number): base64.b64decode(data) for number, data in meaning["extensions"].items()}
    cluster_id = bytes.fromhex(meaning["cluster_id"])
    head = snapshot.Snapshot(**{**known, **lists, "cluster_id": cluster_id, "extensions": extensions})
    lanes = msgspec.convert([_listed(each) for each in meaning["lanes"]], list[snapshot.LaneSnapshot])
    named = [(Lane(each.tenant, each.edge, each.log_id, each.stream), snapshot.lane_state(each)) for each in lanes]
    return snapshot.encode(head, named)


def _decode_state(data: bytes) -> Notation:
    head, lanes = _decode_snapshot(data)
    rules = FoldRules(head.made_with)
    again = ShardState.decode(data, rules).encode()
    assert _decode_snapshot(again) == (head, lanes), "the state says what its snapshot says"
    assert ShardState.decode(again, rules).encode() == again, "one state has one encoding"
    noted = {
        name: _builtins(value) for name, value in head._asdict().items() if value or name not in {"splits", "apart"}
    }
    streams = [{key: each for key, each in _named(stream).items() if key != "forgotten"} for stream in head.streams]
    named = [_named(msgspec.structs.replace(each, tenant=lane.tenant, stream=lane.stream)) for lane, each in lanes]
    for lane in named:
        _leave_out(lane["last_word"] or [], 2)
    return noted | {"cluster_id": head.cluster_id.hex(), "streams": streams, "lanes": named}


def _leave_out(array: list[Any], name: int) -> None:
    """Remove the name at the end of an array if it is empty: then it is not written either."""
    if array[name:] == [""]:
        del array[name]


def _decode_snapshot(data: bytes) -> tuple[snapshot.Snapshot, list[tuple[Lane, snapshot.LaneSnapshot]]]:
    head, lanes = snapshot.decode(data)
    return head, list(lanes)


def _named(value: msgspec.Struct) -> Notation:
    """An array with the names of its fields."""
    return {name: _builtins(getattr(value, name)) for name in value.__struct_fields__}


def _listed(noted: Notation) -> list[Any]:
    return list(noted.values())


def _encode_cluster(meaning: Notation) -> bytes:
    if "kinds" not in meaning:
        document = None if meaning["document"] is None else meaning["document"].encode()
        noted = {**meaning, "cluster_id": bytes.fromhex(meaning["cluster_id"]), "document": document}
        noted["more"] = [
            cluster_log.NamedFact(kind, name, None if text is None else text.encode())
            for kind, name, text in meaning.get("more", [])
        ]
        return cluster_log.encode_entry(cluster_log.Declaration(**noted))
    state = cluster_log.ClusterState(bytes.fromhex(meaning["cluster_id"]))
    state.n, state.crc = meaning["n"], meaning["crc"]
    state.skipped = tuple(cluster_log.Skipped(**each) for each in meaning["skipped"])
    for kind in meaning["kinds"]:
        facts = [cluster_log.Fact(**{**fact, "document": fact["document"].encode()}) for fact in kind["facts"]]
        state._kinds[kind["kind"]], state._last[kind["kind"]] = {fact.name: fact for fact in facts}, kind["last"]
    return cluster_log.encode_snapshot(state)


def _decode_cluster(data: bytes) -> Notation:
    if data[:3] != cluster_log.SNAPSHOT_MAGIC:
        entry = cluster_log.decode_entry(data)
        document = None if entry.document is None else entry.document.decode()
        more = [[each.kind, each.name, each.document and each.document.decode()] for each in entry.more]
        noted = {**_named(entry), "cluster_id": entry.cluster_id.hex(), "document": document, "more": more}
        return {name: value for name, value in noted.items() if value or name not in ("origin", "command", "more")}
    state = cluster_log.decode_snapshot(data)
    kinds = [
        {
            "kind": kind,
            "last": state.last(kind),
            "facts": [{**_named(fact), "document": fact.document.decode()} for fact in state.facts(kind).values()],
        }
        for kind in state.kinds()
    ]
    skipped = [_named(each) for each in state.skipped]
    return {"cluster_id": state.cluster_id.hex(), "n": state.n, "crc": state.crc, "kinds": kinds, "skipped": skipped}


_ENCODERS: dict[str, Callable[[Notation], bytes]] = {
    "batch": _encode_batch,
    "segment": _encode_segment,
    "chunk": _encode_chunk,
    "shard-state": _encode_state,
    "cluster-log": _encode_cluster,
    "link": _encode_frames,
    "queue-state": lambda meaning: msgspec.msgpack.encode(
        msgspec.json.decode(msgspec.json.encode(meaning), type=Changes)
    ),
}
_DECODERS: dict[str, Callable[[bytes], Notation]] = {
    "batch": _decode_batch,
    "segment": _decode_segment,
    "chunk": _decode_chunk,
    "shard-state": _decode_state,
    "cluster-log": _decode_cluster,
    "link": _decode_frames,
    "queue-state": lambda data: _builtins(read_changes(data)),
}
