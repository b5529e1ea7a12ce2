"""Sender and receiver against each other under any policy, which changes while they run."""

from __future__ import annotations

from datetime import time
from zoneinfo import ZoneInfo

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from tests.replication.model import ModelHub, ModelLog
from tests.replication.test_pair import LANES, Replication
from weft.replication.flow_control import ReceiverSettings, SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.policy import HOLES_MAX, DayWindow, Order, PolicyRules, SendPolicy, StreamWindows

WINDOWS = StreamWindows(
    ("a*", "machine*"),
    (DayWindow(time(22, 13, 20), time(22, 13, 24)), DayWindow(time(22, 13, 27), time(22, 14))),
    ZoneInfo("UTC"),
)
"""The model's clock begins at 22:13:20."""
policies = st.builds(
    PolicyRules,
    order=st.sampled_from([Order.FRESH_FIRST, Order.FRESH_FIRST, Order.STRICT]),
    history_share=st.sampled_from([0.1, 0.5, 0.9]),
    priorities=st.sampled_from([(), (("alarms", 100), ("machine*", 1))]),
    rate=st.sampled_from([0, 0, 3000]),
    every=st.sampled_from([0, 0, 2 * SECOND]),
    schedule=st.sampled_from([(), (WINDOWS,)]),
)


class ReplicationWithPolicy(Replication):
    """The same promises hold as without a policy: all of it, once, and no mark claims what a hole lacks."""

    @initialize(
        window=st.sampled_from([600, 3000, 1 << 20]),
        merge=st.sampled_from([0, 1500]),
        read=st.integers(1, 2000),
        rules=policies,
    )
    def start(self, window: int, merge: int, read: int, rules: PolicyRules) -> None:
        self.receiving = ReceiverSettings(window_bytes=window)
        self.sending = SenderSettings(merge_bytes_max=merge, read_bytes=read, mark_interval=SECOND)
        self.log, self.hub = ModelLog(LANES), ModelHub()
        self.policy = SendPolicy(rules)
        self.epoch = self.now = 0
        self.connect(greeted=True)

    @rule(rules=policies)
    def the_policy_changes(self, rules: PolicyRules) -> None:
        assert self.policy is not None
        self.policy.adopt(rules)

    @rule(is_paused=st.booleans())
    def an_operator_pauses(self, is_paused: bool) -> None:
        assert self.policy is not None
        self.policy.is_paused = is_paused

    @invariant()
    def there_are_few_holes(self) -> None:
        for lane, held in self.hub.records.items():
            lost = self.log.gap_list[lane]
            # A lost range parts a hole in two, and each cut connection may leave one more on the way.
            assert len(held) <= HOLES_MAX + 2 + len(lost) + self.epoch

    seconds_to_drain = 30

    def settle(self) -> None:
        assert self.policy is not None
        self.policy.is_paused = False
        self.policy.adopt(PolicyRules(self.policy.rules.order, rate=3000, every=2 * SECOND))
        super().settle()


TestReplicationWithPolicy = ReplicationWithPolicy.TestCase
TestReplicationWithPolicy.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
