"""Draws docs/architecture.svg: the folders, their rooms and the way of a record, from the tables that tests enforce.

Floors come from ``tests/architecture/rooms.py``. What is placed by hand is where a package is, what of a package is
too small to show, and the way itself; a test fails while a place on the way is gone, or the picture differs.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from tests.architecture.house import ALLOWED, ROOT, modules, tree
from tests.architecture.rooms import OTHERS, ROOMS

WIDTH, HEIGHT = 1180, 1046
MARGIN, PAD, GAP, TITLE, CHIP = 24, 14, 8, 34, 25
LANE = 54
"""Room on the right of a package's rooms, for the way from one to the other."""
INK, QUIET, LINE, WAY, DURABLE = "#1f2937", "#6b7280", "#cbd5e1", "#0f766e", "#b45309"


class Box(NamedTuple):
    """A rectangle in the units of the picture."""

    x: float
    y: float
    w: float
    h: float


class Package(NamedTuple):
    """Place of a package, and what a reader should know of it."""

    box: Box
    says: str
    fill: str


PACKAGES = {
    "weft": Package(Box(24, 70, 1132, 66), "the command line: joins the applications", "#f8fafc"),
    "edge_node": Package(Box(24, 152, 450, 360), "accept, append, acknowledge, link", "#eff6ff"),
    "functions": Package(Box(24, 522, 450, 66), "rows in, rows out, before they leave the node", "#f1f5f9"),
    "replication": Package(Box(490, 286, 160, 302), "ranges from here to there", "#f0fdf4"),
    "cloud_hub": Package(Box(666, 152, 316, 436), "stateless: the store is the truth", "#fdf4ff"),
    "spark_sinks": Package(Box(998, 152, 158, 326), "for PySpark", "#fff7ed"),
    "proofs": Package(Box(998, 486, 158, 102), "nothing is missing", "#fefce8"),
    "storage": Package(Box(24, 604, 958, 166), "bytes at rest, one door to the disk", "#f5f5f4"),
    "network": Package(Box(998, 604, 158, 166), "sockets, TLS", "#f5f5f4"),
    "protocols": Package(Box(24, 786, 390, 66), "bytes and state machines: no I/O, no clock", "#f1f5f9"),
    "hub_api": Package(Box(430, 786, 230, 66), "operations of the hub", "#f1f5f9"),
    "bounds": Package(Box(676, 786, 190, 66), "owners, shares, turns", "#f1f5f9"),
    "config": Package(Box(882, 786, 274, 66), "what an operator may set and see", "#f1f5f9"),
}
"""Package -> its place: what is higher may import those below (``pyspark_weft`` only names ``spark_sinks``)."""


FLAT = {"config", "hub_api"}
"""Packages that are drawn without their floors, for which there is no room."""


class Step(NamedTuple):
    """A place that a record passes."""

    place: str
    says: str
    durable: str = ""


WAY_OF_A_RECORD = (
    Step("edge_node.servers", "a connection is admitted; PUBLISH becomes a record"),
    Step("edge_node.ingest", "its topic names its stream"),
    Step("storage.segment_log", "one write and one fsync for all that wait", "PUBACK: on disk"),
    Step("edge_node.links", "what a hub lacks is offered"),
    Step("replication", "batches as stored, over a bad network"),
    Step("cloud_hub.links", "overlap with what is held is trimmed"),
    Step("cloud_hub.shard", "creating chunk n is the commit"),
    Step("storage.object_store", "create-if-absent", "ACK: durable twice, the edge may forget"),
    Step("storage.table_writer", "chunks become Parquet and one Delta commit"),
    Step("spark_sinks", "rows, batch or streaming"),
)


MEETS_AT = {"replication": 22.0, "spark_sinks": 282.0}
"""Package without rooms on the way -> how far below its top the way meets it."""
STANDS_AT = {"storage.object_store": 724.0}
"""Room -> where it begins on its floor: below what uses it."""


def picture() -> str:
    """Return the SVG."""
    places: dict[str, Box] = {}
    frames: list[str] = []
    rooms: list[str] = []
    for name, package in PACKAGES.items():
        frames += _frame(name, package)
        rooms += _rooms(name, package.box, places)
        if name in MEETS_AT:
            width = 36 if name == WAY_OF_A_RECORD[-1].place else package.box.w  # Where it ends, or goes through.
            places[name] = Box(package.box.x, package.box.y + MEETS_AT[name] - CHIP / 2, width, CHIP)
    return (
        "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" fill="{INK}" font-size="13" '
                'font-family="Verdana, DejaVu Sans, sans-serif" role="img" aria-labelledby="title">',
                "<!-- Written by docs/tools/generate.py from the code. Edit docs/tools/picture.py. -->",
                '<title id="title">Folders, rooms and the path of a record from a device to a table</title>',
                f'<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
                f'<path d="M0,0 L8,4 L0,8 z" fill="{WAY}"/></marker>',
                f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
                _text(MARGIN, 34, "Folders, rooms and the path of a record", size=20, bold=True),
                _text(MARGIN, 56, "What is higher may import what is lower, never the other way round.", colour=QUIET),
                *frames,
                *_way([places[step.place] for step in WAY_OF_A_RECORD]),
                *rooms,
                *(
                    _badge(_right(places[step.place]) - 14, _middle(places[step.place]), number, step)
                    for number, step in enumerate(WAY_OF_A_RECORD, 1)
                ),
                *_legend(),
                "</svg>",
            ]
        )
        + "\n"
    )


