"""Hosts on one machine: network namespaces on one bridge, which can be cut off and slowed down one by one.

All of it is in a user namespace that the storm is started in (``unshare --user --map-root-user --net``), so an ordinary
user may do it, and nothing of it is left behind when its processes have ended.
"""

from __future__ import annotations

import subprocess

BRIDGE_ADDRESS = "10.77.0.1"
"""Address of the namespace that the storm itself, the fleet and the object store are in."""
HOSTS_MAX = 4
NO_CARD = "02:00:00:00:00:99"


def address_of(number: int) -> str:
    """Return the address of a host, which is always the same."""
    return f"10.77.0.{10 + number}"


def run(*command: str) -> None:
    """Run a command, which must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


class Host:
    """A network namespace with one address. A process that keeps it runs until ``close``."""

    def __init__(self, number: int) -> None:
        self.address = address_of(number)
        self._cable = f"host{number}"
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE
        )
        assert self._keeper.stdout is not None
        self._keeper.stdout.readline()
        pid = str(self._keeper.pid)
        self.inside = ["nsenter", "--target", pid, "--net", "--"]
        """Command before one that is to run on the host."""
        run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", pid)
        run("ip", "link", "set", self._cable, "master", "bridge", "up")
        for command in ("link set lo up", f"address add {self.address}/24 dev eth0", "link set eth0 up"):
            run(*self.inside, "ip", *command.split())

    def cut(self) -> None:
        """Let nothing through in either direction: who sends hears nothing, not even a refusal."""
        run("ip", "link", "set", self._cable, "down")

    def mend(self) -> None:
        """Let everything through again, in both directions."""
        run("ip", "link", "set", self._cable, "up")
        run(*self.inside, "ip", "neighbour", "flush", "dev", "eth0", "nud", "permanent")

    def mute(self) -> None:
        """Let nothing out, and all in: what the host sends is for a network card that does not exist."""
        for address in (BRIDGE_ADDRESS, *(address_of(number) for number in range(HOSTS_MAX))):
            run(*self.inside, *f"ip neighbour replace {address} lladdr {NO_CARD} dev eth0 nud permanent".split())

    def close(self) -> None:
        """End the host's namespace."""
        self._keeper.kill()
        self._keeper.wait()


def make_bridge() -> None:
    """Make the bridge that hosts are connected to, in the namespace of the caller."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "bridge", "type", "bridge")
    run("ip", "address", "add", f"{BRIDGE_ADDRESS}/24", "dev", "bridge")
    run("ip", "link", "set", "bridge", "up")
