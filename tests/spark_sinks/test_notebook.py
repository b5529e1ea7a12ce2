"""The tutorial's notebook runs from its first cell to its last, and says what it says in the repository."""

from __future__ import annotations

import copy
import re

import pytest
from PIL import Image

from docs.tools.prose import Text, findings
from docs.tutorial.notebook import PATH, execute, pictures, read_notebook, texts


def colours(image: Image.Image) -> int:
    small = image.convert("RGB").resize((90, 46), Image.Resampling.NEAREST)
    return len(small.getcolors(90 * 46) or [])


@pytest.mark.search(turns=4)
@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.timeout(590)
def test_the_notebook_does_what_it_shows() -> None:
    shown = read_notebook()
    done = execute(copy.deepcopy(shown))
    for number, (here, there) in enumerate(zip(texts(done), texts(shown), strict=True)):
        assert here == there, f"cell {number}: run `python -m docs.tutorial.notebook` and look at what has changed"
    # Lines, shades and text: no picture is empty.
    assert [colours(image) > 3 for image in pictures(done)] == [True] * len(pictures(shown))


def test_the_notebook_is_kept_with_its_outputs() -> None:
    """It is read where it cannot be run, too."""
    shown = read_notebook()
    assert len(pictures(shown)) == 5
    said = "\n".join(texts(shown))
    assert "complete until 2020-07-13T08:00:00+00:00" in said
    assert "complete until 2020-07-14T00:00:00+00:00" in said
    assert "369 budget" in said
    assert "equal: True True" in said
    assert "good: every record is in the log once" in said


def test_the_text_of_the_notebook_reads_well_and_leads_somewhere() -> None:
    text = "\n".join(cell.source for cell in read_notebook().cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#]+)", text)
    assert links
    assert [link for link in links if not (PATH.parent / link).exists()] == []
    assert list(findings(Text(1, "comment", text))) == []
