"""Check of how the project writes: docstrings, comments, help and messages. ``python -m docs.tools.prose`` prints them.

With ``--fix`` it mends first what needs no author: lines that are too long, code that a line end parts on a page, and
docstrings of functions that begin with "Whether" or "Returns". ``./run fix`` calls it.

The rules are few and exact, so that there are no exceptions to list:

- A function's docstring begins with an imperative verb; a class's, module's or constant's with a noun phrase.
- Words that hide the actor, or send the reader to an old dictionary, are in no docstring, comment or message.
- A sentence of a message, of help or of a setting's description has at most 25 words. Code in backticks is one word.
- A message says "is not a number", not "is no number"; "a file exists", not "is there"; "remove it", not "take it out".

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
    "bench",
    "bounds",
    "cloud_hub",
    "config",
    "docs",
    "edge_node",
    "examples",
    "functions",
    "hub_api",
    "network",
    "proofs",
    "protocols",
    "pyspark_weft",
    "replication",
    "spark_sinks",
    "storage",
    "tests",
    "weft",
)
WORDS_MAX = 25
"""Longest sentence of a message, which is often read in a hurry."""
WIDTH = 120
"""Columns of a line: prose is beside code. Tables, code and what a program writes may be wider."""

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
    r"|(?:go|goes|went) on|stands? instead"
    r"|should (?:it|this|that|there|the|a|an))\b",
    re.IGNORECASE,
)
# The field has a word for each: a file exists, a header has 12 of 64 bytes, a setting is removed, a hub accepts or
# reverts, an edge reports, a body arrives, an act is irreversible.
_HABITS = re.compile(
    r"\b(?:"
    r"(?:are|is|was|were) there|there (?:already|yet)"
    r"|takes? no|(?:taken|takes?) nothing|takes? (?:\w+ ){1,4}(?:away|out)|(?:taken|takes?|took) (?:\w+ ){0,4}back"
    r"|a word from|words about|nothing says|said to|sa(?:id|y|ys) (?:how|more|nothing|so|which|why)"
    r"|stands? (?:above|alone|still)|opens? nothing|read on|let in|need be|went away|ways? (?:back|to)|on the way"
    r"|(?:has|have|still to|yet to) come|came (?:before|in|late|meanwhile|too|twice)|comes? (?:in|meanwhile)"
    r")\b",
    re.IGNORECASE,
)
_FIELDS_WORD = "write the field's own word, such as exists, has, remove, accept, report or arrive"
# "There is no room" and "is no longer" are plain English. An f-string has X for a value.
_IS_NO = re.compile(r"(?<!\bthere )\b(?:are|is|was|were) no (?!fewer\b|less\b|longer\b|more\b)\w", re.IGNORECASE)
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
        for match in _IS_NO.finditer(_QUOTED.sub("X", plain)):
            yield f"{match[0].strip()!r}: write '{match[0].split()[0]} not'"
        for match in _HABITS.finditer(_QUOTED.sub("X", plain)):
            yield f"{match[0]!r}: {_FIELDS_WORD}"
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
        for finding in findings(text):
            yield f"{place}:{text.line}: {finding}"


def _words_on(page: Path) -> Iterator[str]:
    for finding in findings(Text(1, "comment", page.read_text())):
        yield f"{page.relative_to(ROOT).as_posix()}: {finding}"


_FENCE = re.compile(r" *```")
_WORD = re.compile(r"(?:``.*?``|`[^`]*`|\S)+")
_PART = re.compile(r"\n(?= *(?:[-*]|\d+\.) |\n)")
_ITEM = re.compile(r" *(?:[-*+]|\d+[.)]) +")
# Tables, indented code, HTML, quotes, headings, rules, and what a link of the page leads to.
_NO_PARAGRAPH = re.compile(r" *\||    | *<| *>| *#| *\[[^\]]+\]: | *[-=*_]{3,} *$")
_NO_BEGINNING = re.compile(r"(?:[-+*=#>|:]+|\d+[.)])$|[#>|]")
"""Words that would begin a list, a heading, a quote or a table if a line began with them."""


def long_lines(page: str) -> Iterator[str]:
    """Yield the lines of a page's prose that are too long."""
    is_code = False
    for line in page.splitlines():
        is_code ^= _FENCE.match(line) is not None
        is_code_alone = re.fullmatch(r" *`[^`]*`\S*", line) is not None
        if len(line) > WIDTH and not (is_code or is_code_alone or re.match(r" *[|\[]|    ", line)):
            yield line


