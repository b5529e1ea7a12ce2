"""``./run test --changed`` finds the tests that a change can touch, the nearest first."""

from __future__ import annotations

from tests import changed
from tests.durations import UNLISTED_S

LOG, READ = "storage/log.py", "storage/read.py"
OF_LOG, OF_READ, OF_CLI = "tests/storage/test_log.py", "tests/storage/test_read.py", "tests/weft/test_cli.py"
GRAPH = {LOG: {READ}, READ: {OF_READ, OF_CLI}}


def test_tests_of_the_same_room_come_before_those_behind_imports() -> None:
    far = changed.distances([LOG], GRAPH, [LOG, READ, OF_LOG, OF_READ, OF_CLI])
    assert far == {LOG: 0, READ: 1, OF_LOG: 1, OF_READ: 1, OF_CLI: 2}
    chosen = changed.choose(far, seconds=2 * UNLISTED_S)
    assert (chosen.files, chosen.left_out) == ([OF_LOG, OF_READ], [OF_CLI])


def test_a_changed_test_runs_whatever_it_costs() -> None:
    assert changed.choose({OF_CLI: 0}, seconds=0).files == [OF_CLI]


def test_a_test_that_is_gone_does_not_run() -> None:
    assert changed.distances([OF_READ, OF_CLI], GRAPH, [LOG, READ, OF_CLI]) == {OF_CLI: 0}


def test_the_graph_of_this_project() -> None:
    graph = changed.importers(changed.python_files())
    assert "storage/segment_log/log.py" in graph["storage/segment_log/settings.py"]
    assert "tests/architecture/test_changed.py" in graph["tests/changed.py"]
    assert "tests/architecture/test_changed.py" in graph["tests/architecture/conftest.py"]
    assert "tests/architecture/test_tidy.py" in changed.distances(["docs/durability.md"], {}, changed.python_files())
