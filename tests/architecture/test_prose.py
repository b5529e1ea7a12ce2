"""The prose check finds what it is for, and nothing else."""

from __future__ import annotations

import pytest

from docs.tools.prose import broken_code, findings, long_lines, mended, texts, wrapped

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
        ('"""Rules of the door. Others go on without it."""', "say it plainly"),
        ('raise ValueError(f"{name} is no mapping")', "write 'is not'"),
        ('raise ValueError(f"it has {value}, which is no {kind}")', "write 'is not'"),
        ('raise ValueError("the claims are no object")', "write 'are not'"),
        ('raise ValueError(f"a header has 64 bytes, {count} are there")', "the field's own word"),
        ('raise ValueError(f"{name} has no meaning here. Take it out")', "the field's own word"),
        ('raise ValueError("the edge takes its settings back")', "the field's own word"),
        ('raise ValueError(f"rows came meanwhile: {count}")', "the field's own word"),
        ('raise ValueError("erase it? There is no way back")', "the field's own word"),
        ('raise ValueError("the status says why")', "the field's own word"),
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
        'raise ValueError("there is no room: what is no longer needed is not a reason, and there was no more")',
        "x = 1  # which is no fault of the hub, once it is there",
        'user = "an account called `nobody`"  # such as "nobody"',
        f'def run():\n    """Run the node.\n\n    {LONG}\n    """',
        f'@click.command()\ndef run():\n    """Run the node.\n\n    \\b\n    {LONG}\n    """',
        f'raise ValueError("First: {LONG[:60]}. Then: {LONG[:60]}")',
        'raise ValueError("set `one two three four five six seven eight nine ten` ' + LONG[:90] + '")',
    ],
)
def test_plain_sentences_pass(source: str) -> None:
    assert found(source) == []


WORDS = "word " * 22 + "word"


@pytest.mark.parametrize(
    ("page", "made"),
    [
        (f"{WORDS} so that\nit is.\n", f"{WORDS} so\nthat it is.\n"),
        (f"1. {WORDS} a `b\n   c`.\n- d\n", f"1. {WORDS} a\n   `b c`.\n- d\n"),
        ("As `./run\nfix` does.\n", "As `./run fix` does.\n"),
        (f"{WORDS} a - b and on\n", f"{WORDS} a - b\nand on\n"),
        (f"{WORDS} and 4. is\n", f"{WORDS}\nand 4. is\n"),
        (f"  {WORDS} the second part  \nof it\n", f"  {WORDS} the\n  second part\nof it\n"),
        (f"short\nlines\n\n| {WORDS} {WORDS} |\n```sh\n{WORDS} {WORDS}\n```\n# {WORDS} is long\n", ""),
    ],
)
def test_a_page_is_wrapped_where_it_has_to_be(page: str, made: str) -> None:
    assert wrapped(page) == (made or page)
    assert wrapped(wrapped(page)) == wrapped(page)
    if made:
        assert [*long_lines(made)] == broken_code(made) == []


MODULE = f'''"""{WORDS} and further on.

    python -m {WORDS} {WORDS}
"""

A = "{WORDS} {WORDS}"
# {WORDS} and so
# on.


def f(a):
    """Whether it is {WORDS}.

    Args:
        a: {WORDS}, and further on
            as this.
        b: short.

    Raises:
        Gone: {WORDS}, and further on
    """
    # noqa: {WORDS} {WORDS}


def g():
    """{WORDS} Yes it is.

    - {WORDS} and further
    """
'''
MENDED = {
    f"{WORDS} and further on.\n\n": f"{WORDS}\nand further on.\n\n",
    f"# {WORDS} and so\n# on.": f"# {WORDS} and\n# so on.",
    f"Whether it is {WORDS}.": f"Return whether it is {WORDS[:89]}\n    word word word word word.",
    f"a: {WORDS}, and further on\n            as": f"a: {WORDS[:109]}\n            word, and further on as",
    f"Gone: {WORDS},": f"Gone: {WORDS[:104]}\n            word word,",
    f"{WORDS} Yes": f"{WORDS[:109]}\n    word Yes",
    f"- {WORDS} and": f"- {WORDS}\n      and",
}


def test_a_module_is_mended_in_what_needs_no_author() -> None:
    made = MODULE
    for old, new in MENDED.items():
        assert made.count(old) == 1
        made = made.replace(old, new)
    assert mended(MODULE).splitlines() == made.splitlines()
    assert mended(made) == made
    assert mended('def test():\n    """Whether it is."""\n', is_test=True).count("Whether") == 1
