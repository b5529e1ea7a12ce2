"""An AMQP client has queues do much; the acknowledgements of others wait no longer than for its turns."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient
from tests.hostile.queue_attacks import ATTACKS
from tests.hostile.waits import Waits, at_most
from tests.support import forked
from tests.support.slices import SLICE

pytestmark = [pytest.mark.processes, pytest.mark.search]
UNDISTURBED_S, ATTACK_S = 0.4, 1.5
SETTLE_S = 0.8
LONGEST_S = 0.4
"""Wait that is allowed on a slow, busy machine."""
FACTOR = 10


def attacked(edge: GuardedEdge, good: GoodClient, name: str) -> Waits:
    """Return the waits of the well-behaved client during an attack."""
    with forked.Popen(
        [sys.executable, "-m", "tests.hostile.queue_attacks", name, str(edge.amqp_port), str(ATTACK_S)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        good.take()
        process.communicate("go\n")
    assert process.returncode == 0
    time.sleep(SETTLE_S)  # a wait that is not over counts, too
    waits = good.take()
    least = int((ATTACK_S + SETTLE_S) / LONGEST_S)
    at_most(LONGEST_S, waits.longest if waits.acknowledged >= least else float("inf"), waits)
    return waits


@pytest.mark.parametrize("name", SLICE.some(list(ATTACKS), ci=4))
def test_others_do_not_wait_for_what_one_client_has_queues_do(edge_with_amqp: GuardedEdge, name: str) -> None:
    edge = edge_with_amqp
    with GoodClient(edge, "device") as good:
        time.sleep(UNDISTURBED_S)  # what is measured
        undisturbed = good.take()
        assert attacked(edge, good, name).p99 <= max(FACTOR * undisturbed.p99, LONGEST_S)
