"""The prose check finds what it is for, and nothing else."""

from __future__ import annotations

import pytest

from docs.tools.prose import findings, texts

LONG = "one two three four five six seven eight nine ten " * 3


def found(source: str) -> list[str]:
    return [finding for text in texts(source) for finding in findings(text)]


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ('def length():\n    """Bytes of the batch."""', "imperative verb"),
        ('def length():\n    """The bytes of the batch."""', "imperative verb"),
        ('def length():\n    """Length of the batch."""', "imperative verb"),
        ('def is_open():\n    """Whether the door is open."""', "imperative verb"),
        ('def end():\n    """``seq`` of the end."""', "imperative verb"),
        ('class Door:\n    """What lets clients in."""', "noun phrase"),
        ('LIMIT = 1\n"""How many there may be."""', "noun phrase"),
        ('class Door:\n    limit: int\n    """as the settings say."""', "noun phrase"),
        ("x = 1  # nobody knows why", "name the actor"),
        ('"""Rules of the door. Should this fail, close it."""', "name the actor"),
        ('raise ValueError(f"the client is told {reason}")', "name the actor"),
        (f'raise ValueError("{LONG}")', "a sentence of 30 words"),
        (f'raise ValueError(f"{{name}}: {LONG}")', "a sentence of 31 words"),
        (f'@click.command()\ndef run():\n    """Run the node.\n\n    {LONG}\n    """', "a sentence of 30 words"),
    ],
)
def test_what_readers_stumble_over_is_found(source: str, rule: str) -> None:
    (finding,) = found(source)
    assert rule in finding


@pytest.mark.parametrize(
    "source",
    [
        'def length():\n    """Return the bytes of the batch."""',
        'def process():\n    """Process a batch."""',
        'def feed():\n    """Feed the machine."""',
        'class Door:\n    """Doorkeeper of the node; whatever it admits is counted."""',
        'LIMIT = 1\n"""64 KiB, the least that a client can use."""',
        'user = "an account called `nobody`"  # such as "nobody"',
        f'def run():\n    """Run the node.\n\n    {LONG}\n    """',
        f'@click.command()\ndef run():\n    """Run the node.\n\n    \\b\n    {LONG}\n    """',
        f'raise ValueError("First: {LONG[:60]}. Then: {LONG[:60]}")',
        'raise ValueError("set `one two three four five six seven eight nine ten` ' + LONG[:90] + '")',
    ],
)
def test_plain_sentences_pass(source: str) -> None:
    assert found(source) == []
