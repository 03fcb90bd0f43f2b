"""reproduce stands on the public names of topr_exp, as a user's notebook does."""

import ast
import re
from pathlib import Path

import pytest

import topr_exp
from tests.conftest import ROOT
from topr_exp import report

FILES = sorted((ROOT / "reproduce").rglob("*.py"))
PUBLIC_NAMES = {"topr_exp": set(topr_exp.__all__), "topr_exp.report": set(report.__all__)}
DOCUMENT = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def imported_names(path: Path) -> set[tuple[str, str]]:
    """The names that a file imports from topr_exp, with their modules."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "topr_exp":
            names |= {(str(node.module), alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names if alias.name.split(".")[0] == "topr_exp"]
            names |= {(module, "*") for module in modules}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "reproduce")))
def test_a_file_imports_public_names_alone(path: Path) -> None:
    for module, name in imported_names(path):
        assert name in PUBLIC_NAMES.get(module, set()), f"{path}: {module}.{name}"


@pytest.mark.parametrize("module", PUBLIC_NAMES)
def test_public_names_stand_in_the_document(module: str) -> None:
    missing = [name for name in PUBLIC_NAMES[module] if not re.search(rf"\b{name}\b", DOCUMENT)]
    assert not missing, "docs/python.md does not name them"
