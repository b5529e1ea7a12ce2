"""Execution of the tutorial's notebook. ``python -m docs.tutorial.notebook`` runs it and keeps its outputs."""

from __future__ import annotations

import base64
import io
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

# What reads and runs notebooks takes seconds to import: the functions that need it do.
if TYPE_CHECKING:
    from nbformat import NotebookNode
    from PIL import Image

PATH = Path(__file__).parent / "a-stream-in-spark.ipynb"
CELL_S_MAX = 240
JAVA_ENDS_S_MAX = 30
LOGS = "stderr"
"""Stream of a cell on which Spark logs: with times, and other lines on each machine."""


def read_notebook() -> NotebookNode:
    """Return the notebook as it is in the repository."""
    import nbformat

    return nbformat.read(PATH, as_version=4)


def execute(notebook: NotebookNode) -> NotebookNode:
    """Run all cells with this Python, in the notebook's folder, and return the notebook with the new outputs.

    Raises:
        CellExecutionError: a cell failed.
    """
    from nbclient import NotebookClient

    # The kernel takes this Python, whatever kernels the machine has installed.
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    client = NotebookClient(notebook, timeout=CELL_S_MAX, resources={"metadata": {"path": str(PATH.parent)}})
    manager = client.create_kernel_manager()
    manager.kernel_spec.argv = command
    started: list[psutil.Process] = []

    def remember(**_: object) -> None:
        started[:] = psutil.Process(manager.provisioner.pid).children(recursive=True)

    client.on_cell_executed = remember
    done = client.execute(env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    # Java ends behind the kernel, and removes its temporary files then.
    psutil.wait_procs(started, JAVA_ENDS_S_MAX)
    return _without_noise(done)


def texts(notebook: NotebookNode) -> list[str]:
    """Return what each cell of code printed and returned, as text; of a picture, that there is one.

    Of numbers with a fraction, six digits: the order in which Spark adds up may change the last ones.
    """
    return ["".join(map(_text, cell.outputs)) for cell in notebook.cells if cell.cell_type == "code"]


def pictures(notebook: NotebookNode) -> list[Image.Image]:
    """Return the pictures that cells returned."""
    from PIL import Image

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    found = [data["image/png"] for output in outputs if "image/png" in (data := output.get("data", {}))]
    return [Image.open(io.BytesIO(base64.b64decode(png))) for png in found]


def _text(output: NotebookNode) -> str:
    data: dict[str, Any] = output.get("data", {})
    if "image/png" in data:
        return "picture\n"
    # What a cell prints comes in one piece or in several.
    text = output.text if output.output_type == "stream" else f"{data.get('text/plain', output.output_type)}\n"
    # Spark decides into how many files it writes a few rows.
    text = re.sub(r"\d+ of \d+ table files", "N table files", text)
    return re.sub(r"\d+\.\d{7,}", lambda match: f"{float(match[0]):.6g}", text)


def _without_noise(notebook: NotebookNode) -> NotebookNode:
    """Leave out what differs from run to run: logs, times of execution, and what this machine is."""
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != LOGS]
    return notebook


def main() -> int:
    """Run the notebook and write its outputs into it."""
    import nbformat

    nbformat.write(execute(read_notebook()), PATH)
    return 0


if __name__ == "__main__":
    sys.exit(main())
