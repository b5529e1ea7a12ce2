"""What every benchmark shares: the machine's facts, pinning to a core, and where results go."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
SERVER_CORE, LOAD_CORE = 0, 1


def pin(core: int) -> None:
    """Keep this process, and what it starts from now on, on one core (when the machine has it)."""
    if core < (os.cpu_count() or 1):
        os.sched_setaffinity(0, {core})


def machine() -> dict[str, Any]:
    """What a reader needs to judge a figure; nothing that names the machine."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def write_results(name: str, results: Any) -> Path:
    """Write ``results`` and the machine's facts to ``bench/results/<name>-<date>.json``; the path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-{time.strftime('%Y-%m-%d', time.gmtime())}.json"
    path.write_text(json.dumps({"machine": machine(), "results": results}, indent=2) + "\n")
    return path
