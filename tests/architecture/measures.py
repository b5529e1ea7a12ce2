"""Depth of the modules: figures, and the exceptions to the rules (decision records 0390 and 0393).

``python -m tests.architecture.measures`` prints the figures of the tree, or of ``--of COMMIT``. ``--exceptions``
strikes from ``exceptions.toml`` what is an exception no longer, and with ``--take REASON`` adds those that are new.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import collections
import functools
import importlib
import io
import json
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.architecture.house import ALLOWED, PACKAGES, ROOT, imported, modules, nodes

LISTED = Path(__file__).with_name("exceptions.toml")
MODULE_LINES = range(150, 701)
"""Lines of code of a module; blank lines, comments and docstrings do not count, so that a reason costs nothing.

A module is a thing for which the field has a word: a smaller one is likely to be a section of another, a larger one to
be two. A package's own module (``__init__``) is its map, and may be as small as it is.
"""
FRAGMENT_LINES = 80
"""Of modules with fewer lines of code than this, each is imported by more than one."""
ROOMS_OF_A_WORD = 3
"""A module that modules of at least so many folders import is a section of none of them."""
CONSTRUCTOR_ARGUMENTS_MAX = 8
CALLBACKS_MAX = 2
CLOCKS = frozenset(
    {
        "call_later",
        "chance",
        "clock",
        "monotonic",
        "nonce",
        "now",
        "random_bits",
        "rng",
        "sleep",
        "turn",
        "wall",
        "wall_clock",
    }
)
"""Arguments by which time and randomness come in. The style asks for them, so they do not count."""
RULES = {
    "small": f"a module has at least {MODULE_LINES[0]} lines of code, or importers in {ROOMS_OF_A_WORD} folders, if one"
    " beside it has the room: make it a section of the module it belongs to",
    "fragments": f"a module below {FRAGMENT_LINES} lines with one importer is a section of that importer",
    "large": f"a module has at most {MODULE_LINES[-1]} lines of code: move one subject to a module of its own",
    "constructors": f"a constructor has at most {CONSTRUCTOR_ARGUMENTS_MAX} arguments: hand it the objects behind them",
    "callbacks": f"a constructor has at most {CALLBACKS_MAX} callbacks: hand it the object, not its methods",
    "late": "an object is whole when it is made: give its constructor what is assigned later from outside",
    "contracts": "a contract with one implementation in its own package: import the class, for types alone if need be",
    "forwarders": "a method that no base asks for and that only calls a part with its own arguments: hand out the part",
}
"""Kind of exception -> the rule, as a failing test says it."""
_RECORDS = {"typing.NamedTuple", "msgspec.Struct", "enum.Enum"}


class Source(NamedTuple):
    """A module: its text, and every node of its tree."""

    text: str
    nodes: Sequence[ast.AST]


class Found(NamedTuple):
    """Something that a rule speaks of."""

    module: str
    name: str = ""

    @property
    def key(self) -> str:
        """Name in the list of exceptions: that of the package, so that a module may move or be renamed."""
        return f"{self.module.partition('.')[0]}: {self.name}" if self.name else self.module

    def __str__(self) -> str:
        return f"{self.module}: {self.name}" if self.name else self.module


class Lines(NamedTuple):
    """Lines of a module by kind; each line counts once. A comment after code is a line of code."""

    code: int
    imports: int
    docstrings: int
    comments: int
    blank: int


class Measures(NamedTuple):
    """Figures of a set of modules."""

    files: int
    lines: Lines
    median_module: int
    """Lines of the module in which the median line lives: half of all lines are in modules of at least as many."""
    callback_arguments: int
    """Arguments of constructors that are annotated as callables."""
    exceptions: dict[str, list[Found]]
    """Kind (``RULES``) -> what is against the rule."""


def source_of(text: str) -> Source:
    return Source(text, tuple(ast.walk(ast.parse(text))))


def lines_of(source: Source) -> Lines:
    """Count the lines of a module."""
    texts = source.text.splitlines()
    strings, imports, literal = set[int](), set[int](), set[int]()
    for node in source.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(_lines(node))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            strings.update(_lines(node))
        elif isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            # Strings that are only written in several parts may have comments between them.
            if '"""' in (start := texts[node.lineno - 1]) or "'''" in start:
                literal.update(_lines(node))
    written = {number for number, line in enumerate(texts, 1) if line.strip()}
    comments = {number for number in written if texts[number - 1].lstrip().startswith("#")}
    code = (written - comments | literal) - strings - imports
    comments -= code | strings | imports
    known = len(code) + len(imports) + len(strings) + len(comments)
    return Lines(len(code), len(imports), len(strings), len(comments), len(texts) - known)


