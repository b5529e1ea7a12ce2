"""What was written yesterday is read tomorrow: the bytes under ``tests/vectors`` never change their meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.vectors import notation
from weft.protocols import errors
from weft.protocols import link as link_stream

VECTORS = Path(notation.__file__).parent
GOLDEN = sorted(VECTORS.glob("*/*.json"))
REJECT = sorted(VECTORS.glob("*/reject/*.json"))


def name_of(path: Path) -> str:
    return str(path.relative_to(VECTORS).with_suffix(""))


def load(path: Path) -> tuple[bytes, dict[str, Any]]:
    vector = json.loads(path.read_text(encoding="utf-8"))
    return bytes.fromhex("".join(vector["hex"])), vector


@pytest.mark.parametrize("path", GOLDEN, ids=name_of)
def test_golden_bytes_keep_their_meaning(path: Path) -> None:
    data, vector = load(path)
    if path == VECTORS / "link/stream.json":
        found = {"frames": [notation.note_frame(frame) for frame in link_stream.FrameDecoder().decode(data)]}
    else:
        found = notation.decode(path.parent.name, data)
    assert found == vector["meaning"]


@pytest.mark.parametrize("path", [path for path in GOLDEN if not load(path)[1].get("decode_only")], ids=name_of)
def test_the_same_meaning_is_still_written_as_the_same_bytes(path: Path) -> None:
    data, vector = load(path)
    assert notation.encode(path.parent.name, vector["meaning"]) == data


@pytest.mark.parametrize("path", REJECT, ids=name_of)
def test_reject_vectors_are_refused_with_their_error(path: Path) -> None:
    data, vector = load(path)
    with pytest.raises(errors.CodecError) as caught:
        notation.decode(path.parent.parent.name, data)
    assert type(caught.value).__name__ == vector["error"]


@pytest.mark.parametrize("kind", ["batch", "segment", "chunk", "shard-state", "cluster-log", "queue-state", "link"])
def test_every_format_has_vectors_of_both_sorts(kind: str) -> None:
    assert len([path for path in GOLDEN if path.parent.name == kind]) >= 2
    assert len([path for path in REJECT if path.parent.parent.name == kind]) >= 5


@pytest.mark.parametrize("kind", ["batch", "segment", "chunk", "shard-state", "cluster-log", "link"])
def test_every_good_vector_is_refused_when_cut(kind: str) -> None:
    for path in GOLDEN:
        data, vector = load(path)
        if path.parent.name != kind or vector.get("decode_only") or path.stem == "open":
            continue
        for end in range(len(data)):
            try:
                found = notation.decode(kind, data[:end])
            except errors.CodecError:
                continue
            # A file or a stream may end between two entries or frames; then a beginning of it is there, no more.
            assert kind in ("segment", "link")
            part, whole = list(found.values())[-2:], list(vector["meaning"].values())[-2:]
            assert part != whole
