"""A process killed in the middle of a commit: at every byte of it, what is left fits together."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests.edge_node.sessions.store.helpers import StoredNode, record
from tests.storage.segment_log.helpers import put
from weft.protocols.batch import Flag, records
from weft.protocols.mqtt.encoder import PUBACK
from weft.protocols.mqtt.packets import Will

STEP_BYTES = 7
GONE = Will(b"t", b"gone", 1)


def contents(node: StoredNode, stream: int) -> list[bytes]:
    return [each.payload for data in node.log.read(stream, 0, 1 << 20) for each in records(data)]


def commit_and_cut(node: StoredNode) -> Iterator[int]:
    """Make the next commit, and restart the node after each prefix of it. Yield the prefixes' lengths."""
    start = node.log._state.segments[-1].end
    node.log.committer.run_once()
    end = node.log._state.segments[-1].end
    path = node.log._state.segments[-1].path
    node.stop_database()
    disk, directory = node.disk, node.directory
    for cut in [*range(start, end, STEP_BYTES), end]:
        left = copy.deepcopy(disk)
        left.kill_process()
        content = left.content(path)
        content[cut:] = bytes(len(content) - cut)
        node.disk, node.directory = left, tempfile.mkdtemp(prefix="weft-state-")
        shutil.copytree(directory, node.directory, dirs_exist_ok=True)
        node.start()
        yield cut - start
        node.stop_database()
        shutil.rmtree(node.directory)


async def test_at_every_byte_the_journal_and_the_records_agree() -> None:
    node = StoredNode()
    one, two = node.log.stream("one"), node.log.stream("two")
    node.state.journal.opened(record())
    put(node.log, one, b"before")
    node.save()
    put_first = node.log.append(two, 1, [b"t"], [b"of another client"])
    assert put_first == 0
    with node.state.journal.together():
        node.log.append(one, 1, [b"t"], [b"once"], None, {0: int(Flag.PUBLISHED_QOS2)})
        node.log.append(two, 1, [b"t"] * 2, [b"at least once", b"twice"])
        node.state.journal.received("pi", [5])
        node.state.journal.published("pi", PUBACK + b"\0\6" + PUBACK + b"\0\7")
    outcomes = set()
    for cut in commit_and_cut(node):
        known = {packet_id for packet_id in (5,) if packet_id in node.sessions()["pi"].received}
        for packet_id, payload in ((5, b"once"), (6, b"at least once"), (7, b"twice")):
            stored = payload in contents(node, one) + contents(node, two)
            recognised = await node.state.resent.recognise("pi", packet_id, b"t", payload)
            assert stored == (packet_id in known or recognised), (cut, payload)
            assert not await node.state.resent.recognise("pi", packet_id, b"t", b"of another client")
            outcomes.add((payload, stored, recognised))
    # All of it was seen: nothing there; the record alone; both.
    assert {(b"once", False, False), (b"once", True, False)} <= outcomes
    assert {(b"twice", False, False), (b"twice", True, True)} <= outcomes


@pytest.mark.parametrize("expiry", [0, 3600])
def test_at_every_byte_a_will_is_in_the_log_or_still_to_be_published(expiry: int) -> None:
    node = StoredNode()
    one, two = node.log.stream("one"), node.log.stream("two")
    session = record(will=GONE)
    session.expiry_interval = expiry
    node.state.journal.opened(session)
    put(node.log, one, b"before")
    node.save()
    with node.state.journal.together():
        node.log.append(one, 1, [b"t"], [b"gone"])
        node.log.append(two, 1, [b"t"], [b"gone"])
        node.state.journal.will_published("pi")
        if not expiry:
            node.state.journal.ended("pi")
    outcomes = set()
    for cut in commit_and_cut(node):
        found = node.sessions().get("pi")
        stored = sum(b"gone" in contents(node, stream) for stream in (one, two))
        if expiry:
            assert found is not None
        if stored == 2:
            # A kill before the journal's part of the commit is whole would have lost the records too.
            assert (found is None) if not expiry else (found is not None and found.will is None), cut
        else:
            assert found is not None
            assert (found.client_id, found.will, found.expiry_interval) == ("pi", GONE, expiry), cut
        outcomes.add(stored)
    assert {0, 2} <= outcomes