def _lines(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def median_module(sizes: Iterable[int]) -> int:
    """The size of the module that has the median line; 0 without modules."""
    ordered = sorted(sizes)
    seen = 0
    for size in ordered:
        seen += size
        if 2 * seen >= sum(ordered):
            return size
    return 0


class Class(NamedTuple):
    """A class: the module that it is in, what it has, and the full names of its bases."""

    module: str
    name: str
    members: frozenset[str]
    bases: tuple[str, ...]
    is_record: bool = False
    """Whether its fields are its interface: the code that makes it fills it."""
    of_libraries: frozenset[str] = frozenset()
    """Attributes whose objects are of Python or of a library."""

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def is_contract(self) -> bool:
        return "typing.Protocol" in self.bases


def names_of(module: str, found: Iterable[ast.AST]) -> dict[str, str]:
    """Name that a module imports -> the full name of what it is; of ours without ``weft``."""
    found = list(found)
    packages = {
        (name.asname or name.name).partition(".")[0]: name.name
        for node in found
        if isinstance(node, ast.Import)
        for name in node.names
    }
    return packages | {
        name.asname or name.name: f"{(node.module or '').removeprefix('weft.')}.{name.name}"
        for node in found
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }


def classes_of(module: str, found: Iterable[ast.AST]) -> Iterator[Class]:
    found = list(found)
    names = names_of(module, found)
    for node in found:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
            full = tuple(names.get(base, base if "." in base else f"{module}.{base}") for base in bases)
            is_record = not _RECORDS.isdisjoint(full) or any("dataclass" in ast.unparse(d) for d in node.decorator_list)
            foreign = frozenset(_of_libraries(node, names))
            yield Class(module, node.name, frozenset(_members(node)), full, is_record, foreign)


def _of_libraries(made: ast.ClassDef, names: Mapping[str, str]) -> Iterator[str]:
    """Attributes of the class to which nothing but objects of Python and of libraries is assigned."""
    types = collections.defaultdict[str, set[str]](set)
    for node in made.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            types[node.target.id].add(ast.unparse(node.annotation))
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        given = {each.arg: ast.unparse(each.annotation) for each in _arguments(node) if each.annotation is not None}
        for assigned in ast.walk(node):
            if isinstance(assigned, ast.AnnAssign):
                targets: Sequence[ast.expr] = [assigned.target]
                type_ = ast.unparse(assigned.annotation)
            elif isinstance(assigned, ast.Assign):
                targets, type_ = assigned.targets, _type_of(assigned.value, given)
            else:
                continue
            for target in targets:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    types[target.attr].add(type_)
    for name, found in types.items():
        # An attribute that is None at times is still a part of the type that it has at others.
        heads = {each.strip("'\"").partition(" | ")[0].partition("[")[0] for each in found} - {"None"}
        # A method's answer ("stack.pop_all") says nothing; a name alone that no import names is a class of the module.
        roots = {head.partition(".")[0] for head in heads if "." not in head or head.partition(".")[0] in names}
        known = roots - {"?"}
        if known and all(
            hasattr(builtins, root) or names.get(root, "").partition(".")[0] not in (*PACKAGES, "") for root in known
        ):
            yield name


def _type_of(value: ast.expr, given: Mapping[str, str]) -> str:
    """Name of the type of what is assigned, or a text that is no name where the assignment does not show it."""
    if isinstance(value, ast.Call):
        return ast.unparse(value.func)
    if isinstance(value, ast.Name):
        return given.get(value.id, "?")
    kinds = {
        ast.Dict: "dict",
        ast.DictComp: "dict",
        ast.List: "list",
        ast.ListComp: "list",
        ast.Set: "set",
        ast.SetComp: "set",
        ast.Constant: type(getattr(value, "value", None)).__name__,
    }
    return kinds.get(type(value), "?").replace("NoneType", "None")


def _members(made: ast.ClassDef) -> Iterator[str]:
    yield from (each.name for each in made.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    for node in ast.walk(made):
        target = node.target if isinstance(node, ast.AnnAssign) else node
        if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
            yield target.attr
        elif isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
            yield target.id


class Imports:
    """Who imports whom, and which modules could be one. No imports go in a circle, also not those for types alone."""

    def __init__(self, sources: Mapping[str, Source], code: Mapping[str, int]) -> None:
        self._code = code
        self.graph = {
            name: {each for _, each in imported(source.nodes, sources)} - {name} for name, source in sources.items()
        }
        self._at_once = {
            name: {each for _, each in imported(_at_once(source), sources)} - {name} for name, source in sources.items()
        }
        self.started = set[str]().union(*self._at_once.values())
        """Modules that others load when they are loaded; not so programs, commands and optional libraries."""
        self.reach = {name: self._reach(name) for name in self.graph}
        """Module -> those that it imports, and that these import."""

    def _reach(self, name: str) -> set[str]:
        seen, waiting = set[str](), [name]
        while waiting:
            new = self.graph[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    def could_be_one(self, one: str, other: str) -> bool:
        """Whether two modules of a folder would be one that is not too long, and in no circle with a third."""
        through = any(other in self.reach[each] for each in self.graph[one] - {other})
        back = any(one in self.reach[each] for each in self.graph[other] - {one})
        are_beside = one.rpartition(".")[0] == other.rpartition(".")[0]
        is_short = self._code[one] + self._code[other] <= MODULE_LINES[-1]
        return are_beside and is_short and not through and not back

    def has_home(self, name: str) -> bool:
        """Whether the module could be a section of one that is loaded with it."""
        beside = self._at_once[name] | {other for other, each in self._at_once.items() if name in each}
        return any(self.could_be_one(name, other) for other in beside)


class Bases:
    """What the bases of classes have, of ours and of the standard library."""

    def __init__(self, found: Collection[Class]) -> None:
        self._by_name = {each.full_name: each for each in found}

    def members(self, of: Class) -> frozenset[str]:
        """Names that the class and its bases of ours have."""
        return of.members.union(*(self.members(base) for base in self._ours(of)))

    def of_libraries(self, of: Class) -> frozenset[str]:
        return of.of_libraries.union(*(self.of_libraries(base) for base in self._ours(of)))

    def ask_for(self, of: Class, name: str) -> bool:
        """Whether a base has the name, too; of ``__str__`` and such every class, which Python calls."""
        return (
            name.startswith("__")
            or any(name in self.members(base) for base in self._ours(of))
            or self.library_has(of, name)
        )

    def library_has(self, of: Class, name: str) -> bool:
        """Whether a base of the standard library has the name."""
        return any(self.library_has(base, name) for base in self._ours(of)) or any(
            hasattr(_library(base), name) for base in of.bases if base not in self._by_name
        )

    def _ours(self, of: Class) -> list[Class]:
        return [self._by_name[name] for name in of.bases if name in self._by_name and name != of.full_name]


def _library(name: str) -> object:
    """The class of the standard library; the type of every class if it is none."""
    module, _, own = name.rpartition(".")
    if module.partition(".")[0] in sys.stdlib_module_names:
        return getattr(importlib.import_module(module), own, object)
    # A base without a module before it is a built-in one, which `classes_of` takes for one of the same module.
    found = getattr(builtins, own, object)
    return found if isinstance(found, type) else object


class Contract(NamedTuple):
    """A contract, and the classes that have all that it names."""

    of: Class
    wanted: frozenset[str]
    having: Sequence[Class]


def contracts(found: Collection[Class], bases: Bases) -> Iterator[Contract]:
    made = {each: bases.members(each) for each in found if not each.is_contract}
    for contract in found:
        if contract.is_contract:
            members = bases.members(contract)
            wanted = frozenset(name for name in members if not name.startswith("__") or name == "__call__")
            having = [
                each for each in made if all(name in made[each] or bases.library_has(each, name) for name in wanted)
            ]
            yield Contract(contract, wanted, having)


def is_lonely(contract: Contract, imports: Imports) -> bool:
    """Whether the contract has one implementation, which its module could import or be one module with."""
    mine = contract.of.module
    if len(contract.having) > 1:
        return False
    for each in contract.having:
        theirs = each.module
        is_circle = theirs != mine and mine in imports.reach[theirs]
        if _above(each, contract.of) or (is_circle and not imports.could_be_one(mine, theirs)):
            return False
    return True


def _above(implementation: Class, contract: Class) -> bool:
    """Whether the contract's package may not import the implementation's."""
    mine, theirs = contract.module.partition(".")[0], implementation.module.partition(".")[0]
    return mine != theirs and theirs not in ALLOWED.get(mine, ())


def _are_neighbours(one: Class, other: Class) -> bool:
    """Whether the package of one may import that of the other, or has both."""
    mine, theirs = one.module.partition(".")[0], other.module.partition(".")[0]
    return mine == theirs or theirs in ALLOWED.get(mine, ()) or mine in ALLOWED.get(theirs, ())


def forwarded(method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The part of ``self.part.method(...)`` if the method is only that, with its own arguments in order; else empty."""
    body = [each for each in method.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    if method.decorator_list or len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return ""
    call = body[0].value.value if isinstance(body[0].value, ast.Await) else body[0].value
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return ""
    part = ast.unparse(call.func.value)
    if not part.startswith("self.") or not part.replace(".", "").isidentifier():
        return ""
    given = [ast.unparse(each) for each in call.args] + [ast.unparse(each.value) for each in call.keywords]
    return part.removeprefix("self.") if given == _parameters(method) else ""


def _parameters(method: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Names of the parameters but ``self``, as a call gives them."""
    given = method.args
    several = [f"*{given.vararg.arg}"] if given.vararg else []
    named = [given.kwarg.arg] if given.kwarg else []
    return [
        *(each.arg for each in (*given.posonlyargs, *given.args)[1:]),
        *several,
        *(each.arg for each in given.kwonlyargs),
        *named,
    ]


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    given = function.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def callbacks_of(constructor: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Names of the parameters that are annotated with ``Callable``."""
    every = _arguments(constructor)
    return [each.arg for each in every if each.annotation is not None and "Callable" in ast.unparse(each.annotation)]


def late_assignments(module: str, source: Source, whole: Mapping[str, Class], bases: Bases) -> Iterator[Found]:
    """Attributes that a constructor sets on another object, or a function on the object that it has made.

    A class that fills an object of its own is not outside it. What a library's class has is set as the library asks.

    Args:
        whole: full name -> class, of those whose objects are whole when they are made. Records are filled by their
            makers.
    """
    names = names_of(module, source.nodes)
    inside = {id(each): made.name for made in source.nodes if isinstance(made, ast.ClassDef) for each in made.body}
    for function in source.nodes:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        assigned = [
            (target, node.value)
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
        ]
        attributes = [target for target, _ in assigned if isinstance(target, ast.Attribute)]
        if all(ast.unparse(each.value) == "self" for each in attributes):
            continue
        made = dict[str, str]()
        if function.name == "__init__":
            for parameter in _arguments(function):
                if parameter.annotation is not None:
                    made[parameter.arg] = ast.unparse(parameter.annotation).strip("'\"").partition(" | ")[0]
        for target, value in assigned:
            if isinstance(value, ast.Call):
                made[ast.unparse(target)] = ast.unparse(value.func)
            elif isinstance(value, ast.Name) and value.id in made:
                made[ast.unparse(target)] = made[value.id]
        for each in attributes:
            name = made.get(ast.unparse(each.value))
            of = None if name is None else whole.get(names.get(name, f"{module}.{name}"))
            if of is None or (of.module, of.name) == (module, inside.get(id(function))):
                continue
            if not bases.library_has(of, each.attr):
                yield Found(module, f"{function.name}: {ast.unparse(each)}")


def measure(sources: Mapping[str, Source], packages: Collection[str] = ()) -> Measures:
    """Measure modules.

    Args:
        sources: dotted name -> the module.
        packages: names of modules that are a package's own (``__init__``).
    """
    lines = {name: lines_of(source) for name, source in sources.items()}
    code = {name: each.code + each.imports for name, each in lines.items()}
    every = {each.full_name: each for name, source in sources.items() for each in classes_of(name, source.nodes)}
    whole = {name: each for name, each in every.items() if not each.is_record and not each.is_contract}
    bases = Bases(every.values())
    imports = Imports(sources, code)
    importers = collections.defaultdict[str, list[str]](list)
    for importer, each in imports.graph.items():
        for name in each:
            importers[name].append(importer)
    exceptions: dict[str, list[Found]] = {kind: [] for kind in RULES}
    for name, size in code.items():
        folders = {each.rpartition(".")[0] for each in importers[name]}
        if size > MODULE_LINES[-1]:
            exceptions["large"].append(Found(name))
        elif size >= MODULE_LINES[0] or name in packages or len(folders) >= ROOMS_OF_A_WORD:
            # Large enough, its package's map, or a word that many share.
            continue
        elif name not in imports.started or not imports.has_home(name):
            # A program, a command or the import of an optional library, which is loaded alone, or one without a home.
            continue
        elif size < FRAGMENT_LINES and len(importers[name]) < 2:
            exceptions["fragments"].append(Found(name))
        else:
            exceptions["small"].append(Found(name))
    agreed = list(contracts(every.values(), bases))
    alone = [each for each in agreed if is_lonely(each, imports)]
    asked = {
        (each.full_name, name)
        for contract in agreed
        if contract not in alone
        for each in contract.having
        if _are_neighbours(each, contract.of)
        for name in contract.wanted
    }
    callbacks = 0
    for name, made, method in _methods(sources):
        of = every[f"{name}.{made}"]
        if method.name == "__init__":
            count = len(set(callbacks_of(method)) - CLOCKS)
            callbacks += len(callbacks_of(method))
            if count > CALLBACKS_MAX:
                exceptions["callbacks"].append(Found(name, made))
            if len(set(_parameters(method)) - CLOCKS) > CONSTRUCTOR_ARGUMENTS_MAX:
                exceptions["constructors"].append(Found(name, made))
        is_asked = (of.full_name, method.name) in asked or bases.ask_for(of, method.name)
        if (part := forwarded(method)) and part not in bases.of_libraries(of) and not is_asked:
            exceptions["forwarders"].append(Found(name, f"{made}.{method.name}"))
    exceptions["contracts"] += (Found(each.of.module, each.of.name) for each in alone)
    exceptions["late"] += (
        each for name, source in sources.items() for each in late_assignments(name, source, whole, bases)
    )
    return Measures(
        files=len(sources),
        lines=Lines(*(sum(kind) for kind in zip(*lines.values(), strict=True))),
        median_module=median_module(sum(each) for each in lines.values()),
        callback_arguments=callbacks,
        exceptions=exceptions,
    )


def _at_once(source: Source) -> list[ast.AST]:
    """The nodes of a module that run when it is imported: those outside functions, and not for types alone."""
    later = {
        id(each)
        for part in source.nodes
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING")
        for each in ast.walk(part)
    }
    return [each for each in source.nodes if id(each) not in later]


def _methods(sources: Mapping[str, Source]) -> Iterator[tuple[str, str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Module, class and tree of each method."""
    for name, source in sources.items():
        for made in source.nodes:
            if isinstance(made, ast.ClassDef):
                for method in made.body:
                    if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                        yield name, made.name, method


@functools.cache
def classes() -> tuple[Class, ...]:
    """Those of the tree."""
    return tuple(each for module, path in modules().items() for each in classes_of(module, nodes(path)))


@functools.cache
def of_the_tree() -> Measures:
    sources = {name: Source(path.read_text(), nodes(path)) for name, path in modules().items()}
    return measure(sources, {name for name, path in modules().items() if path.name == "__init__.py"})


def of_commit(commit: str) -> Measures:
    """Measure a commit, which git has here; of packages that are gone since, nothing counts."""
    listed = subprocess.run(
        ["git", "ls-tree", "--name-only", commit], cwd=ROOT, check=True, capture_output=True, text=True
    )
    there = [name for name in listed.stdout.split() if name in PACKAGES]
    packed = subprocess.run(["git", "archive", commit, *there], cwd=ROOT, check=True, capture_output=True)
    sources, packages = dict[str, Source](), set[str]()
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(".py") and (file := archive.extractfile(member)):
                name = member.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                sources[name] = source_of(file.read().decode())
                if member.name.endswith("/__init__.py"):
                    packages.add(name)
    return measure(sources, packages)


def report(found: Measures) -> str:
    """The figures as lines of text."""
    total, against = sum(found.lines), {kind: len(each) for kind, each in found.exceptions.items()}
    rows = {
        "files": found.files,
        "lines": total,
        **{f"  {kind}": count for kind, count in found.lines._asdict().items()},
        "module of the median line": found.median_module,
        "comments in 100 lines": round(100 * found.lines.comments / total, 1),
        f"modules below {MODULE_LINES[0]} lines, with a home": against["small"] + against["fragments"],
        f"  below {FRAGMENT_LINES} with one importer": against["fragments"],
        f"modules above {MODULE_LINES[-1]}": against["large"],
        "contracts with one implementation": against["contracts"],
        "forwarders": against["forwarders"],
        "callbacks": found.callback_arguments,
        f"constructors with more than {CALLBACKS_MAX} of them": against["callbacks"],
        "late assignments": against["late"],
        f"constructors above {CONSTRUCTOR_ARGUMENTS_MAX} arguments": against["constructors"],
    }
    return "\n".join(f"{name:<40}{count:>10,}" for name, count in rows.items())


Reasons = dict[str, dict[str, list[str]]]
"""Kind of exception -> reason -> keys."""


def listed() -> Reasons:
    return tomllib.loads(LISTED.read_text())


def new_exceptions(found: Mapping[str, list[Found]], known: Reasons) -> dict[str, list[Found]]:
    """Return by kind what is against a rule and not in the list."""
    answer = {}
    for kind, each in found.items():
        keys = {key for keys in known.get(kind, {}).values() for key in keys}
        if new := [one for one in each if one.key not in keys]:
            answer[kind] = new
    return answer


def struck(found: Mapping[str, list[Found]], known: Reasons) -> Reasons:
    """Return the list without what is an exception no longer."""
    answer: Reasons = {kind: {} for kind in known}
    for kind, reasons in known.items():
        there = {each.key for each in found.get(kind, ())}
        for reason, keys in reasons.items():
            if left := sorted(there.intersection(keys)):
                answer[kind][reason] = left
    return answer


def written(known: Reasons) -> str:
    """The list as ``exceptions.toml`` has it: a stable order, and a line for each name."""
    head = (
        "# Exceptions to the rules of modules (decision record 0393), by reason. The list may only shrink:\n"
        "# `python -m tests.architecture.measures --exceptions` strikes what is gone, as ./run fix does.\n"
        "# Of a class it has the package and the name, so that modules may move.\n"
    )
    for kind in RULES:
        if reasons := {reason: keys for reason, keys in known.get(kind, {}).items() if keys}:
            head += f"\n[{kind}]\n"
            for reason, keys in sorted(reasons.items()):
                head += (
                    f"{json.dumps(reason)} = [\n" + "".join(f"  {json.dumps(key)},\n" for key in sorted(keys)) + "]\n"
                )
    return head


def _keep_list(reason: str | None) -> int:
    found, known = of_the_tree().exceptions, listed()
    new, kept = new_exceptions(found, known), struck(found, known)
    if reason:
        for kind, each in new.items():
            same = kept.setdefault(kind, {}).setdefault(reason, [])
            same += sorted({one.key for one in each})
    LISTED.write_text(written(kept))
    if not new or reason:
        return 0
    for kind, each in new.items():
        print(f"{RULES[kind]}:", *each, sep="\n  ", file=sys.stderr)
    print("mend them, or: python -m tests.architecture.measures --exceptions --take REASON", file=sys.stderr)
    return 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", metavar="COMMIT", help="measure this commit instead of the tree")
    parser.add_argument("--exceptions", action="store_true", help="strike what is an exception no longer")
    parser.add_argument("--take", metavar="REASON", help="with --exceptions: add those that are new")
    asked = parser.parse_args()
    if asked.exceptions:
        sys.exit(_keep_list(asked.take))
    print(report(of_commit(asked.of) if asked.of else of_the_tree()))
