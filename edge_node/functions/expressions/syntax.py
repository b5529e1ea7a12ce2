"""Parsing of an expression's text to a tree, with hints for habits of other languages."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings

from weft.edge_node.functions.expressions.bounds import CHARACTERS_MAX, DEPTH_MAX
from weft.edge_node.functions.expressions.errors import InvalidExpression


def tree_of(text: str) -> ast.expr:
    """Return the tree of an expression by Python's parser.

    Raises:
        InvalidExpression: it is too long, empty, or not an expression of Python.
    """
    if len(text) > CHARACTERS_MAX:
        raise InvalidExpression(1, f"{len(text)} characters; an expression has at most {CHARACTERS_MAX}")
    if not text:
        raise InvalidExpression(1, "the expression is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's advice on texts such as "\d" is for its own programs.
            tree = ast.parse(text, mode="eval").body
        comment = next((token for token in _tokens(text) if token.type == tokenize.COMMENT), None)
    except SyntaxError as error:
        raise InvalidExpression(_column_of(error, text), _hint(error, text)) from None
    except (ValueError, tokenize.TokenError) as error:
        raise InvalidExpression(1, f"this is not an expression: {error}") from None
    except (RecursionError, MemoryError):
        raise InvalidExpression(1, f"nested deeper than {DEPTH_MAX}") from None
    if comment is not None:
        raise InvalidExpression(comment.start[1] + 1, "comments are not allowed in an expression; use those of YAML")
    return tree


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(text).readline)) if "#" in text else []


def _column_of(error: SyntaxError, text: str) -> int:
    if error.offset == 0:  # the text ends too early
        return len(text) + 1
    return min(max(error.offset or 1, 1), len(text) + 1)


def _hint(error: SyntaxError, text: str) -> str:
    words = text.replace("(", " ").replace(")", " ").split()
    if "&&" in text or "||" in text:
        return "write `and` and `or` instead of && and ||"
    if words and (
        "=" in words or (error.msg or "").startswith(("invalid syntax. Maybe you meant '=='", "cannot assign"))
    ):
        return "write == to compare"
    if "!" in text.replace("!=", ""):
        return "write `not` instead of !"
    if error.offset == 0:
        return "it ends too early; something is missing here"
    return f'{error.msg or "this is not an expression"}; a field whose name is not a word is field("its name")'
