"""A real node on a real disk, killed at any moment: what it confirmed is in its queue, and what was acknowledged for
certain is not."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.slices import SLICE

ROOT = Path(__file__).parents[3]
KILLS = SLICE.amount(ci=3, night=12)
CONFIG = """
node: n
data_dir: {folder}/data
http: null
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}, amqp: {{bind: "127.0.0.1:0"}}}}
disk: {{budget: 64MiB}}
"""


def run(config: Path, life: int, seconds: float, chance: random.Random) -> list[list[str]]:
    """Run the node, and kill it after a while; without a while it empties its queue and ends."""
    command = [sys.executable, "-m", "tests.edge_node.queues.killed_node", str(config), str(life)]
    with forked.Popen([*command, "work" if seconds else "drain"], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines: list[bytes] = []
        if seconds:
            while process.stdout.readline() not in {b"started\n", b""}:
                pass
            until = time.monotonic() + seconds
            while time.monotonic() < until or sum(line.startswith(b"confirmed") for line in lines) <= 50:
                lines.append(process.stdout.readline())
                assert lines[-1], "it must not end by itself"
            process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    return [line.decode().split() for line in lines if line.endswith(b"\n")]


@pytest.mark.search
@pytest.mark.processes
def test_nothing_confirmed_is_lost_and_what_comes_again_is_flagged(tmp_path: Path) -> None:
    config, chance = tmp_path / "edge.yaml", random.Random(SLICE.seed)
    config.write_text(CONFIG.format(folder=tmp_path))
    confirmed, got, acknowledged, done = set[str](), set[str](), set[str](), set[str]()
    for life in range(1, KILLS + 2):
        reported = run(config, life, chance.uniform(0.1, 0.5) if life <= KILLS else 0, chance)
        newest: tuple[int, ...] = (0, 0)
        for words in reported:
            if words[0] == "got":
                name, flagged = words[1], words[2] == "1"
                assert name not in done, "it was acknowledged, and the log knew it"
                assert flagged or name not in got, f"{name} came before"
                if not flagged:
                    place = tuple(map(int, name.split("/")))
                    assert place > newest, "in order of receipt"
                    newest = place
                got.add(name)
            elif words[0] == "confirmed":
                confirmed.add(words[1])
            elif words[0] == "acknowledged":
                acknowledged.add(words[1])
            elif words[0] == "done":
                done.add(words[1])
    assert len(confirmed) > 50 * KILLS
    assert done
    assert confirmed <= acknowledged, "the last run has taken all that was left"
