"""What hubs may hold at the most, over the lives of a node, on a disk that fails and forgets."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Iterator

import pytest

from tests.storage.fakes import MUTATING_CALLS, FakeFileSystem, injected, no_failure
from weft.edge_node.links.high_watermarks import FILE_BYTES_MAX, HUBS_MAX, HubHighWatermarks
from weft.protocols.lane import NodeName

NAME = NodeName("default", "edge-1")
PATH = "/node/links/known-ends"
HUB, OTHER = "00ff", "11ee"


def opened(disk: FakeFileSystem, log_id: int = 7, /, name: NodeName = NAME, **ends: int) -> HubHighWatermarks:
    """A life of the node begins: its log ends so."""
    return HubHighWatermarks(disk, PATH, log_id, ends, name=name)


def give(watermarks: HubHighWatermarks, hub: str, **ends: int) -> None:
    if watermarks.blocks(hub, ends):
        watermarks.record_passed(hub, ends)
    watermarks.raise_to(hub, ends)


@pytest.fixture
def disk() -> FakeFileSystem:
    return FakeFileSystem()


def test_what_was_appended_while_nobody_was_connected_moves_no_high_watermark(disk: FakeFileSystem) -> None:
    give(opened(disk, telemetry=0), HUB, telemetry=50)
    for end in (50, 90, 130):
        assert opened(disk, telemetry=end).get(HUB, "telemetry") == 50


def test_what_a_hub_was_given_is_known_at_once_and_in_the_next_life(disk: FakeFileSystem) -> None:
    watermarks = opened(disk, telemetry=50)
    give(watermarks, HUB, telemetry=70)
    assert watermarks.get(HUB, "telemetry") == 70
    assert opened(disk, telemetry=80).get(HUB, "telemetry") == 80


def test_each_hub_has_high_watermarks_of_its_own(disk: FakeFileSystem) -> None:
    """What a hub that lags is given says nothing of the hub that holds what the log has forgotten."""
    watermarks = opened(disk, telemetry=50)
    give(watermarks, HUB, telemetry=60)
    give(watermarks, OTHER, telemetry=60)
    watermarks = opened(disk, telemetry=60)
    watermarks = opened(disk, telemetry=130)
    give(watermarks, HUB, telemetry=130)
    assert watermarks.get(OTHER, "telemetry") == 60
    watermarks = opened(disk, telemetry=140)
    assert [watermarks.get(hub, "telemetry") for hub in (HUB, OTHER, "never met")] == [140, 60, 50]


def test_a_log_that_lost_its_last_commit_lowers_the_high_watermarks_for_good(disk: FakeFileSystem) -> None:
    opened(disk, telemetry=100)
    opened(disk, telemetry=98)
    assert opened(disk, telemetry=148).get(HUB, "telemetry") == 98
    opened(disk)
    assert opened(disk, telemetry=60).get(HUB, "telemetry") == 0


def test_to_name_what_a_hub_holds_passes_nothing(disk: FakeFileSystem) -> None:
    watermarks = opened(disk, telemetry=50)
    disk.calls.clear()
    give(watermarks, HUB, telemetry=50)
    assert not disk.calls
    assert opened(disk, telemetry=90).get(HUB, "telemetry") == 50


def test_all_streams_of_a_connection_are_passed_with_one_write(disk: FakeFileSystem) -> None:
    watermarks = opened(disk, alarms=3, telemetry=50)
    give(watermarks, HUB, alarms=3, telemetry=51)
    disk.calls.clear()
    give(watermarks, HUB, alarms=9, telemetry=99)
    assert not disk.calls
    again = opened(disk, alarms=9, telemetry=99)
    assert again.get(HUB, "alarms") == 9


def test_a_stream_that_was_declared_later_begins_with_nothing(disk: FakeFileSystem) -> None:
    give(opened(disk, telemetry=0), HUB, telemetry=5)
    opened(disk, telemetry=5)
    watermarks = opened(disk, telemetry=5, alarms=20)
    assert watermarks.get(HUB, "alarms") == 0
    give(watermarks, HUB, telemetry=5, alarms=20)
    assert opened(disk, telemetry=5, alarms=20).get(HUB, "alarms") == 20


def test_the_file_of_another_log_is_replaced(disk: FakeFileSystem) -> None:
    opened(disk, 7, telemetry=50)
    assert opened(disk, 8, telemetry=2).get(HUB, "telemetry") == 2
    assert opened(disk, 8, telemetry=9).get(HUB, "telemetry") == 2


def test_nothing_is_given_past_a_high_watermark_that_blocks(disk: FakeFileSystem) -> None:
    with pytest.raises(ValueError, match="block"):
        opened(disk, telemetry=5).raise_to(HUB, {"telemetry": 6})


def test_nothing_is_passed_after_the_links_were_closed(disk: FakeFileSystem) -> None:
    watermarks = opened(disk, telemetry=5)
    watermarks.close()
    with pytest.raises(OSError, match="closed"):
        give(watermarks, HUB, telemetry=6)
    assert opened(disk, telemetry=9).get(HUB, "telemetry") == 5


def test_what_a_killed_start_left_in_memory_is_durable_after_the_next() -> None:
    for seed in range(40):
        disk = FakeFileSystem()
        give(opened(disk, telemetry=0), HUB, telemetry=50)
        disk.fail = lambda call, path: injected(errno.EIO) if call == "sync_directory" else None
        opened(disk, telemetry=50)
        disk.kill_process()
        opened(disk, telemetry=50)
        assert opened(disk.power_cut(random.Random(seed)), telemetry=90).get(HUB, "telemetry") == 50


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def unusable() -> Iterator[object]:
    disk = FakeFileSystem()
    give(opened(disk, telemetry=5), HUB, telemetry=6)
    whole = bytes(disk.content(PATH))
    yield pytest.param(b"", id="empty")
    for at in range(0, len(whole) - 1, 7):
        yield pytest.param(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], id=f"a bit of byte {at}")
        if at:
            yield pytest.param(whole[:at], id=f"{at} bytes")
    yield pytest.param(bytes(FILE_BYTES_MAX + 1), id="too long")


@pytest.mark.parametrize("content", list(unusable()))
def test_a_damaged_file_is_told_and_begun_anew(
    disk: FakeFileSystem, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    disk.make_directory("/node/links")
    disk.create(PATH).write_at(0, content)
    assert opened(disk, telemetry=90).get(HUB, "telemetry") == 90
    (reported,) = warnings(caplog)
    assert f"{PATH} cannot be used" in reported
    assert opened(disk, telemetry=99).get(HUB, "telemetry") == 90
    assert len(warnings(caplog)) == 1


def test_a_file_that_cannot_be_read_is_told_and_begun_anew(
    disk: FakeFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    opened(disk, telemetry=5)
    disk.fail = lambda call, path: injected(errno.EIO) if call == "read" else None
    assert opened(disk, telemetry=90).get(HUB, "telemetry") == 90
    (reported,) = warnings(caplog)
    assert "cannot be used" in reported


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("failing", ["create", "write_at", "sync", "rename", "sync_directory"])
def test_a_disk_that_takes_nothing_keeps_no_node_from_starting_but_records_from_being_given(
    disk: FakeFileSystem, failing: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    give(opened(disk, telemetry=0), HUB, telemetry=50)
    disk.fail = lambda call, path: injected(number) if call == failing else None
    watermarks = opened(disk, telemetry=50)
    (reported,) = warnings(caplog)
    assert "cannot be written" in reported
    for _ in range(2):
        with pytest.raises(OSError, match="injected"):
            give(watermarks, HUB, telemetry=51)
        assert watermarks.get(HUB, "telemetry") == 50
    disk.fail = no_failure
    give(watermarks, HUB, telemetry=51)
    assert watermarks.get(HUB, "telemetry") == 51


def test_the_file_is_bounded_however_many_hubs_a_node_meets(disk: FakeFileSystem) -> None:
    watermarks = opened(disk, telemetry=5)
    for hub in [*(f"hub-{n}" for n in range(3 * HUBS_MAX)), "x" * (1 << 20)]:
        give(watermarks, hub, telemetry=8)
        assert watermarks.get(hub, "telemetry") == 8
    assert len(disk.content(PATH)) < 1000
    watermarks = opened(disk, telemetry=8)
    assert watermarks.get("hub-0", "telemetry") == watermarks.get("hub-40", "telemetry") == 8


def test_a_power_cut_at_any_call_leaves_the_old_ends_or_says_that_they_were_passed() -> None:
    for seed in range(60):
        disk = FakeFileSystem()
        give(opened(disk, telemetry=0), HUB, telemetry=50)
        watermarks = opened(disk, telemetry=50)
        copies: list[FakeFileSystem] = []

        def before(call: str, path: str, disk: FakeFileSystem = disk, copies: list[FakeFileSystem] = copies) -> None:
            if call in MUTATING_CALLS:
                copies.append(disk.power_cut(random.Random(len(copies) + 100 * seed)))

        disk.fail = before
        give(watermarks, HUB, telemetry=60)
        assert len(copies) > 3
        for copy in copies:
            assert opened(copy, telemetry=70).get(HUB, "telemetry") in {50, 70}
        disk.fail = no_failure
        assert opened(disk.power_cut(random.Random(seed)), telemetry=70).get(HUB, "telemetry") == 70


# --- whether a hub was ever given anything


def test_a_new_log_is_unsent_until_the_first_record_goes(disk: FakeFileSystem) -> None:
    assert opened(disk, telemetry=0).is_unsent
    watermarks = opened(disk, telemetry=50)
    assert watermarks.is_unsent
    watermarks.record_first_send()
    assert not watermarks.is_unsent
    assert not opened(disk.power_cut(random.Random(1)), telemetry=50).is_unsent


def test_a_record_never_goes_before_that_is_durable(disk: FakeFileSystem) -> None:
    opened(disk, telemetry=0)
    watermarks = opened(disk, telemetry=50)
    disk.fail = lambda call, path: injected(errno.EIO) if call == "sync" else None
    with pytest.raises(OSError, match="injected"):
        watermarks.record_first_send()
    assert watermarks.is_unsent


@pytest.mark.parametrize("content", [None, b"", b"00000000 {}\n"])
def test_without_a_sound_file_a_log_with_records_is_not_taken_for_unsent(
    disk: FakeFileSystem, content: bytes | None
) -> None:
    opened(disk, telemetry=0)
    disk.remove(PATH)
    if content is not None:
        file = disk.create(PATH)
        file.write_at(0, content)
        file.close()
    assert not opened(disk, telemetry=50).is_unsent
    # Nor in the next life, whose file says nothing else.
    assert not opened(disk, telemetry=50).is_unsent


def test_what_was_unsent_under_one_name_is_not_so_under_another(disk: FakeFileSystem) -> None:
    opened(disk, telemetry=0)
    other = NodeName("default", "press-2")
    assert not opened(disk, name=other, telemetry=50).is_unsent
    assert not opened(disk, telemetry=50).is_unsent
    opened(disk, telemetry=50).record_new_name(other)
    assert opened(disk, name=other, telemetry=50).is_unsent
    assert not opened(disk, 8, name=other, telemetry=50).is_unsent
