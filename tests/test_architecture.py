"""The arrows between the packages: data flows one way, and each stage knows only those before it."""

from __future__ import annotations

import ast
import re
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
COMMANDS = {"__main__", "api", "compare", "evaluate", "grade", "losses"}
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
            assert not whole & {nearest(name) for name in imports(path)}, path
            # Where a run computes: they are given a device, the trainer a layout.
            place = ("ClusterConfig", "LocalCluster", "SlurmCluster")
            assert not {f"topr_exp.config.groups.{name}" for name in place} & {*imports(path)}, path


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
        "import sys; from topr_exp.config.compose_overrides import parse_arguments;"
        "from topr_exp.runs.plan import plan;"
        "plan(parse_arguments(['data=math', 'algo=dpo']));"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True, timeout=300
    )
    assert done.stdout.strip() == "[]"


# ---- docs/architecture.md: three ways through the code

STAGES = ("types", "grading", "composition", "training", "evaluation", "algorithms")
WAYS = {
    # the identifiers that hold it, where they are looked for, the most files
    "A setting of a loss": ({"b_neg", "algo"}, None, 9),
    "A completion's reward": ({"reward"}, STAGES, 11),
    "A stop signal": ({"StopFlag"}, None, 9),
}


def identifiers(path: str) -> set[str]:
    """The names of variables, attributes, parameters, functions and classes in a file."""
    found = set[str]()
    for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
        for field in ("id", "attr", "arg", "name"):
            found.add(str(getattr(node, field, None)))
    return found


@pytest.mark.parametrize("way", WAYS)
def test_the_page_names_every_file_on_a_way(way: str) -> None:
    names, packages, most = WAYS[way]
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = next(part for part in text.split("\n## ") if part.startswith(way))
    rows = {line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")} - {"file"}
    found = {
        "algorithms/"
        if package == "algorithms" and "reward" in names
        else str(Path(path).relative_to(ROOT / "topr_exp"))
        for package, path in modules()
        if (packages is None or package in packages) and names & identifiers(path)
    }
    assert rows == found
    assert len(found) <= most
    for path, symbol in re.findall(r"^\| (\S+\.py) \| [^|]*?`(?:\w+\.)?(\w+)", section, re.M):
        assert symbol in identifiers(str(ROOT / "topr_exp" / path)), f"{path} has no {symbol}"


def test_few_files_hold_all_settings() -> None:
    holders = [path for _, path in modules() if "Config" in identifiers(path)]
    assert len(holders) <= 14, holders
