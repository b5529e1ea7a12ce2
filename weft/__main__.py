"""``weft`` and ``python -m weft``: the command line, with its exit status for Ctrl-C also while it is being loaded."""

from __future__ import annotations

import os


def main() -> None:
    """Run ``weft``."""
    try:
        from weft.cli import main as run
    except KeyboardInterrupt:
        os._exit(130)  # as `weft.output.STOPPED_EXIT_CODE`: nothing has begun
    run()


if __name__ == "__main__":
    main()
