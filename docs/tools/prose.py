"""Check of how the project writes: docstrings, comments, help and messages. ``python -m docs.tools.prose`` prints them.

The rules are few and exact, so that there are no exceptions to list:

- A function's docstring begins with an imperative verb; a class's, module's or constant's with a noun phrase.
- Words that hide the actor, or send the reader to an old dictionary, are in no docstring, comment or message.
- A sentence of a message, of help or of a setting's description has at most 25 words. Code in backticks is one word.

In tests and on pages only the words are checked: names and scenes there are the author's own. Decision records are
history, and stay as they were written.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "bench", "bounds", "cloud_hub", "config", "docs", "edge_node", "network", "proofs", "protocols", "pyspark_weft",
    "replication", "spark_sinks", "storage", "tests", "weft",
)  # fmt: skip
WORDS_MAX = 25
"""Longest sentence of a message, which is often read in a hurry."""

# Clauses. "What a reader needs" leaves open what the thing is.
_CLAUSE = (
    "And|As|Because|But|By|How|If|Not|Of|Or|So|That|What|Whatever|When|Where|Whether|Which|While|Who|Whom|Whose|Why"
)
_NO_NOUN = re.compile(rf"(?:{_CLAUSE})\b|[a-z]")
# Fragments that continue the function's name ("Bytes of a batch", "All lanes") and sentences about something else.
_NO_VERB = re.compile(
    rf"(?:{_CLAUSE}|A|After|All|Also|Always|An|Any|Before|Both|Each|Every|Everything|First|For|From|In|It|Its|Last|No"
    r"|None|Nothing|On|One|Only|Some|Such|The|Then|There|These|This|Those|To|Two|Until|Up|With|Without)\b"
    r"|(?![A-Z][a-z]+(?:-[a-z]+)?\b)"  # a name in code, a number, an abbreviation
    r"|\w+[^s]s\b"  # Bytes, Returns
    r"|\w+[^e]ed\b"  # Encoded
    r"|\w+(?<!Dispose) of\b"  # Length of
)
_WORDS = re.compile(
    r"\b(?:afresh|anew|anybody|for ever|nobody|somebody|whoever|whomever|(?:are|be|is|was|were) told"
    r"|should (?:it|this|that|there|the|a|an))\b",
    re.IGNORECASE,
)
_CODE = re.compile(r"```.*?```|``.*?``|`[^`]*`", re.DOTALL)
_QUOTED = re.compile(r'"[^"]*"')
# A sentence ends with its dot, a paragraph, an item of a list or a line that is laid out by hand.
_SENTENCE_END = re.compile(r"(?<=[.!?])[\")]*\s+(?=[A-Z0-9`\"(])|\n\s*\n|\n\s*-\s|\n {2,}")
_BY_HAND = "\b"
"""Beginning of a paragraph whose lines click leaves as they are."""


class Text(NamedTuple):
    """A text in a source file."""

    line: int
    kind: str
    """``function`` or ``noun`` (a class, module or constant) for docstrings, ``comment``, ``message``."""
    text: str


def texts(source: str) -> Iterator[Text]:
    """Yield the docstrings, comments and messages of a module."""
    tree = ast.parse(source)
    documented = set()
    for node, statement, string in _bare_strings(tree):
        documented.add(id(statement.value))
        text = inspect.cleandoc(string)
        of_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.body[0] is statement
        yield Text(statement.lineno, "function" if of_function else "noun", text)
        if of_function and _is_command(node):
            yield Text(statement.lineno, "message", text)
    yield from _messages(tree, documented)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], "comment", token.string)


def _bare_strings(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.Expr, str]]:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(string))):
                    yield node, statement, string


def _is_command(node: ast.AST) -> bool:
    """Return whether click shows the function's docstring as help."""
    return any(re.search(r"\b(?:command|group)\(", ast.unparse(each)) for each in getattr(node, "decorator_list", ()))


def _messages(tree: ast.Module, documented: set[int]) -> Iterator[Text]:
    """Yield the strings of a module; a value in a string is one word."""
    parts: set[int] = set()
    for node in ast.walk(tree):  # from the outside in: an f-string before its parts
        match node:
            case ast.JoinedStr(values=values):
                parts.update(map(id, values))
                yield Text(node.lineno, "message", "".join(map(_part, values)))
            case ast.Constant(value=str(text)) if id(node) not in parts and id(node) not in documented:
                if "\\" not in text:  # a pattern
                    yield Text(node.lineno, "message", text)


def _part(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "X"


def findings(text: Text) -> Iterator[str]:
    """Yield what is wrong with a text."""
    plain = _CODE.sub("X", text.text)
    for match in _WORDS.finditer(_QUOTED.sub("X", plain)):
        yield f"{match[0]!r}: name the actor, or say it plainly"
    if text.kind == "function" and _NO_VERB.match(text.text):
        yield f"{_beginning(text.text)!r}: begin with an imperative verb"
    if text.kind == "noun" and _NO_NOUN.match(text.text):
        yield f"{_beginning(text.text)!r}: begin with a noun phrase"
    if text.kind == "message":
        for sentence in _sentences(plain):
            if (count := len(sentence.split())) > WORDS_MAX:
                yield f"{_beginning(sentence)!r}: a sentence of {count} words, at most {WORDS_MAX}"


def _sentences(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        if not paragraph.startswith(_BY_HAND):
            yield from _SENTENCE_END.split(paragraph)


def _beginning(text: str) -> str:
    return " ".join(text.split()[:6])


def _findings_in(path: Path) -> Iterator[str]:
    place = path.relative_to(ROOT).as_posix()
    source = path.read_text()
    for text in texts(source):
        if place.startswith("tests/"):
            if text.kind == "message":
                continue
            text = text._replace(kind="comment")  # noqa: PLW2901 - no rule but the words
        yield from (f"{place}:{text.line}: {finding}" for finding in findings(text))


def _words_on(page: Path) -> Iterator[str]:
    for finding in findings(Text(1, "comment", page.read_text())):
        yield f"{page.relative_to(ROOT).as_posix()}: {finding}"


def main() -> int:
    """Print the findings. Return the exit status: 1 when there are any."""
    found: list[str] = []
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    for path in sorted(path for path in paths if path.resolve() == path):  # weft/ has links to its neighbours
        found += _findings_in(path)
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        if "decisions" not in page.parts:
            found += _words_on(page)
    for finding in found:
        print(finding)  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
