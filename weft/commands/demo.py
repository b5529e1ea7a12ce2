"""``weft demo``: run the whole fabric on this machine."""

from __future__ import annotations

import click


@click.command("demo")
@click.option("--keep", is_flag=True, help="Leave everything running at the end and print how to look around.")
def demo_command(keep: bool) -> int:
    """Run the whole fabric on this machine on real sensor data, with faults, and audit the result."""
    from weft.demo.run import main

    return main(keep=keep)
