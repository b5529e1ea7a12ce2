"""Runs pytest, and each failed test again by itself: ``python -m tests.stage [ARGUMENTS OF PYTEST]``.

On real processes one of many thousand tests fails now and then because the machine was busy. So a test that fails is
run again after all others, in a process of its own, with the same seed, up to ``TRIES_MAX`` times. If it passes then
it is *unsteady*: it is printed with its first failure, and the run is green with at most ``UNSTEADY_MAX`` of them. A
second failure is a fault to find, and so is an unsteady test, with less hurry. Files that all tests together left
behind count as an unsteady test: no run of a test tells whose they are, and no outcome was wrong.

What is wrong whenever it happened once, is never run again: a `tests.support.outcomes.WrongOutcome`.

Two stages of one run share the number of unsteady tests by a file, which the variable ``WEFT_UNSTEADY`` names.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.second_run import plain
from tests.support.outcomes import is_wrong_outcome
from tests.support.slices import SLICE, VARIABLE
from tests.temporary_folder import LEFT_BEHIND

UNSTEADY_MAX = 5
"""Unsteady tests that leave a run green."""
TRIES_MAX = 2
"""How often a failed test is run again."""
SHARED = "WEFT_UNSTEADY"
PROPERTY = ("outcome", "wrong")
"""What the report of a wrong outcome carries."""
LEFT = "files left in the temporary folder"
WIDTH = 80


class Failure(msgspec.Struct):
    """A test that failed."""

    name: str
    reported: str
    """The failure as pytest shows it, with what the test printed."""
    is_final: bool
    """Its outcome was wrong."""


class Failures:
    """A pytest plugin that writes which tests failed, for the process that runs them again."""

    def __init__(self, config: pytest.Config) -> None:
        self._to: str | None = config.getoption("--failures-to")
        self._config = config
        self._found: dict[str, Failure] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Mark the report of a wrong outcome; of the exception itself only its text leaves the worker."""
        report = yield
        if call.excinfo is not None and is_wrong_outcome(call.excinfo.value):
            report.user_properties.append(PROPERTY)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure of a test, of its set-up or its end."""
        if not report.failed:
            return
        name = plain(report.nodeid)
        is_final = PROPERTY in map(tuple, report.user_properties)
        if (before := self._found.get(name)) is not None:
            before.is_final |= is_final
            return
        reports = [report.longreprtext, *(f"--- {title} ---\n{text}" for title, text in report.sections)]
        self._found[name] = Failure(name, "\n".join(reports), is_final)
        self._say(f"\nstage: failed: {name}")

    def _say(self, line: str) -> None:
        """Write a line at once: a stage takes most of an hour, and who watches it can look for the cause meanwhile."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if self._to is not None and terminal is not None and not hasattr(self._config, "workerinput"):
            terminal.write_line(line)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write what failed; a worker leaves that to the process that started it."""
        if self._to is not None and not hasattr(session.config, "workerinput"):
            Path(self._to).write_bytes(msgspec.json.encode(list(self._found.values())))


def run_pytest(arguments: Sequence[str], environment: dict[str, str]) -> tuple[int, list[Failure]]:
    """Run pytest in a process of its own.

    Returns:
        Its exit status, and the tests that failed: none where pytest itself did not get to its end.
    """
    with tempfile.TemporaryDirectory(prefix="weft-stage-") as folder:
        to = Path(folder, "failures.json")
        # A collection that fails, a worker that is lost, a wrong option are no failed tests: they have other statuses.
        running = subprocess.Popen([sys.executable, "-m", "pytest", f"--failures-to={to}", *arguments], env=environment)
        before = signal.signal(signal.SIGTERM, lambda number, _: running.send_signal(number))
        while (status := _status(running)) is None:
            pass
        signal.signal(signal.SIGTERM, before)
        failures = msgspec.json.decode(to.read_bytes(), type=list[Failure]) if to.exists() else []
    return status, failures


def _status(running: subprocess.Popen[bytes]) -> int | None:
    """Return the exit status of a process, None at a Ctrl-C: it has that as well, and says what it did until then."""
    try:
        return running.wait()
    except KeyboardInterrupt:
        return None


def again(failures: Sequence[Failure]) -> list[Failure]:
    """Run failed tests again, each by itself.

    Returns:
        Those that never passed.
    """
    # Options of the stage, such as the file of what passed, are not those of a single test.
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    environment[VARIABLE] = str(SLICE)
    failed = []
    for failure in failures:
        for number in range(TRIES_MAX):
            print(f"\nstage: run again, {number + 1} of {TRIES_MAX}: {failure.name}", flush=True)
            status, found = run_pytest([failure.name], environment)
            if status == pytest.ExitCode.OK or any(each.is_final for each in found):
                break
        if status != pytest.ExitCode.OK:
            failed.append(failure)
    return failed


def section(title: str) -> None:
    """Print a head like pytest's."""
    print(f"\n{f' {title} ':=^{WIDTH}}")


def unsteady_before(file: Path | None) -> list[str]:
    """Return the unsteady tests of earlier stages of the run."""
    return file.read_text().splitlines() if file is not None and file.exists() else []


def main(arguments: Sequence[str]) -> int:
    """Run a stage, and return its exit status: that of pytest, or 0 where all that failed was unsteady."""
    status, failures = run_pytest(arguments, dict(os.environ))
    shared = Path(os.environ[SHARED]) if os.environ.get(SHARED) else None
    before = unsteady_before(shared)
    if status == LEFT_BEHIND and len(before) < UNSTEADY_MAX:
        if shared is not None:
            shared.write_text("".join(f"{name}\n" for name in [*before, LEFT]))
        print(f"stage: green, with {LEFT}, which counts as an unsteady test", flush=True)
        return int(pytest.ExitCode.OK)
    if status != pytest.ExitCode.TESTS_FAILED or not failures:
        return status
    final = [each.name for each in failures if each.is_final]
    if final:
        section("wrong outcomes, which are not run again")
        print(*final, sep="\n")
    if len(failures) + len(before) > UNSTEADY_MAX:
        section("not run again")
        print(f"{len(failures)} tests failed, and a run has at most {UNSTEADY_MAX} unsteady ones.")
        return status
    if final:
        return status
    failed = again(failures)
    unsteady = [each for each in failures if each not in failed]
    if shared is not None:
        shared.write_text("".join(f"{name}\n" for name in [*before, *(each.name for each in unsteady)]))
    if unsteady:
        section(f"unsteady tests: failed, and passed when they were run again (at most {UNSTEADY_MAX} a run)")
        for each in unsteady:
            print(f"{each.name}\n\n{each.reported}\n")
    if failed:
        section("failed again")
        print(*(each.name for each in failed), sep="\n")
        return status
    print(f"stage: green, with unsteady tests: {len(unsteady)}", flush=True)
    return int(pytest.ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