def _frame(name: str, package: Package) -> Iterator[str]:
    box, title = package.box, f"{name}/"
    yield _rectangle(box, package.fill, LINE, 10)
    yield _text(box.x + PAD, box.y + 22, title, size=15, bold=True)
    if box.w > 200:
        yield _text(box.x + PAD + 12 + _width(title, 15, bold=True), box.y + 22, package.says, colour=QUIET, size=12)
    else:
        yield _text(box.x + PAD, box.y + 40, package.says, colour=QUIET, size=9)


def _rooms(name: str, box: Box, places: dict[str, Box]) -> Iterator[str]:
    floors, files = _floors(name)
    if box.h < 100:  # Too low for floors: one row.
        floors = [[room for floor in floors for room in floor if _is_folder(f"{name}.{room}")]]
        yield from _floor(name, floors[0], Box(box.x + PAD, box.y + 32, box.w, CHIP), places, labelled=False)
        x = max([box.x + PAD, *(_right(places[f"{name}.{room}"]) + GAP + 6 for room in floors[0])])
        every = sorted({*files, *(module for floor in _floors(name)[0] for module in floor)} - set(floors[0]))
        text = _shortened(" ".join(every), box.x + box.w - PAD - 20 - x, 10)
        more = "" if text.split() == every else " ..."
        yield _text(x, box.y + 49, text + more, colour=QUIET, size=10)
        return
    top = box.y + TITLE + (8 if box.w > 200 else 14)
    if files:
        for file in files:
            yield _text(box.x + PAD, top + 10, f"{file}.py", colour=QUIET, size=10)
            top += 14
    height = (box.y + box.h - PAD / 2 - top) / max(len(floors), 1)
    for number, floor in enumerate(floors):
        row = Box(box.x + PAD, top + number * height + (height - CHIP) / 2, box.w - 2 * PAD, CHIP)
        yield from _floor(name, floor, row, places)


def _floors(name: str) -> tuple[list[list[str]], list[str]]:
    """Return the rooms of the table, from the top floor down, and the modules that it only counts among the others."""
    there = sorted({module.split(".")[1] for module in modules() if module.startswith(f"{name}.")})
    table = ((OTHERS,),) if name in FLAT else ROOMS.get(name, ((OTHERS,),))
    named = {each for names in table for each in names}
    floors = [_in_order(name, [each for each in there if each in names]) for names in reversed(table)]
    return [floor for floor in floors if floor], [each for each in there if OTHERS in named and each not in named]


def _in_order(package: str, names: Sequence[str]) -> list[str]:
    """Order modules so that no arrow crosses them: left of a folder on the way, right if the arrow is from the left."""
    on_way = {step.place for step in WAY_OF_A_RECORD}
    across = {
        following.place for step, following in itertools.pairwise(WAY_OF_A_RECORD) if _goes_across(step, following)
    }
    files = [name for name in names if not _is_folder(f"{package}.{name}")]
    folders = sorted(set(names) - set(files), key=lambda name: (f"{package}.{name}" in on_way, name))
    folders.sort(key=lambda name: f"{package}.{name}" in STANDS_AT)
    is_between = bool(folders) and f"{package}.{folders[-1]}" in on_way - across
    return [*files, *folders] if is_between else [*folders, *files]


def _goes_across(step: Step, following: Step) -> bool:
    """Return whether the way crosses to another package. To and from the storage it goes up and down instead."""
    return _package_of(step) != _package_of(following) and "storage" not in (_package_of(step), _package_of(following))


def _is_folder(module: str) -> bool:
    return (ROOT / module.replace(".", "/")).is_dir()


def _floor(
    package: str, names: Sequence[str], box: Box, places: dict[str, Box], *, labelled: bool = True
) -> Iterator[str]:
    x, on_way = box.x, {step.place for step in WAY_OF_A_RECORD}
    folders = [name for name in names if _is_folder(f"{package}.{name}")]
    for name in names:
        module = f"{package}.{name}"
        x = max(x, STANDS_AT.get(module, x))
        if name not in folders:
            if folders and names[: len(folders) + 1] == [*folders, name] and f"{package}.{folders[-1]}" in on_way:
                x += LANE  # The next arrow begins here.
            yield _text(x, box.y + 16, f"{name}.py", colour=QUIET, size=11)
            x += _width(f"{name}.py", 11) + GAP
            continue
        label = f"{name}/"
        says = _inner(module) if module in ROOMS else ""
        if labelled and not says and (len(names) == 1 or module in STANDS_AT):
            says = _summary(module, box.w - LANE - _width(label, 13, bold=True) - 60)
        width = 18 + _width(label, 13, bold=module in on_way) + (22 if module in on_way else 0)
        width += 8 + _width(says, 11) if says else 0
        places[module] = Box(x, box.y, width, CHIP)
        yield _rectangle(places[module], "white", WAY if module in on_way else LINE, 6)
        yield _text(x + 9, box.y + 17, label, bold=module in on_way)
        if says:
            at = x + 17 + _width(label, 13, bold=module in on_way)
            yield _text(at, box.y + 16.5, says, colour=QUIET, size=11)
        x += width + GAP


