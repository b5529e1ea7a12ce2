"""Two regions: hubs with stores of their own, and links between them."""

from __future__ import annotations

from tests.cloud_hub.fabric import make_batch
from tests.cloud_hub.live import EdgeLog
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.settings import RegionSettings
from weft.network.reload import read_token
from weft.protocols.lane import Lane
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import LaneState
from weft.replication.flow_control import SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.runner import LinkIdentity, LinkSettings

LANE = Lane("default", "press-1", 7, "telemetry")
NODE = LinkIdentity("default", "press-1", 7, "weft")
QUICK = SenderSettings(mark_interval=SECOND // 20, ping_interval=SECOND // 20, lane_retry=SECOND // 20)


def to(url: str, *, token_file: str | None = None, **settings: object) -> dict[str, RegionSettings]:
    """The region `east` at one URL."""
    token = (lambda: None) if token_file is None else (lambda: read_token(token_file))
    link = LinkSettings((url,), token=token, retry_min_s=0.02, retry_max_s=0.2, sender=QUICK)
    return {"east": RegionSettings(link, **{"write_s": 0.05, "settle_s": 0.0, **settings})}  # type: ignore[arg-type]


def log_of(first: int, end: int, *, lane: Lane = LANE, batch: int = 3) -> EdgeLog:
    """An edge's log with records [first, end) of a lane."""
    log = EdgeLog(lane.stream)
    for base in range(first, end, batch):
        log.append(*make_batch(lane, base, min(base + batch, end)))
    return log


def held(hub: Hub, lane: Lane = LANE) -> LaneState:
    """What a hub's state has of a lane."""
    states = [each.state.lanes[lane] for each in hub.sequencers if lane in each.state.lanes]
    return states[0] if states else LaneState()


def has(hub: Hub, records: int, lane: Lane = LANE) -> bool:
    return held(hub, lane).records == RangeSet([(0, records)])


def stored(hub: Hub, lane: Lane = LANE) -> int:
    """Records in a hub's log of a lane's stream, doubled ones included."""
    return sum(each.state.next_offset.get((lane.tenant, lane.stream), 0) for each in hub.sequencers)
