"""Figures of the depth of the product's modules: ``python -m tests.architecture.measures`` (decision record 0390)."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tests.architecture.house import modules
from tests.architecture.test_contracts import classes_of, lonely

CONSTRUCTOR_ARGUMENTS_MAX = 8
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


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
    contracts: list[str]
    """Protocols with fewer than two implementations, all in their own package."""
    forwarders: list[str]
    """Methods that only call a method of an attribute with their own arguments."""
    callbacks: list[str]
    """Arguments of constructors that are annotated as callables."""
    late: list[str]
    """Attributes set from outside by a constructor, or by the function that made the object; also of libraries."""
    constructors: list[str]
    """Constructors with more than ``CONSTRUCTOR_ARGUMENTS_MAX`` arguments."""


def lines_of(text: str) -> Lines:
    """Count the lines of a module."""
    tree = ast.parse(text)
    strings, imports = set[int](), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(_lines(node))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            strings.update(_lines(node))
    code, comments = set[int](), set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    code -= strings | imports
    comments -= code | strings | imports
    known = len(code) + len(imports) + len(strings) + len(comments)
    return Lines(len(code), len(imports), len(strings), len(comments), len(text.splitlines()) - known)


def _lines(node: ast.stmt) -> range:
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


def is_forwarder(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the method is only ``self.part.method(...)`` with its own arguments in their order."""
    body = [each for each in method.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    call = body[0].value.value if isinstance(body[0].value, ast.Await) else body[0].value
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return False
    if not ast.unparse(call.func.value).startswith("self."):
        return False
    given = [ast.unparse(each) for each in call.args] + [ast.unparse(each.value) for each in call.keywords]
    return given == _parameters(method)


def _parameters(method: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Names of the parameters but ``self``, as a call gives them."""
    given = method.args
    several = [f"*{given.vararg.arg}"] if given.vararg else []
    named = [given.kwarg.arg] if given.kwarg else []
    return [*(each.arg for each in (*given.posonlyargs, *given.args)[1:]), *several,
            *(each.arg for each in given.kwonlyargs), *named]  # fmt: skip


def callbacks_of(constructor: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Names of the parameters that are annotated with ``Callable``."""
    given = constructor.args
    for each in (*given.posonlyargs, *given.args, *given.kwonlyargs):
        if each.annotation is not None and "Callable" in ast.unparse(each.annotation):
            yield each.arg


def late_assignments(tree: ast.AST) -> Iterator[str]:
    """Attributes that are set on another object by a constructor, or by the function that made the object."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        assigned = [
            (target, node.value)
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
        ]
        made = {
            ast.unparse(target)
            for target, value in assigned
            if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2].lstrip("_")[:1].isupper()
        }
        for target, _ in assigned:
            if not isinstance(target, ast.Attribute):
                continue
            owner = ast.unparse(target.value)
            if owner in made or (function.name == "__init__" and owner != "self"):
                yield ast.unparse(target)


def measure(texts: Mapping[str, str]) -> Measures:
    """Measure modules; ``texts`` maps their dotted names to their text."""
    trees = {name: ast.parse(text) for name, text in texts.items()}
    lines = {name: lines_of(text) for name, text in texts.items()}
    forwarders, callbacks, constructors = list[str](), list[str](), list[str]()
    for name, tree in trees.items():
        for made in ast.walk(tree):
            if not isinstance(made, ast.ClassDef):
                continue
            for method in made.body:
                if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if method.name == "__init__":
                    callbacks += (f"{name}.{made.name}: {each}" for each in callbacks_of(method))
                    if len(_parameters(method)) > CONSTRUCTOR_ARGUMENTS_MAX:
                        constructors.append(f"{name}.{made.name}")
                if not method.decorator_list and is_forwarder(method):
                    forwarders.append(f"{name}.{made.name}.{method.name}")
    found = [each for name, tree in trees.items() for each in classes_of(name, ast.walk(tree))]
    return Measures(
        files=len(texts),
        lines=Lines(*(sum(kind) for kind in zip(*lines.values(), strict=True))),
        median_module=median_module(sum(each) for each in lines.values()),
        contracts=lonely(found, dict.fromkeys(texts, frozenset())),
        forwarders=forwarders,
        callbacks=callbacks,
        late=[f"{name}: {each}" for name, tree in trees.items() for each in late_assignments(tree)],
        constructors=constructors,
    )


def report(found: Measures) -> str:
    """The figures as lines of text."""
    total = sum(found.lines)
    rows = {
        "files": found.files,
        "lines": total,
        **{f"  {kind}": count for kind, count in found.lines._asdict().items()},
        "module of the median line": found.median_module,
        "comments in 100 lines": round(100 * found.lines.comments / total, 1),
        "contracts with one implementation": len(found.contracts),
        "forwarders": len(found.forwarders),
        "callbacks": len(found.callbacks),
        "late assignments": len(found.late),
        f"constructors above {CONSTRUCTOR_ARGUMENTS_MAX}": len(found.constructors),
    }
    return "\n".join(f"{name:<36}{count:>10,}" for name, count in rows.items())


if __name__ == "__main__":
    print(report(measure({name: path.read_text() for name, path in modules().items()})))
