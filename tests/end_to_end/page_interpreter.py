"""Runs the Python blocks of a page one after the other in one namespace, as a person at a prompt would.

Each line of the input is the name of a file to run; ``DONE`` answers it.
"""

from __future__ import annotations

import sys

DONE = "-- done --"

if __name__ == "__main__":
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line in sys.stdin:
        with open(line.strip()) as file:
            exec(compile(file.read(), line.strip(), "exec"), namespace)
        print(DONE, flush=True)
