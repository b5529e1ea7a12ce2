"""What the tests of the broker's state share: a log on the fake disk, a real database, and an owner's thread."""

from __future__ import annotations

import queue
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import Clock, commit_all, open_log
from tests.support.waiting import PATIENCE_S
from weft.bounds import Refusals
from weft.config.streams import State
from weft.edge_node.sessions import broker_state
from weft.edge_node.sessions.broker_state import BrokerState
from weft.edge_node.sessions.records import SessionRecord, StateCounters, StateSettings
from weft.storage.segment_log import LogSettings, SegmentLog

LOG = LogSettings(segment_bytes=1 << 16, budget_bytes=8 << 20, tail_bytes=4000, pending_bytes_max=1 << 20)
SETTINGS = StateSettings(state=State(save_interval_s=3600), reserve_bytes=4096)


class Owner:
    """The owner's thread: callbacks that other threads post wait here until the test runs them."""

    def __init__(self) -> None:
        self._posted: queue.Queue[Callable[[], None]] = queue.Queue()

    def post(self, callback: Callable[[], None]) -> None:
        self._posted.put(callback)

    def run(self) -> None:
        """Run what was posted so far."""
        while not self._posted.empty():
            self._posted.get()()

    def wait_for(self, done: Callable[[], bool]) -> None:
        while not done():
            self._posted.get(timeout=PATIENCE_S)()

    def outcome(self, start: Callable[[Callable[[BaseException | None], None]], None]) -> BaseException | None:
        """Start something that calls back, and wait for what it says."""
        outcomes: list[BaseException | None] = []
        start(outcomes.append)
        self.wait_for(lambda: bool(outcomes))
        return outcomes[0]


@dataclass
class StoredNode:
    """A node's log and state. ``restart`` and ``power_cut`` stand for what happens to nodes."""

    directory: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="weft-state-"))
    disk: FakeFileSystem = field(default_factory=FakeFileSystem)
    settings: StateSettings = SETTINGS
    log_settings: LogSettings = LOG
    owner: Owner = field(default_factory=Owner)
    clock: Clock = field(default_factory=Clock)
    log: SegmentLog = field(init=False)
    state: BrokerState = field(init=False)
    counters: StateCounters = field(init=False)

    def __post_init__(self) -> None:
        weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)
        self.start()

    def start(self, log_id: int = 0xABCD) -> None:
        self.log = open_log(self.disk, self.log_settings, clock=self.clock, log_id=log_id)
        self.counters = StateCounters()
        self.state = BrokerState(
            self.directory,
            self.log,
            self.settings,
            self.counters,
            wall_clock=self.clock.wall,
            post=self.owner.post,
            refusals=Refusals(lambda: self.clock.wall() / 1e9),
        )

    def commit(self) -> None:
        commit_all(self.log)
        self.owner.run()

    def save(self) -> BaseException | None:
        """Fold what is durable into the database."""
        return self.owner.outcome(self.state._compaction.start)

    def kill(self, database_pages: int | None = None) -> None:
        """SIGKILL and start again.

        Args:
            database_pages: what the database finds room for when it recovers; None for no limit.
        """
        self.stop_database()
        self.disk.kill_process()
        with pytest.MonkeyPatch.context() as patch:
            if database_pages is not None:
                create = broker_state._create_tables

                def limited(database: sqlite3.Connection) -> None:
                    create(database)
                    database.execute(f"PRAGMA max_page_count = {database_pages}")

                patch.setattr(broker_state, "_create_tables", limited)
            self.start()

    def stop_database(self) -> None:
        self.state._database.close()
        self.owner = Owner()  # what was posted to a dead process is not heard

    def sessions(self) -> dict[str, SessionRecord]:
        """What recovery found."""
        return {record.client_id: record for record in self.state.journal.recover()}


def record(client_id: str = "pi", **fields: object) -> SessionRecord:
    return SessionRecord(client_id=client_id, version=5, expiry_interval=3600, **fields)  # type: ignore[arg-type]
