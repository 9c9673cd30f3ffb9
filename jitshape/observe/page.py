"""The report as one HTML page that needs nothing beside it.

In: FunctionStories.  Out: a page with a section for each function: entries, guards by line,
misses with the values met, and fixes.  All text is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jitshape.observe.report import plural, use_of
from jitshape.observe.story import FunctionStory


@cache
def _template() -> Any:
    import jinja2

    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=folder,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(use_of=use_of, plural=plural)
    return environment.get_template("page.html")


def page(told: Sequence[FunctionStory], title: str = "jitshape") -> str:
    """The text of the page."""
    return _template().render(
        title=title,
        stories=told,
        compiles=sum(story.compiles for story in told),
        fixes=sorted(
            ((fix, story) for story in told for fix in story.fixes),
            key=lambda pair: -pair[0].saves,
        ),
    )