def broken_code(page: str) -> list[str]:
    """Return the code in a page's prose that continues in the next line, where a search does not find it."""
    prose = re.sub(r"^ *```.*?^ *```$|^(?:    |\|).*?$", "", page, flags=re.S | re.M)
    codes = (code for part in _PART.split(prose) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", part))
    return [code for code in codes if "\n" in code]


def handwritten_pages() -> list[Path]:
    """Return the pages that no program writes."""
    pages = [*ROOT.glob("*.md"), *(page for folder in ("docs", "bench") for page in (ROOT / folder).rglob("*.md"))]
    return sorted(page for page in pages if "<!-- Written by" not in page.read_text())


def wrapped(page: str) -> str:
    """Return a page whose paragraphs with a line that is too long, or with broken code, are filled again."""
    done, paragraph = list[str](), list[str]()

    def end_paragraph() -> None:
        text = "\n".join(paragraph)
        if next(long_lines(text), None) is not None or broken_code(text):
            item = _ITEM.match(text)
            first = item[0] if item else " " * (len(text) - len(text.lstrip()))
            done.extend(filled(text[len(first) :], first, " " * len(first)))
        else:
            done.extend(paragraph)
        paragraph.clear()

    is_code = False
    for line in page.split("\n"):
        is_fence = _FENCE.match(line) is not None
        is_prose = bool(line.strip()) and not is_code and not is_fence and not _NO_PARAGRAPH.match(line)
        is_code ^= is_fence
        if not is_prose or _ITEM.match(line):
            end_paragraph()
        if is_prose:
            paragraph.append(line)
            if line.endswith(("  ", "\\")):  # a line break of the author's
                end_paragraph()
        else:
            done.append(line)
    end_paragraph()
    return "\n".join(done)


def filled(text: str, first: str, rest: str) -> list[str]:
    """Return a text in lines of ``WIDTH``, the first of which begins with ``first`` and all others with ``rest``."""
    words = list[str]()
    for word in _WORD.findall(" ".join(text.split())):
        if words and _NO_BEGINNING.match(word):
            words[-1] += f" {word}"
        else:
            words.append(word)
    lines, line = list[str](), first
    for number, word in enumerate(words):
        if number and len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = rest + word
        else:
            line += f" {word}" if number else word
    return [*lines, line]


_OLD_VERBS = {"Whether ": "Return whether ", "Returns ": "Return ", "Yields ": "Yield ", "Raises ": "Raise "}
_SECTION = re.compile(r"(\w+):$")


def mended(source: str, *, is_test: bool = False) -> str:
    """Return a module with what needs no author: verbs of functions' docstrings, and lines of prose that fit.

    Raises:
        AssertionError: it would no longer be the same module; nothing is to be written.
    """
    lines = source.split("\n")
    if all(len(line) <= WIDTH for line in lines) and not any(f'"""{old}' in source for old in _OLD_VERBS):
        return source  # without parsing what most modules are
    for node, statement, string in _bare_strings(ast.parse(source)):
        of_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.body[0] is statement
        for old, new in _OLD_VERBS.items() if of_function and not is_test else ():
            if string.startswith(old):
                at = statement.lineno - 1
                lines[at] = lines[at].replace(f'"""{old}', f'"""{new}', 1)
    # From the end, so that what comes before keeps its lines.
    for first, end, base in sorted(_prose_of("\n".join(lines)), reverse=True):
        lines[first:end] = _filled_prose(lines[first:end], base)
    made = "\n".join(lines)
    assert made == source or _meaning(made) == _meaning(source)
    return made


def _prose_of(source: str) -> Iterator[tuple[int, int, int]]:
    """Yield the docstrings and comments that have a line which is too long: first line, line after it, indent."""
    lines = source.split("\n")
    found = [
        (statement.lineno - 1, statement.end_lineno or statement.lineno, statement.col_offset)
        for _, statement, _ in _bare_strings(ast.parse(source))
    ]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            line, base = token.start
            if found[-1:] and found[-1][1:] == (line - 1, base):  # the comment continues
                found[-1] = (found[-1][0], line, base)
            else:
                found.append((line - 1, line, base))
    for first, end, base in found:
        if any(len(line) > WIDTH for line in lines[first:end]):
            yield first, end, base


def _filled_prose(lines: list[str], base: int) -> list[str]:
    """Return a docstring or a comment, filled again from each line on that is too long."""
    done, section, at = list[str](), "", 0
    while at < len(lines):
        line = lines[at]
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent <= base:
            title = _SECTION.fullmatch(line.strip())
            section = title[1] if title else ""
        is_comment = line.lstrip().startswith("#")
        is_by_hand = indent >= base + 4 and not section
        if len(line) <= WIDTH or is_by_hand or (is_comment and re.match(r"# ?(?:noqa|type:|fmt:|!)", line.strip())):
            done.append(line)
            at += 1
            continue
        is_entry = section not in ("", "Returns", "Yields") and indent == base + 4
        item = _ITEM.match(line)
        rest = f"{' ' * indent}# " if is_comment else " " * (len(item[0]) if item else indent + 4 * is_entry)
        end = at + 1
        while end < len(lines) and _continues(lines[end], rest):
            end += 1
        first = rest if is_comment else " " * indent
        text = " ".join([line[len(first) :], *(each[len(rest) :] for each in lines[at + 1 : end])])
        done += filled(text, first, rest)
        at = end
    return done


def _continues(line: str, rest: str) -> bool:
    """Return whether a line of a docstring or comment continues a paragraph whose lines begin with this."""
    text = line[len(rest) :]
    return line.startswith(rest) and not text.startswith((" ", '"""')) and bool(text) and not _ITEM.match(text)


def _meaning(source: str) -> str:
    """Return what a module is, whatever the line ends and old verbs of its texts."""
    module = ast.parse(source)
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = " ".join(node.value.split())
            node.value = next((new + text[len(old) :] for old, new in _OLD_VERBS.items() if text.startswith(old)), text)
    return ast.dump(module)


def wrap_pages() -> None:
    """Write the pages that have lines which are too long."""
    for page in handwritten_pages():
        _write(page, wrapped(page.read_text()))


def _write(path: Path, text: str) -> None:
    if text != path.read_text():
        path.write_text(text)
        print(f"mended {path.relative_to(ROOT).as_posix()}")  # noqa: T201


def _modules() -> list[Path]:
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in paths if path.resolve() == path)  # weft/ has links to its neighbours


def main(*, fix: bool) -> int:
    """Print the findings; with ``fix``, those that are left. Return the exit status: 1 when there are any."""
    found: list[str] = []
    if fix:
        wrap_pages()
        for path in _modules():
            _write(path, mended(path.read_text(), is_test="tests" in path.relative_to(ROOT).parts))
    for path in _modules():
        found += _findings_in(path)
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        if "decisions" not in page.parts:
            found += _words_on(page)
    for finding in found:
        print(finding)  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(fix="--fix" in sys.argv[1:]))
