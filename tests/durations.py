"""How long tests took, by file: for people, and so that the workers of a run begin with the longest files.

No run fails by what it took. The table at its end shows what has grown.
"""

from __future__ import annotations

import resource
import time
from collections import defaultdict

import pytest

FILES = 25
"""Files in the table."""
UNLISTED_S = 1.0
"""What a file that is not listed below is thought to take."""
QUICK_S = {
    "tests/hostile/test_links.py": 40,
    "tests/edge_node/sources/test_opcua_source.py": 12,
    "tests/spark_sinks/completeness/test_windows.py": 28,
    "tests/functions/test_python.py": 27,
    "tests/cloud_hub/api/test_history.py": 26,
    "tests/cloud_hub/regions/test_history.py": 24,
    "tests/spark_sinks/test_audit.py": 21,
    "tests/edge_node/sources/test_modbus_source.py": 20,
    "tests/spark_sinks/source/test_moving.py": 20,
    "tests/edge_node/servers/mqtt/test_connection.py": 19,
    "tests/spark_sinks/sinks/delta/test_append.py": 18,
    "tests/hostile/test_http.py": 17,
    "tests/cloud_hub/test_clock.py": 17,
    "tests/spark_sinks/pipelines/test_check.py": 17,
    "tests/functions/test_python_worker.py": 16,
    "tests/spark_sinks/test_read.py": 16,
    "tests/spark_sinks/pipelines/test_commands.py": 16,
    "tests/storage/object_store/test_conformance.py": 16,
    "tests/weft/mistakes/test_mistakes.py": 15,
    "tests/conformance/test_qos.py": 15,
    "tests/cloud_hub/test_histories.py": 14,
    "tests/spark_sinks/sinks/stream/test_task.py": 14,
    "tests/spark_sinks/source/test_hub.py": 14,
    "tests/replication/test_flow_control.py": 14,
    "tests/proofs/audit/test_audit.py": 14,
    "tests/storage/segment_log/test_commit.py": 13,
    "tests/interop/test_clients.py": 12,
    "tests/spark_sinks/source/test_tables.py": 12,
    "tests/spark_sinks/completeness/test_watermark.py": 11,
    "tests/spark_sinks/sinks/stream/test_sink.py": 11,
    "tests/cloud_hub/regions/test_regions.py": 10,
    "tests/protocols/test_batch.py": 9,
    "tests/replication/test_runner.py": 8,
    "tests/architecture/test_depth.py": 10,
    "tests/architecture/test_runs.py": 18,
    "tests/edge_node/sessions/test_shared_crash.py": 7,
    "tests/durability/test_full_disk.py": 7,
}
"""Files whose quick tests take longest -> seconds. From the table of a run; a file that moves needs no line here."""
SLOW_S = {
    "tests/deploy/test_debian_package.py": 260,
    "tests/end_to_end/test_schedulers.py": 200,
    "tests/cloud_hub/console/test_console.py": 180,
    "tests/hostile/test_links.py": 130,
    "tests/hostile/test_tables_of_others.py": 149,
    "tests/end_to_end/test_engines.py": 145,
    "tests/cloud_hub/test_histories.py": 130,
    "tests/end_to_end/test_demo.py": 110,
    "tests/spark_sinks/pipelines/test_run.py": 102,
    "tests/weft/test_hub_configs.py": 95,
    "tests/cloud_hub/tables/test_crashes.py": 90,
    "tests/end_to_end/test_storms.py": 84,
    "tests/weft/test_hub_tables.py": 84,
    "tests/cloud_hub/test_quotas.py": 83,
    "tests/hostile/test_steps.py": 80,
    "tests/weft/test_rename.py": 79,
    "tests/spark_sinks/test_own_session.py": 77,
    "tests/edge_node/status/test_pages.py": 75,
    "tests/weft/test_distributions.py": 69,
    "tests/spark_sinks/runtime/test_waiting.py": 56,
    "tests/conformance/test_sessions.py": 48,
    "tests/conformance/test_restart.py": 47,
    "tests/spark_sinks/sinks/delta/test_append.py": 44,
    "tests/conformance/test_wills.py": 43,
    "tests/interop/test_clients.py": 41,
    "tests/cloud_hub/test_pulls.py": 37,
}
"""The same of their slow tests, which tests/rotation.py deals out."""
SEARCHES_S = {
    "tests/spark_sinks/cluster/test_reading.py": 188,
    "tests/spark_sinks/completeness/test_event_time_kills.py": 134,
    "tests/spark_sinks/completeness/test_event_time.py": 110,
    "tests/spark_sinks/cluster/test_pipelines.py": 106,
    "tests/end_to_end/test_pages.py": 102,
    "tests/bench/test_benchmarks.py": 71,
    "tests/spark_sinks/sinks/test_delivery.py": 59,
    "tests/spark_sinks/pipelines/shipped/test_kills.py": 50,
    "tests/spark_sinks/sinks/delta/test_kills.py": 46,
    "tests/conformance/test_abuse_bounds.py": 30,
    "tests/spark_sinks/test_delta_spark.py": 16,
    "tests/spark_sinks/completeness/test_window_kills.py": 14,
}
"""Files whose slow tests all have turns of their own -> seconds of those that one commit makes."""


def expected_s(file: str, slow: bool) -> float:
    """Return how long a worker is expected to be busy with a file.

    Args:
        slow: the run makes slow tests, not quick ones.
    """
    return (SLOW_S | SEARCHES_S if slow else QUICK_S).get(file, UNLISTED_S)


class Durations:
    """A pytest plugin for the process that starts the workers."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tests: defaultdict[str, int] = defaultdict(int)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add set-up, call and end of a test to its file."""
        file = report.nodeid.partition("::")[0]
        self._seconds[file] += report.duration
        self._tests[file] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the longest files, and what the whole run took."""
        if len(self._seconds) > FILES:
            terminalreporter.section(f"slowest {FILES} files")
            for file in sorted(self._seconds, key=self._seconds.__getitem__, reverse=True)[:FILES]:
                terminalreporter.line(f"{self._seconds[file]:7.1f}s {self._tests[file]:5d} tests  {file}")
        spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        processor_s = sum(each.ru_utime + each.ru_stime for each in spent)
        clock_s = time.monotonic() - self._began
        # The Java of a killed driver, for one, is not in it: its parent did not wait for it.
        terminalreporter.line(f"at least {processor_s:.0f} s of processor time, {clock_s:.0f} s on the clock")
