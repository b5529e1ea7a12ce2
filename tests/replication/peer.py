"""A sender alone, whose hub is the test."""

from __future__ import annotations

from tests.replication.model import WALL, ModelLog
from weft.protocols.link import Frame, FrameDecoder, FrameEncoder, Hello, LaneOpen, LaneOpened, Welcome
from weft.replication.events import SenderEvent
from weft.replication.flow_control import SenderSettings
from weft.replication.sender import Sender


class Peer:
    """A sender and the frames that go in and out of it."""

    def __init__(self, log: ModelLog, settings: SenderSettings | None = None) -> None:
        self.sender = Sender(
            log.hello(), 1, settings or SenderSettings(), lambda: WALL, 0, high_watermark=log.high_watermark
        )
        for lane in log.lanes():
            self.sender.open_lane(lane, log.state(lane.lane))
        self._encoder, self._decoder = FrameEncoder(), FrameDecoder()
        hello, *openings = self.heard()
        assert isinstance(hello, Hello)
        assert [opening.lane for opening in openings if isinstance(opening, LaneOpen)] == [1, 2][: len(log.streams)]

    def say(self, *frames: Frame, now: int = 0) -> list[SenderEvent]:
        self.sender.receive_data(self._encoder.encode(list(frames)), now)
        return self.sender.events()

    def heard(self) -> list[Frame]:
        frames: list[Frame] = []
        while data := self.sender.data_to_send():
            frames += self._decoder.decode(data)
        return frames


def welcome(*held: tuple[int, int], window: int = 1 << 20, batch: int = 1 << 20, record: int = 0) -> list[Frame]:
    """The hub takes the link and both lanes, and has ``held`` of the first."""
    taken = Welcome(1, "cluster", window, batch, WALL + 7, "test", record_bytes_max=record)
    return [taken, LaneOpened(1, list(held)), LaneOpened(2, [])]
