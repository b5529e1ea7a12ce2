"""Wear of the disk of a folder, and damage that its file system has met, as the kernel tells them."""

from __future__ import annotations

import os

from weft.config.verdict import Verdict, act, good, unknown

SYSFS = "/sys"
USED_UP = 11
"""Step of an eMMC's life that stands for more than it was made for. Step 1 is up to 10 percent, and so on."""
WORN = 9
"""Step from which on a replacement is due: 80 percent."""
RESERVES = {1: "normal", 2: "mostly used", 3: "used up"}
"""Blocks that an eMMC has left for those that fail (``pre_eol_info`` of JEDEC 5.1)."""
_CHECK = "disk wear"


def disk_wear(directory: str, sysfs: str = SYSFS) -> Verdict:
    """Return the line about wear. Blocks for the time of some small reads, which touch no disk."""
    if not os.path.isdir(directory):
        return unknown(_CHECK, f"{directory} is not there yet. The first start of the node creates it")
    number = os.stat(directory).st_dev
    part = os.path.realpath(f"{sysfs}/dev/block/{os.major(number)}:{os.minor(number)}")
    faults = _number(f"{sysfs}/fs/ext4/{os.path.basename(part)}/errors_count")
    if faults:
        advice = "Copy what you need, have `fsck` look at it before it is mounted again, and replace an aged card"
        return act(_CHECK, f"the file system of {directory} has met {faults} errors. {advice}")
    disk = os.path.dirname(part) if os.path.exists(f"{part}/partition") else part
    step = max(_numbers(f"{disk}/device/life_time"), default=0)
    reserve = _number(f"{disk}/device/pre_eol_info")
    if not step and not reserve:
        return unknown(_CHECK, "the disk does not say how worn it is, as memory cards and virtual disks do not")
    used = (
        "more than its life"
        if step >= USED_UP
        else f"up to {step * 10} percent of its life"
        if step
        else "no one knows"
    )
    says = f"used: {used}; blocks in reserve: {RESERVES.get(reserve, 'no one knows')}"
    if step >= WORN or reserve > 1:
        advice = "Replace it soon. A longer `commit_interval` wears it less (docs/sizing.md)"
        return act(_CHECK, f"{says}. {advice}")
    return good(_CHECK, says)


def _number(path: str) -> int:
    return max(_numbers(path), default=0)


def _numbers(path: str) -> list[int]:
    """Return the numbers in a file of the kernel; none where it has no such file."""
    try:
        with open(path, encoding="ascii") as file:
            return [int(word, 0) for word in file.read(64).split()]
    except (OSError, ValueError):
        return []
