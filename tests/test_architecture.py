"""The arrows between the packages: data flows one way, and each stage knows only those before it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

# In the order in which data flows; a package may import those before it and itself.
ORDER = [
    "types", "algorithms", "config", "runtime", "store",
    "data", "models", "sampling", "grading", "composition", "training", "evaluation", "verifier",
    "runs", "tracking", "pipeline", "report", "sweeps",
]  # fmt: skip
# Programs of their own, which may import everything and are imported by nobody.
COMMANDS = {"__main__", "compare", "evaluate", "grade", "difficulty"}
BESIDE = ("reproduce", "scripts")  # the library: import it and are imported by nothing in it


def modules() -> Iterator[tuple[str, str]]:
    """The top-level name that each file of the package belongs to, a package's command apart, and its path."""
    for path in sorted((ROOT / "topr_exp").rglob("*.py")):
        parts = path.relative_to(ROOT / "topr_exp").with_suffix("").parts
        package = parts[-1] if parts[-1] == "__main__" else parts[0]
        if package != "__init__":
            yield package, str(path)


def imports(path: str) -> Iterator[str]:
    """The modules of this repository that a file imports, below TYPE_CHECKING too."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            if node.module and node.module.split(".")[0] in ("topr_exp", *BESIDE):
                yield from (f"{node.module}.{name.name}" for name in node.names if not name.name.startswith("__"))
        elif isinstance(node, ast.Import):
            roots = tuple(f"{root}." for root in ("topr_exp", *BESIDE))  # the package's own name is below all parts
            yield from (name.name for name in node.names if name.name.startswith(roots))


def name_of(path: str) -> str:
    """A file's name as a module; a package's is that of its folder."""
    parts = Path(path).relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def nearest(imported: str) -> str:
    """The module that an import reads: of `package.module.name` the longest part that is a file or a folder."""
    parts = imported.split(".")
    while not (path := ROOT.joinpath(*parts)).with_suffix(".py").exists() and not path.is_dir():
        parts.pop()
    return ".".join(parts)


def test_every_part_of_the_package_has_its_place() -> None:
    assert {package for package, _ in modules()} == {*ORDER, *COMMANDS}
    assert not set(ORDER) & COMMANDS


@pytest.mark.parametrize(("package", "path"), [each for each in modules() if each[0] not in COMMANDS])
def test_no_stage_imports_a_later_one(package: str, path: str) -> None:
    for imported in imports(path):
        name = imported.split(".")[1]
        assert name not in COMMANDS, f"{path} imports {imported}"
        assert ORDER.index(name) <= ORDER.index(package), f"{path} imports {imported}"


def test_the_library_imports_neither_the_figures_nor_the_scripts() -> None:
    for _, path in modules():
        assert not [name for name in imports(path) if name.startswith(BESIDE)], path


def test_no_two_files_import_each_other_by_way_of_others() -> None:
    """A circle of any length, imports inside functions included."""
    beside = [str(path) for folder in BESIDE for path in (ROOT / folder).rglob("*.py")]
    paths = [*(path for _, path in modules()), *beside]
    arrows = {name_of(path): {nearest(name) for name in imports(path)} for path in paths}
    open_, closed = [], set[str]()

    def visit(name: str) -> None:
        assert name not in open_, " -> ".join([*open_[open_.index(name) :], name])
        if name in closed:
            return
        open_.append(name)
        for other in sorted(arrows.get(name, ())):
            if other != name:
                visit(other)
        closed.add(open_.pop())

    for name in arrows:
        visit(name)


def test_stages_see_their_own_section_of_the_settings() -> None:
    """Not the whole of them: so a stage can be used, and understood, without the rest."""
    stages = ("data", "models", "sampling", "grading", "composition", "training", "evaluation", "verifier", "store")
    for package, path in modules():
        if package in stages:
            whole = {"topr_exp.config.settings", "topr_exp.config.load"}
            place = {"topr_exp.config.cluster"}  # where a run computes: they are given a device, the trainer a layout
            assert not (whole | place) & {nearest(name) for name in imports(path)}, path


def test_algorithms_import_torch_and_types_only() -> None:
    for path in (ROOT / "topr_exp" / "algorithms").glob("*.py"):
        for imported in imports(str(path)):
            assert imported.startswith(("topr_exp.types.", "topr_exp.algorithms."))


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

    heavy = ["torch", "transformers", "numpy", "pyarrow", "sympy", "datasets", "wandb", "matplotlib", "pandas"]
    code = (
        "import sys; from topr_exp.config.arguments import parse; from topr_exp.runs.plan import plan;"
        "plan(parse(['data=math', 'algo=dpo']));"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True, timeout=300
    )
    assert done.stdout.strip() == "[]"