def _inner(module: str) -> str:
    """Return the rooms of a folder that has a table of its own, from the ground up."""
    floors = ([name for name in names if _is_folder(f"{module}.{name}")] for names in ROOMS[module])
    return " < ".join(", ".join(names) for names in floors if names)


def _summary(module: str, room: float) -> str:
    """Return the first line of the package's docstring, as far as whole phrases of it have room."""
    path = modules().get(module)
    line = (ast.get_docstring(tree(path)) or "" if path else "").partition("\n")[0].rstrip(".")
    # "MQTT sessions: what the node remembers": the name says the first half already.
    return _shortened(line.partition(": ")[2] or line, room, 11, at=", ")


def _shortened(text: str, room: float, size: int, *, at: str = " ") -> str:
    while _width(text, size) > room and at in text:
        text = text.rpartition(at)[0]
    return text if _width(text, size) <= room else ""


def _way(boxes: Sequence[Box]) -> Iterator[str]:
    """Yield an arrow from each place to the next: beside the rooms of a package, across from package to package."""
    first = boxes[0]
    yield _arrow(f"M{MARGIN - 20},{_middle(first):.0f} H{first.x:.0f}")
    for number, ((start, end), (step, following)) in enumerate(
        zip(itertools.pairwise(boxes), itertools.pairwise(WAY_OF_A_RECORD), strict=True)
    ):
        x, y, to_y = _right(start), _middle(start), _middle(end)
        if not _goes_across(step, following):
            # Later ones farther out, so that no two lie on each other.
            out = max(x, _right(end)) + 22 + 10 * (number % 3)
            yield _arrow(f"M{x:.0f},{y:.0f} C{out:.0f},{y:.0f} {out:.0f},{to_y:.0f} {_right(end):.0f},{to_y:.0f}")
        else:
            half = (x + end.x) / 2
            yield _arrow(f"M{x:.0f},{y:.0f} C{half:.0f},{y:.0f} {half:.0f},{to_y:.0f} {end.x:.0f},{to_y:.0f}")


def _arrow(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="{WAY}" stroke-width="2" marker-end="url(#tip)"/>'


def _package_of(step: Step) -> str:
    return step.place.partition(".")[0]


def _right(box: Box) -> float:
    return box.x + box.w


def _middle(box: Box) -> float:
    return box.y + box.h / 2


def _badge(x: float, y: float, number: int, step: Step) -> str:
    circle = f'<circle cx="{x:.0f}" cy="{y:.0f}" r="9.5" fill="{DURABLE if step.durable else WAY}"/>'
    return circle + _text(x, y + 4, str(number), colour="white", size=11, bold=True, middle=True)


def _legend() -> Iterator[str]:
    rows = (len(WAY_OF_A_RECORD) + 1) // 2
    for index, step in enumerate(WAY_OF_A_RECORD):
        x, y = MARGIN + 12 + (index // rows) * 566, 882 + (index % rows) * 27
        yield _badge(x, y, index + 1, step)
        at = x + 18.0
        for text, bold, colour in (
            (f"{step.place.replace('.', '/')}/", True, INK),
            (step.says, False, INK),
            (step.durable, True, DURABLE),
        ):
            yield _text(at, y + 4, text, bold=bold, colour=colour, size=11)
            at += _width(text, 11, bold=bold) + 8


def _width(text: str, size: int, *, bold: bool = False) -> float:
    """About how wide a text is, in a wide font: a narrower one leaves some room."""
    narrow, wide = sum(each in "ijlt.,:; /'" for each in text), sum(each in "mwMWAQ@" for each in text)
    return size * (0.62 * len(text) - 0.25 * narrow + 0.3 * wide) * (1.12 if bold else 1)


def _rectangle(box: Box, fill: str, line: str, radius: int) -> str:
    place = f'x="{box.x:.0f}" y="{box.y:.0f}" width="{box.w:.0f}" height="{box.h:.0f}"'
    return f'<rect {place} rx="{radius}" fill="{fill}" stroke="{line}"/>'


def _text(
    x: float, y: float, text: str, *, size: int = 13, bold: bool = False, colour: str = INK, middle: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    anchor = ' text-anchor="middle"' if middle else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{colour}"{weight}{anchor}>{escape(text)}</text>'


def missing() -> list[str]:
    """Return packages that have no place in the picture, and places on the way that are gone."""
    unplaced = set(ALLOWED) - set(PACKAGES) - {"pyspark_weft"}
    return [*unplaced, *(step.place for step in WAY_OF_A_RECORD if step.place not in modules())]
