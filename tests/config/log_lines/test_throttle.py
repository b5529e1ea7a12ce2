import logging

import pytest

from weft.config.log_lines import Throttle


def test_a_flood_of_lines_is_cut_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    log = logging.getLogger("tests.flood")
    throttle = Throttle(lines_max=3, interval_s=10, clock=lambda: now[0])
    log.addFilter(throttle)
    try:
        for number in range(1003):
            log.warning("closed %d", number)
        now[0] += 9.9
        log.warning("still too early")
        now[0] += 0.1
        log.warning("closed %s", "again: 100%")
        log.warning("and again")
    finally:
        log.removeFilter(throttle)
    assert caplog.messages == [
        "closed 0",
        "closed 1",
        "closed 2",
        "closed again: 100% (1,001 lines before this one were left out)",
        "and again",
    ]
