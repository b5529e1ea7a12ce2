from collections.abc import Callable

import pytest

from weft.edge_node.ingest.ingest import BackPressure, Pause


class Disk:
    """The two things that back-pressure asks of a log, in the test's hand."""

    def __init__(self) -> None:
        self.pending_bytes = 0
        self.waiting: list[Callable[[BaseException | None], None]] = []

    def on_durable(self, callback: Callable[[BaseException | None], None]) -> None:
        self.waiting.append(callback)

    def commit(self, left: int, error: BaseException | None = None) -> None:
        self.pending_bytes = left
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback(error)


class Device:
    held = False

    def hold(self, reason: Pause) -> None:
        assert reason is Pause.DISK
        self.held = True

    def release(self, reason: Pause) -> None:
        self.held = False


def test_everybody_is_held_until_half_of_the_bound_is_free() -> None:
    disk, first, second = Disk(), Device(), Device()
    pressure = BackPressure(disk, 100)  # type: ignore[arg-type]
    pressure.join(first)
    disk.pending_bytes = 100
    pressure.appended()
    assert not first.held
    disk.pending_bytes = 101
    pressure.appended()
    pressure.appended()
    pressure.join(second)
    assert first.held
    assert second.held
    assert len(disk.waiting) == 1
    disk.commit(left=51)
    assert first.held
    disk.commit(left=50)
    assert not first.held
    assert not second.held
    assert pressure.pauses == 1


@pytest.mark.parametrize("error", [OSError("disk")])
def test_a_failed_log_holds_nobody(error: OSError) -> None:
    disk, device = Disk(), Device()
    pressure = BackPressure(disk, 100)  # type: ignore[arg-type]
    pressure.join(device)
    disk.pending_bytes = 1000
    pressure.appended()
    assert device.held
    disk.commit(left=1000, error=error)
    assert not device.held


def test_who_has_left_is_not_called() -> None:
    disk, device = Disk(), Device()
    pressure = BackPressure(disk, 100)  # type: ignore[arg-type]
    pressure.join(device)
    pressure.leave(device)
    pressure.leave(device)
    disk.pending_bytes = 1000
    pressure.appended()
    assert not device.held
