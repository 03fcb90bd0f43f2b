"""The hooks of the site: one address a page, a heading for the menu, formulas that need no script."""

import re
from types import SimpleNamespace

import pytest

pytest.importorskip("mkdocs", reason="the extra `docs`")
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from scripts.site_hooks import on_page_content, on_page_markdown, refuse_shared_destinations
from tests.conftest import each_row

PAGE = SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))


def rendered(content):
    return on_page_content(content, PAGE, None, Files([]))


def test_two_pages_of_one_destination_are_refused_by_their_names():
    sources = ("index.md", "results.md", "results/README.md")
    files = [File(source, "docs", "site", use_directory_urls=True) for source in sources]

    refuse_shared_destinations(Files(files[:2]))
    with pytest.raises(PluginError, match=r"results.md and results/README.md both build to results/index.html"):
        refuse_shared_destinations(Files(files))


def test_a_link_to_a_file_is_its_name_and_one_that_leads_nowhere_stays_for_the_build_to_refuse():
    text = "[the pipeline](../topr_exp/pipeline.py), [tutorial](tutorial.md), [gone](no_such_page.md)"

    assert on_page_markdown(text, PAGE, None, Files([])) == (
        "the pipeline (`topr_exp/pipeline.py`), [tutorial](tutorial.md), [gone](no_such_page.md)"
    )


REFUSED = r"""
<h2>Below</h2> | page.md has no heading
<h1>Page</h1><span class="arithmatex">\(\nosuch x\)</span> | \nosuch in a formula
"""


@each_row("content message", REFUSED)
def test_a_page_without_a_heading_or_with_an_unknown_command_is_refused(content, message):
    with pytest.raises(PluginError, match=re.escape(message)):
        rendered(content)


FORMULAS = """
div | [ | ] | block
span | ( | ) | inline
"""


@each_row("element opening closing display", FORMULAS)
def test_a_formula_becomes_mathml(element, opening, closing, display):
    formula = f'<{element} class="arithmatex">\\{opening}\\log \\pi &lt; 0\\{closing}</{element}>'

    content = rendered(f"<h1>Page</h1>{formula}")

    assert f'display="{display}"' in content
    assert "<mi>log</mi><mspace" in content, "log and its argument are apart"
    assert "&#x003C0;" in content
    assert "&#x0003C;" in content, "the escaped sign"
    assert "arithmatex" not in content
