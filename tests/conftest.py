"""With ``pytest -n N --dist=loadfile`` N processes run the tests: those of one file in one of them, in order.

So do the files of a folder whose tests share what is dear to start.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import random
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from examples.demo import fabric
from tests import first_imports
from tests.durations import Durations, expected_s
from tests.rotation import Rotation
from tests.searches import Searches
from tests.second_run import SecondRun
from tests.stage import Failures
from tests.support import forked
from tests.support.sealed_logs import seal_all_logs
from tests.support.slices import SLICE
from tests.temporary_folder import TemporaryFolder

TOGETHER = ("tests/architecture/", "tests/interop/", "tests/spark_sinks/cluster/", "tests/spark_sinks/")
"""Folders whose files stay together; the first that fits counts."""
PORTS = range(20_000, 32_000)
WORKER = first_imports.worker()

# A shell without job control has what it starts in the background ignore Ctrl-C, and so whatever that starts in turn:
# processes of tests that are to end by it would not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow or busy machine is no fault: what takes too long is ended by pytest's timeout. Quick tests take the same
# examples each time, so that none fails now and then; searches take those of their slice.
settings.register_profile(
    "weft", settings(), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# ./run nightly: many more examples wherever a test does not say how many, and other ones each time.
settings.register_profile("nightly", settings.get_profile("weft"), max_examples=2000, derandomize=False)
settings.load_profile("nightly" if SLICE.is_night else "weft")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--passed-to", metavar="FILE", help="write the names of the tests that passed to FILE")
    parser.addoption("--failures-to", metavar="FILE", help="write the tests that failed to FILE (tests/stage.py)")
    parser.addoption("--rotate", metavar="FILE", help="of slow tests, make those near the files in FILE, and a quarter")
    parser.addoption("--not-again", metavar="FILE", help="leave out tests of FILE, except those marked java")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Each process draws from ports of its own: a port must stay free while the node that has it is down.

    The first process, which starts the others, makes the temporary folder of all.
    """
    fabric.Service.popen = forked.Popen
    seal_all_logs()
    config.pluginmanager.register(SecondRun(config))
    config.pluginmanager.register(Searches())
    config.pluginmanager.register(Rotation(config))
    config.pluginmanager.register(Failures(config))
    if WORKER is not None:
        number, count = WORKER
        ports = PORTS[number::count]
        fabric._candidates = itertools.cycle(random.sample(ports, len(ports)))
    else:
        config.pluginmanager.register(TemporaryFolder(config))
        config.pluginmanager.register(Durations())


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let pytest's log handlers keep their format.

    Before each phase of a test pytest adds them to the loggers that do not propagate. PySpark's loggers give those
    that are added to them their own, JSON, for good.
    """
    of_pytest: Any = session.config.pluginmanager.get_plugin("logging-plugin")
    for handler in (of_pytest.caplog_handler, of_pytest.report_handler):
        handler.setFormatter = lambda _formatter: None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect with the garbage collector off, and leave what was collected out of its sight for the rest of the run.

    Collection makes a million objects that live until the end: looking through them again and again took a third of
    its processor time, and a tenth of that of small tests.
    """
    gc.disable()
    try:
        # What a second run collects, the first has compiled.
        first = session.config.getoption("--not-again") is None
        if WORKER is not None and first and first_imports.are_of_all(session.config.args):
            first_imports.import_part(*WORKER)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """Gives each process whole files, and all files of a folder of ``TOGETHER``: those that take longest first.

    Those are listed in tests/durations.py, so that all processes end at about one time.
    """

    _in_order = False

    def _assign_work_unit(self, node: Any) -> None:
        if not self._in_order:
            self._in_order = True
            first = sorted(self.workqueue, key=lambda scope: -self._expected_s(self.workqueue[scope]))
            for scope in first:
                self.workqueue.move_to_end(scope)
        super()._assign_work_unit(node)

    def _expected_s(self, tests: Mapping[str, bool]) -> float:
        quick = self.config.getoption("markexpr") == "not slow"
        return sum(expected_s(file, slow=not quick) for file in {test.partition("::")[0] for test in tests})

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in TOGETHER if nodeid.startswith(folder)), str(super()._split_scope(nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one more than there are cores: each worker waits now and then, for a server, a clock or another process.

    More than eight would collect the tests for longer than they save.
    """
    return min(len(os.sched_getaffinity(0)) + 1, 8)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def logging_stays_on() -> Iterator[None]:
    """A test that turns logging off and does not turn it on again makes others fail, far from the cause."""
    yield
    left, logging.root.manager.disable = logging.root.manager.disable, logging.NOTSET
    assert left == logging.NOTSET, "this test left logging disabled: call logging.disable(logging.NOTSET) at its end"
