"""Hooks of the site (mkdocs.yml): README is its first page, what lies outside docs/ is named, not linked.

One page of the reference is what `python -m topr_exp.losses` prints.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add README as index.md, its links and pictures seen from docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    files.append(File.generated(config, "losses.md", content=losses_page()))
    return files


def losses_page() -> str:
    """Show what the command prints, below what it says of itself."""
    from topr_exp import losses

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        losses.main([])
    assert losses.__doc__ is not None
    return f"# Weights of losses\n\n{losses.__doc__}\n![Each loss](images/losses.png)\n\n```\n{printed.getvalue()}```\n"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links to files of the repository that are no pages into their text and, where it differs, their path."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        text, target, _ = link.groups()
        place = (ROOT if page.file.src_uri == "index.md" and not (folder / target).exists() else folder) / target
        path = place.resolve()
        if path.is_relative_to(ROOT / "docs") and path.is_file() and path.suffix == ".md":
            return link[0]
        shown = path.relative_to(ROOT).as_posix()
        return text if shown in text or text.strip("`") in shown else f"{text} (`{shown}`)"

    return LINK.sub(named, markdown)
