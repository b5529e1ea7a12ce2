"""Clean Debian systems in a folder, made by ``debootstrap`` once and copied for each test; also booted ones."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.images.tree import MACHINES
from tests.support.third_party import MAKE_S_MAX, Attempt, Package
from tests.support.waiting import PATIENCE_S, wait_until

_MOUNTS = 'mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev"'


class DebianRoot:
    """A system in a folder. Commands in it have the processes, devices and network of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *command: str, user: str | None = None, answer: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as root or another user."""
        as_user = () if user is None else ("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups")
        return subprocess.run(
            self._inside((*as_user, *command)),
            input=answer,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
        )

    def did(self, *command: str, user: str | None = None, answer: str = "") -> str:
        """Run a command that must succeed, and return its output."""
        done = self.run(*command, user=user, answer=answer)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def service(self, unit: Mapping[str, str], **options: Any) -> subprocess.Popen[str]:
        """Start a unit's command as systemd would: user, umask, environment, folders, rights, and a read-only system.

        ``ProtectSystem=strict`` is a mount; filters of system calls are systemd's own and left out.
        """
        state = f"/var/lib/{unit['StateDirectory']}"
        rights = ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--init-groups")
        words = (
            "setpriv",
            f"--reuid={unit['User']}",
            f"--regid={unit['Group']}",
            *rights,
            "env",
            "-i",
            "PATH=/usr/bin:/bin",
            *unit.get("Environment", "").split(),
            *unit["ExecStart"].split(),
        )
        writable = f'mount --rbind "$1" "$1" && mount --bind "$1{state}" "$1{state}" && mount -o remount,bind,ro "$1"'
        command = self._inside(words, f"{writable} && {_MOUNTS} && umask {unit['UMask']}")
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)

    def _inside(self, words: Sequence[str], mounts: str = _MOUNTS) -> list[str]:
        script = f'{mounts} && folder=$1 && shift && exec chroot "$folder" "$@"'
        return ["unshare", "--mount", "bash", "-c", script, "-", str(self.folder), *words]


class BootedDebian(DebianRoot):
    """A system in a folder, with its own systemd, that ``systemd-nspawn`` runs. The network is this machine's."""

    def __init__(self, folder: Path, leader: int) -> None:
        super().__init__(folder)
        self._leader = leader

    def _inside(self, words: Sequence[str], _mounts: str = _MOUNTS) -> list[str]:
        root = f"--root=/proc/{self._leader}/root"
        return ["nsenter", f"--target={self._leader}", "--mount", "--uts", "--ipc", "--pid", root, "--wd=/", *words]


class Debian(Package):
    """A clean Debian system, made by ``debootstrap``: ``SUITE PACKAGE ...``, or ``SUITE/ARCHITECTURE PACKAGE ...``."""

    needs = ("debootstrap", "unshare", "setpriv", "chroot")
    INSTALLED = ("adduser", "ca-certificates", "tzdata")
    """What a Debian system has besides its smallest variant, and the package wants: no test waits for a mirror."""

    def obtain(self, seconds: float = MAKE_S_MAX) -> Path:
        if os.geteuid() != 0:
            raise LookupError("a Debian root needs root")
        return super().obtain(seconds)

    def make(self, attempt: Attempt) -> None:
        mirror = _mirror()
        if mirror is None:
            raise LookupError("this machine is not Debian, or its sources name no mirror")
        system, *packages = self.name.split()
        suite, _, architecture = system.partition("/")
        options = ["--variant=minbase", f"--include={','.join((*packages, *self.INSTALLED))}"]
        if architecture:
            _is_run_here(architecture)
            options.append(f"--arch={architecture}")
        attempt.run("debootstrap", *options, suite, str(attempt.folder), mirror)
        for archive in (attempt.folder / "var/cache/apt/archives").glob("*.deb"):
            archive.unlink()


def _is_run_here(architecture: str) -> None:
    """Raise LookupError unless the kernel starts programs of the architecture, also below another root."""
    handler = Path(f"/proc/sys/fs/binfmt_misc/qemu-{MACHINES[architecture]}")
    if not handler.exists() or "F" not in handler.read_text().partition("flags:")[2].split("\n")[0]:
        advice = "Debian: apt install qemu-user-static binfmt-support"
        raise LookupError(f"the kernel of this machine starts no programs of {architecture} ({advice})")


def _mirror() -> str | None:
    """Return the first archive of this machine's apt that is no extra one."""
    places = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    named = [path for path in places if path.suffix in (".list", ".sources") and path.is_file()]
    text = "\n".join(path.read_text() for path in named)
    found = re.findall(r"^(?:URIs: *|deb +(?:\[[^]]*\] *)?)(https?://\S+)", text, re.MULTILINE)
    return next((each for each in found if "/debian" in each or "/ubuntu" in each), None)


def _suite() -> str:
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "unknown")
    return "unknown"


PYTHON = os.path.realpath("/usr/bin/python3").rpartition("/")[2]
DEBIAN = Debian(f"{_suite()} {PYTHON}")
WITH_SYSTEMD = Debian(f"{_suite()} {PYTHON} systemd-sysv dbus")
OF_ARM64 = Debian(f"{_suite()}/arm64 {PYTHON}")
"""Its programs are run by the emulator that the kernel knows for them."""


def debian_root(folder: Path, kind: Debian = DEBIAN) -> DebianRoot:
    """Return a new system of this machine's release.

    Raises:
        LookupError: it cannot be made here; the sentence says why.
    """
    target = folder / "debian"
    subprocess.run(["cp", "-a", "--reflink=auto", str(kind.obtain()), str(target)], check=True)
    # dpkg syncs thousands of files one by one; on a busy disk that takes minutes, and no test cuts its power.
    (target / "etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")
    return DebianRoot(target)


@contextlib.contextmanager
def booted_debian(folder: Path) -> Iterator[BootedDebian]:
    """Boot a new system of this machine's release, and shut it down at the end.

    Raises:
        LookupError: it cannot be made or booted here; the sentence says why.
    """
    if shutil.which("systemd-nspawn") is None:
        raise LookupError("systemd-nspawn is not installed (Debian: apt install systemd-container)")
    root = debian_root(folder, WITH_SYSTEMD).folder
    # Of the machine's systemd, if it runs, nothing is asked: neither a scope nor a registration.
    command = ["systemd-nspawn", f"--directory={root}", "--boot", "--register=no", "--keep-unit", "--console=pipe"]
    with (folder / "console").open("wb") as console:
        machine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
    try:
        wait_until(lambda: machine.poll() is not None or _has_booted(root, machine.pid), PATIENCE_S)
        if machine.poll() is not None:
            raise LookupError(f"systemd-nspawn does not boot here: {(folder / 'console').read_text()[-500:]}")
        yield BootedDebian(root, _leader(machine.pid))
        machine.terminate()
        machine.wait(PATIENCE_S)
    finally:
        machine.kill()
        machine.wait()


def _has_booted(root: Path, nspawn: int) -> bool:
    try:
        said = BootedDebian(root, _leader(nspawn)).run("systemctl", "is-system-running").stdout
    except (OSError, ValueError):
        return False
    return said.strip() in ("running", "degraded")


def _leader(nspawn: int) -> int:
    """Return the process that is the first one in the booted system."""
    (leader,) = Path(f"/proc/{nspawn}/task/{nspawn}/children").read_text().split()
    return int(leader)
