"""The machine's clocks."""

from __future__ import annotations

import subprocess
import sys

from weft.edge_node.timing import clock_reader, read_boot_id, wall_clock
from weft.protocols.batch import ClockState


def test_readings_go_forward_within_one_boot() -> None:
    read = clock_reader()
    first, second = read(), read()
    assert first.boot_id == second.boot_id
    assert first.monotonic <= second.monotonic
    assert first.state in ClockState


def test_every_process_of_a_boot_sees_the_same_boot() -> None:
    code = "from weft.edge_node.timing import read_boot_id; print(read_boot_id())"
    assert int(subprocess.check_output([sys.executable, "-c", code])) == read_boot_id()


def test_the_wall_clock_is_in_nanoseconds_since_1970() -> None:
    assert 10**18 < wall_clock() < 10**19
