"""Reasons why a window cannot take a row."""

from __future__ import annotations


class Refusal(Exception):
    """A row that a window cannot take, with a reason for people. It goes to the stream of errors."""


class Late(Refusal):
    """A row that arrived after all its windows were closed."""


class Full(Refusal):
    """A row that needs a new window when the bound on windows is reached."""
