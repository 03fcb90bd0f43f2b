"""Hooks of the site (mkdocs.yml): README is its first page, formulas are MathML, files outside docs/ are named.

The page of weights is the output of `python -m topr_exp.losses`. The build fails where two pages share a destination
and where a page has no heading, from which the menu takes its title.
"""

from __future__ import annotations

import contextlib
import html
import io
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', re.DOTALL)
FUNCTION = re.compile(r"<mi>(?:log|exp)</mi>")
THIN_SPACE = '<mspace width="0.167em" />'


def on_files(files: Files, config: Any) -> Files:
    """Add README as index.md, its links and pictures seen from docs/, and the page of weights."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    files.append(File.generated(config, "weights.md", content=weights_page()))
    refuse_shared_destinations(files)
    return files


def refuse_shared_destinations(files: Files) -> None:
    """Raise PluginError if two files build to the same path, so that one would overwrite the other."""
    source_of: dict[str, str] = {}
    for file in files:
        if file.inclusion.is_excluded():
            continue
        source = source_of.setdefault(file.dest_uri, file.src_uri)
        if source != file.src_uri:
            raise PluginError(f"{source} and {file.src_uri} both build to {file.dest_uri}: rename one")


def weights_page() -> str:
    """Return the command's output below its description."""
    from topr_exp import losses

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        losses.main([])
    output = printed.getvalue()
    assert losses.__doc__ is not None
    return f"# Weights of losses\n\n{losses.__doc__}\n![Each loss](images/losses.png)\n\n```\n{output}```\n"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links to files of the repository that are no pages into their text and, where it differs, their path."""
    docs = ROOT / "docs"
    folder = (docs / page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        text, target, _ = link.groups()
        path = (folder / target).resolve()
        if page.file.src_uri == "index.md" and not path.exists():  # README's links are seen from the repository's root
            path = (ROOT / target).resolve()
        is_page = path.is_relative_to(docs) and path.is_file() and path.suffix == ".md"
        if is_page or not path.exists():  # a link that leads nowhere ends the build
            return link[0]
        name = path.relative_to(ROOT).as_posix()
        if name in text or text.strip("`") in name:
            return text
        return f"{text} (`{name}`)"

    return LINK.sub(named, markdown)


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Replace formulas by MathML; PluginError for a page without a heading."""
    if "<h1" not in content:
        raise PluginError(f"{page.file.src_uri} has no heading of level 1, which the menu would show")
    return FORMULA.sub(mathml, content)


def mathml(formula: re.Match[str]) -> str:
    """Convert a formula in LaTeX to MathML; PluginError for a command that the converter leaves as it is."""
    element, latex = formula.groups()
    display = "inline"
    if element == "div":
        display = "block"
    converted = convert(html.unescape(latex), display=display)
    if unknown := re.search(r"\\\w+", converted):
        raise PluginError(f"{unknown[0]} in a formula has no MathML: write it in other commands")
    return FUNCTION.sub(rf"\g<0>{THIN_SPACE}", converted)
