"""The hooks of the site: one address a page, a heading for the menu, formulas that need no script."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mkdocs", reason="the extra `docs`")
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from scripts.site_hooks import on_page_content, on_page_markdown, refuse_shared_destinations


def files_of(*sources: str) -> Files:
    return Files([File(source, "docs", "site", use_directory_urls=True) for source in sources])


def rendered(content: str) -> str:
    page: Any = SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))
    return on_page_content(f"<h1>Page</h1>{content}", page, None, Files([]))


def test_two_pages_of_one_destination_are_refused_by_their_names() -> None:
    refuse_shared_destinations(files_of("index.md", "evaluate.md", "results/README.md"))
    with pytest.raises(PluginError, match=r"results.md and results/README.md both build to results/index.html"):
        refuse_shared_destinations(files_of("index.md", "results.md", "results/README.md"))


def test_a_link_to_a_file_is_its_name_and_one_that_leads_nowhere_stays_for_the_build_to_refuse() -> None:
    page: Any = SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))
    text = "[the pipeline](../topr_exp/pipeline.py), [tutorial](tutorial.md), [gone](no_such_page.md)"
    named = "the pipeline (`topr_exp/pipeline.py`), [tutorial](tutorial.md), [gone](no_such_page.md)"
    assert on_page_markdown(text, page, None, Files([])) == named


def test_a_page_without_a_heading_is_refused() -> None:
    page: Any = SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))
    with pytest.raises(PluginError, match=r"page\.md has no heading"):
        on_page_content("<h2>Below</h2>", page, None, Files([]))


@pytest.mark.parametrize(
    ("element", "opening", "closing", "display"), [("div", "[", "]", "block"), ("span", "(", ")", "inline")]
)
def test_a_formula_becomes_mathml(element: str, opening: str, closing: str, display: str) -> None:
    formula = f'<{element} class="arithmatex">\\{opening}\\log \\pi &lt; 0\\{closing}</{element}>'
    content = rendered(formula)
    assert f'display="{display}"' in content
    assert "<mi>log</mi><mspace" in content, "log and its argument are apart"
    assert "&#x003C0;" in content
    assert "&#x0003C;" in content, "the escaped sign"
    assert "arithmatex" not in content


def test_a_command_without_mathml_is_refused() -> None:
    with pytest.raises(PluginError, match=r"\\nosuch in a formula"):
        rendered('<span class="arithmatex">\\(\\nosuch x\\)</span>')
