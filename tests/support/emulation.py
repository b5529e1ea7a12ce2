"""An edge node of another machine: the tree of its image, run by an emulator of its processor (``qemu-user-static``).

The emulator answers the system calls of the node with those of this machine: its files, its sockets, its SIGKILL. Its
own memory counts as the node's, and its code is five to ten times slower than the processor's.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

from deploy.images import tree
from deploy.images.debian import NotHere
from examples.demo.fabric import Service

ROOT = Path(__file__).parents[2]
COPIED_NOT = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "__pycache__")


class EdgeTree:
    """The files of an edge's image.

    Args:
        architecture: Debian's name of it.
    """

    def __init__(self, folder: Path, architecture: str, wheel: Path) -> None:
        self.folder, self.architecture = folder, architecture
        folder.mkdir()
        tree.system(folder, architecture)
        tree.libraries(folder, architecture, "edge")
        tree.weft(folder, wheel)

    def put_into(self, service: Service, is_emulated: bool) -> None:
        """Have a service run from this tree, as a process of the emulator or, where it is this machine's, without."""
        machine = tree.MACHINES[self.architecture]
        if is_emulated:
            runner = [f"qemu-{machine}-static", "-L", str(self.folder)]
        else:
            loader = self.folder / f"lib64/ld-linux-{machine.replace('_', '-')}.so.2"
            runner = [str(loader), "--library-path", str(self.folder / f"usr/lib/{machine}-linux-gnu")]
        service.command = [*runner, str(self.folder / "usr/bin" / tree.interpreter()), "-m", "weft"]
        service.environment = {"PYTHONPATH": str(tree.packages(self.folder))}


def edge_tree(folder: Path, architecture: str, wheel: Path) -> EdgeTree:
    """Make a tree that an emulator runs here.

    Raises:
        LookupError: it cannot be made or run here; the sentence says why.
    """
    emulator = f"qemu-{tree.MACHINES[architecture]}-static"
    if platform.machine() != "x86_64":
        raise LookupError(f"this machine is {platform.machine()}: its own tests are those of its processor")
    if shutil.which(emulator) is None:
        raise LookupError(f"{emulator} is not installed (Debian: apt install qemu-user-static)")
    try:
        return EdgeTree(folder, architecture, wheel)
    except NotHere as error:
        raise LookupError(str(error)) from None


def build_wheel(folder: Path) -> Path:
    """Build Weft's wheel from a copy of this checkout."""
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=COPIED_NOT)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder / "dist"), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel
