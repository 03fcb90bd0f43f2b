"""reproduce stands on the public names of topr_exp, as a user's notebook does."""

import ast
import re

import pytest

import topr_exp
from tests.conftest import ROOT, document
from topr_exp import report

PUBLIC_NAMES = {"topr_exp": set(topr_exp.__all__), "topr_exp.report": set(report.__all__)}


def imported_names(path):
    """The modules of topr_exp that a file imports from, each with a name; "*": the module itself."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names += [(str(node.module), alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [(alias.name, "*") for alias in node.names]
    return [(module, name) for module, name in names if module.split(".")[0] == "topr_exp"]


def test_files_import_public_names_alone():
    for path in (ROOT / "reproduce").rglob("*.py"):
        for module, name in imported_names(path):
            assert name in PUBLIC_NAMES.get(module, set()), f"{path}: {module}.{name}"


def test_public_functions_and_classes_stand_on_the_page_of_the_api():
    members_of_modules = {}
    for block in document("api.md").split("\n::: ")[1:]:
        module, _, options = block.partition("\n")
        members_of_modules[module] = set(re.findall(r"\w+", options)) - {"options", "members"}

    for name in topr_exp.__all__:
        if name == "Config":  # docs/reference.md has the settings
            continue
        members = members_of_modules[getattr(topr_exp, name).__module__]
        assert not members or name in members, name  # without options a module shows all that it describes


@pytest.mark.parametrize("module", PUBLIC_NAMES)
def test_public_names_stand_in_the_document(module):
    words = set(re.findall(r"\w+", document("python.md")))

    assert PUBLIC_NAMES[module] <= words, "docs/python.md does not name them"
