"""RabbitMQ for benchmarks: a fresh node on one core, with a folder, a name and ports of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.brokers import Served, wait_for
from bench.common import SERVER_CORE, pinned
from examples.demo.fabric import free_port

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""The program behind Debian's ``rabbitmq-server``, which insists on a user of its own."""
PLUGINS = "[rabbitmq_amqp1_0]."
ERLANG = "+S 1:1 +sbwt none"
"""One scheduler, for one core, which does not spin while it waits."""


def version() -> str | None:
    """Return such as ``RabbitMQ 3.10.8``; None where it is not installed."""
    if not Path(SERVER).exists() or shutil.which("epmd") is None:
        return None
    places = Path(SERVER).parent.parent.glob("lib/rabbitmq_server-*")
    return next((f"RabbitMQ {place.name.partition('-')[2]}" for place in places), "RabbitMQ")


def environment(folder: Path, port: int, mapper: int) -> dict[str, str]:
    """Return what tells RabbitMQ to keep to its folder and ports."""
    return {
        **os.environ,
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_MNESIA_BASE": str(folder),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "ERL_EPMD_PORT": str(mapper),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG,
    }


@contextmanager
def rabbitmq(directory: Path) -> Iterator[Served]:
    """Run RabbitMQ with AMQP 0-9-1 and 1.0 on one port, on its defaults otherwise; guests are let in."""
    # Erlang takes no long paths for its sockets.
    with tempfile.TemporaryDirectory(prefix="weft-bench-", dir=directory, ignore_cleanup_errors=True) as name:
        folder, port, mapper = Path(name), free_port(), free_port()
        (folder / "plugins").write_text(f"{PLUGINS}\n")
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\nlog.file.level = error\n")
        variables = environment(folder, port, mapper)
        # Erlang would start its port mapper as a daemon that stays.
        names = subprocess.Popen(["epmd", "-port", str(mapper)], env=variables, stderr=subprocess.DEVNULL)
        process: subprocess.Popen[bytes] | None = None
        try:
            with (folder / "output").open("wb") as output:
                process = subprocess.Popen(
                    pinned(SERVER_CORE, [SERVER]), env=variables, stdout=output, stderr=output, start_new_session=True
                )
            wait_for(port, process)
            yield Served(port, process.pid)
        finally:
            if process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # the script and Erlang, which are one group
                process.wait()
            names.kill()
            names.wait()
