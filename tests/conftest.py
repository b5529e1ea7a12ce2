"""With ``pytest -n N --dist=loadgroup`` N processes run the tests: those of one file in one of them, in order.

So do the files of a folder whose tests share what is dear to start. (From ``addopts`` the option reaches no worker.)
"""

from __future__ import annotations

import itertools
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.second_run import SecondRun
from tests.temporary_folder import TemporaryFolder
from weft.demo import fabric

HERE = Path(__file__).parent
TOGETHER = ("interop", "spark_sinks")
PORTS = range(20_000, 32_000)

# A slow or busy machine is no fault: what takes too long is ended by pytest's timeout.
settings.register_profile("weft", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("weft")
# ./run nightly: many more examples wherever a test does not say how many, and other ones each time.
settings.register_profile("nightly", settings.get_profile("weft"), max_examples=2000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--passed-to", metavar="FILE", help="write the names of the tests that passed to FILE")
    parser.addoption("--not-again", metavar="FILE", help="leave out tests of FILE, except those that start Spark")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Each process draws from ports of its own: a port must stay free while the node that has it is down.

    The first process, which starts the others, makes the temporary folder of all.
    """
    config.pluginmanager.register(SecondRun(config))
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if worker:
        ports = PORTS[int(worker) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]
        fabric._candidates = itertools.cycle(random.sample(ports, len(ports)))
    else:
        config.pluginmanager.register(TemporaryFolder(config))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(HERE)
        item.add_marker(pytest.mark.xdist_group(path.parts[0] if path.parts[0] in TOGETHER else str(path)))


@pytest.fixture(autouse=True)
def logging_stays_on() -> Iterator[None]:
    """A test that turns logging off and does not turn it on again makes others fail, far from the cause."""
    yield
    left, logging.root.manager.disable = logging.root.manager.disable, logging.NOTSET
    assert left == logging.NOTSET, "this test left logging disabled: call logging.disable(logging.NOTSET) at its end"
