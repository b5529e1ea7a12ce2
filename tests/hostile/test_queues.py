"""An AMQP client has queues do much; the acknowledgements of others wait no longer than for its turns."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient
from tests.hostile.queue_attacks import ATTACKS
from tests.hostile.waits import at_most
from tests.support import forked
from tests.support.slices import SLICE

pytestmark = [pytest.mark.processes, pytest.mark.search]
ATTACK_S = 1.5
SETTLE_S = 0.8
LONGEST_S = 0.4
"""Wait that is allowed on a slow, busy machine."""


def attack(edge: GuardedEdge, good: GoodClient, name: str) -> None:
    """Make an attack, and look at the waits of the well-behaved client meanwhile."""
    with forked.Popen(
        [sys.executable, "-m", "tests.hostile.queue_attacks", name, str(edge.amqp_port), str(ATTACK_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        good.take()
        process.communicate("go\n")
    assert process.returncode == 0
    time.sleep(SETTLE_S)  # what the attack left to do
    during, last = good.take(), good.take()  # a wait that is not over counts, too
    at_most(LONGEST_S, max(during.longest, last.longest), during, last)


@pytest.mark.parametrize("name", SLICE.some(list(ATTACKS), ci=4))
def test_others_do_not_wait_for_what_one_client_has_queues_do(edge_with_amqp: GuardedEdge, name: str) -> None:
    with GoodClient(edge_with_amqp, "device") as good:
        attack(edge_with_amqp, good, name)
