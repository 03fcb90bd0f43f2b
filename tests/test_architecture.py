"""The arrows between the packages: data flows one way, and each stage knows only those before it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

# In the order in which data flows; a package may import those before it and itself.
ORDER = [
    "types", "world", "interrupts", "exit_status", "store", "files", "attempt", "progress",
    "data", "models", "sampling", "grading", "composition", "algorithms", "training",
    "schema", "rules", "checks", "config", "evaluation", "verifier",
    "inputs", "console", "provenance", "run_folder", "tracking", "pipeline",
    "resolvers", "overrides", "jobs", "report", "sweeps", "paper",
]  # fmt: skip
# Programs of their own, which may import everything; `paper` alone imports some of them.
COMMANDS = {"__main__", "compare", "evaluate", "grade", "difficulty", "tabular"}
# `config` collects every stage's settings, and their settings are all that a stage shows it.
SETTINGS = {
    f"topr_exp.{stage}.config"
    for stage in ("data", "models", "sampling", "composition", "tracking", "training", "sweeps", "verifier")
}
PARTS_OF_CONFIG = {"rules", "checks"}  # it calls them, and they know its type


def modules() -> Iterator[tuple[str, str]]:
    """The top-level name that each file of the package belongs to, and its path."""
    for path in sorted((ROOT / "topr_exp").rglob("*.py")):
        package = path.relative_to(ROOT / "topr_exp").with_suffix("").parts[0]
        if package != "__init__":
            yield package, str(path)


def imports(path: str) -> Iterator[str]:
    """What a file imports of this package, below TYPE_CHECKING too."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "topr_exp":
            yield from (f"topr_exp.{name.name}" for name in node.names if not name.name.startswith("__"))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            if node.module and node.module.startswith("topr_exp."):
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("topr_exp."))


def test_every_part_of_the_package_has_its_place() -> None:
    assert {package for package, _ in modules()} == {*ORDER, *COMMANDS}
    assert not set(ORDER) & COMMANDS


@pytest.mark.parametrize(("package", "path"), [each for each in modules() if each[0] not in COMMANDS])
def test_no_stage_imports_a_later_one(package: str, path: str) -> None:
    for imported in imports(path):
        name = imported.split(".")[1]
        if imported in SETTINGS or (name in COMMANDS and package == "paper"):
            continue
        if package in PARTS_OF_CONFIG and name == "config":
            continue
        assert name not in COMMANDS, f"{path} imports {imported}"
        assert ORDER.index(name) <= ORDER.index(package), f"{path} imports {imported}"


def test_algorithms_import_torch_and_types_only() -> None:
    for path in (ROOT / "topr_exp" / "algorithms").glob("*.py"):
        for imported in imports(str(path)):
            assert imported.startswith(("topr_exp.types", "topr_exp.algorithms"))


def test_nothing_but_the_settings_names_an_algorithm() -> None:
    names = [path.stem for path in (ROOT / "conf" / "algo").glob("*.yaml")]
    for package in ("training", "composition", "sampling", "evaluation"):
        for path in (ROOT / "topr_exp" / package).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            strings = {
                node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
            assert not strings & set(names), path
            assert not any("algorithms" in imported for imported in imports(str(path))), path


def test_checking_settings_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    heavy = ["torch", "transformers", "numpy", "pyarrow", "sympy", "datasets", "wandb", "matplotlib"]
    code = (
        "import sys; from hydra._internal.utils import get_args_parser; from topr_exp.jobs import plan;"
        "plan(get_args_parser().parse_args(['data=math', 'algo=dpo']));"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True, timeout=300
    )
    assert done.stdout.strip() == "[]"
