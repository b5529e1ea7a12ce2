"""Runs of records of different times, as functions append them."""

from __future__ import annotations

import itertools
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import commit_all, open_log
from weft.protocols.batch import CLOCK_STEP_NS_MAX, ClockState, decode_header, records
from weft.storage.segment_log import pending

TIMES = st.lists(st.integers(0, 10 * CLOCK_STEP_NS_MAX), min_size=1, max_size=30)


@given(runs=st.lists(TIMES, min_size=1, max_size=4), is_synced=st.booleans(), records_max=st.sampled_from([3, 65_536]))
@settings(max_examples=100, deadline=None)
def test_every_record_keeps_its_time(runs: list[list[int]], is_synced: bool, records_max: int) -> None:
    disk = FakeFileSystem()
    log = open_log(disk)
    with_state = log._state.queue._clock_reading()._replace(state=ClockState(is_synced))
    log._state.queue._clock_reading = lambda: with_state
    with mock.patch.object(pending, "BATCH_RECORDS_MAX", records_max):
        stream = log.stream("out")
        for times in runs:
            log.append(stream, 10**18, [b"k"] * len(times), [b"%d" % time for time in times], times=times)
            log.append(stream, 10**18, [b"k"], [b"now"])
        commit_all(log)
    found = []
    for data in log.read(stream, 0, 1 << 20):
        header = decode_header(data)
        own = [record.time for record in records(data)]
        assert own == sorted(own)
        assert len(own) <= records_max
        if not is_synced:
            assert all(after - first <= CLOCK_STEP_NS_MAX for first, after in itertools.pairwise(own))
        assert (header.first_time, header.last_time) == (own[0], own[-1])
        found += [(record.time, record.payload) for record in records(data)]
    assert found == [each for times in runs for each in [*((time, b"%d" % time) for time in times), (10**18, b"now")]]


def test_a_mark_knows_the_oldest_of_them() -> None:
    log = open_log(FakeFileSystem())
    stream = log.stream("out")
    log.append(stream, 100, [b"k"] * 3, [b"x"] * 3, times=[50, 40, 60])
    assert log.mark(stream, 100) == (39, 0)
    commit_all(log)
    assert log.mark(stream, 100) == (100, 3)
