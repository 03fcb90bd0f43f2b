"""The arrows between the packages: data flows one way, and each stage knows only those before it."""

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT

# In the order in which data flows; a package may import those before it and itself.
ORDER = [
    "types", "schema", "algorithms", "config", "runtime", "store",
    "data", "models", "sampling", "grading", "composition", "training", "evaluation", "verifier",
    "imported", "runs", "tracking", "session", "pipeline", "report", "sweeps",
]  # fmt: skip
# Programs of their own, which may import everything and are imported by nobody.
COMMANDS = {"__main__", "api", "compare", "evaluate", "grade", "losses", "track"}
BESIDE = ("reproduce", "scripts")  # the library: import it and are imported by nothing in it


def imports(path: Path) -> set[str]:
    """The modules of this repository that a file imports, below TYPE_CHECKING too."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found |= {f"{node.module}.{name.name}" for name in node.names if not name.name.startswith("__")}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return {name for name in found if name.startswith(tuple(f"{root}." for root in ("topr_exp", *BESIDE)))}


def package_of(path: Path) -> str:
    """The top-level name that a file of the library belongs to; a package's command is a command."""
    parts = path.relative_to(ROOT / "topr_exp").with_suffix("").parts
    return parts[-1] if parts[-1] == "__main__" else parts[0]


LIBRARY = {path: package_of(path) for path in sorted((ROOT / "topr_exp").rglob("*.py"))}
LIBRARY.pop(ROOT / "topr_exp" / "__init__.py")
IMPORTS = {path: imports(path) for path in LIBRARY}


def nearest(imported: str) -> str:
    """The module that an import reads: of `package.module.name` the longest part that is a file or a folder."""
    parts = imported.split(".")
    while not (path := ROOT.joinpath(*parts)).with_suffix(".py").exists() and not path.is_dir():
        parts.pop()
    return ".".join(parts)


def test_every_part_of_the_package_has_its_place() -> None:
    assert {*LIBRARY.values()} == {*ORDER, *COMMANDS}
    assert not set(ORDER) & COMMANDS


def test_no_stage_imports_a_later_one_a_command_or_what_is_beside_the_library() -> None:
    for path, package in LIBRARY.items():
        assert not [name for name in IMPORTS[path] if name.startswith(BESIDE)], path
        for name in IMPORTS[path] if package not in COMMANDS else ():
            part = name.split(".")[1]
            assert part not in COMMANDS, f"{path} imports {name}"
            assert ORDER.index(part) <= ORDER.index(package), f"{path} imports {name}"


def test_no_two_files_import_each_other_by_way_of_others() -> None:
    """A circle of any length, imports inside functions included."""
    beside = {path: imports(path) for folder in BESIDE for path in (ROOT / folder).rglob("*.py")}
    graph = TopologicalSorter[str]()
    for path, names in (IMPORTS | beside).items():
        parts = path.relative_to(ROOT).with_suffix("").parts
        own = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        graph.add(own, *({nearest(name) for name in names} - {own}))
    circle = None
    try:
        graph.prepare()
    except CycleError as error:
        circle = error.args[1]
    assert circle is None


def test_stages_see_their_own_section_of_the_settings() -> None:
    """Not the whole of them: so a stage can be used, and understood, without the rest."""
    stages = ("data", "models", "sampling", "grading", "composition", "training", "evaluation", "verifier", "store")
    for path in [path for path, package in LIBRARY.items() if package in stages]:
        whole = {"topr_exp.config.settings", "topr_exp.config.load"}
        assert not whole & {nearest(name) for name in IMPORTS[path]}, path
        # Where a run computes: they are given a device, the trainer a layout.
        assert "topr_exp.config.groups.ClusterConfig" not in IMPORTS[path], path


def test_only_sweeps_know_a_scheduler() -> None:
    """A new one is a class there and a YAML in conf/cluster."""
    library = [path for path, package in LIBRARY.items() if "sweeps" not in path.parts]
    texts = [*library, *(ROOT / "reproduce").rglob("*.py")]
    words = re.compile("slurm|sbatch|srun|squeue|sacct|scontrol", re.IGNORECASE)
    assert [path for path in texts if words.search(path.read_text(encoding="utf-8"))] == []


def test_losses_import_torch_types_and_schema_only_and_nothing_but_the_settings_names_one() -> None:
    losses = {path.stem for path in (ROOT / "conf" / "algo").glob("*.yaml")}
    for path, package in LIBRARY.items():
        if package == "algorithms":
            below = ("topr_exp.types.", "topr_exp.schema.", "topr_exp.algorithms.")
            assert all(name.startswith(below) for name in IMPORTS[path]), path
        elif package in ("training", "composition", "sampling", "evaluation"):
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            assert not losses & {str(node.value) for node in nodes if isinstance(node, ast.Constant)}, path
            assert not any("algorithms" in name for name in IMPORTS[path]), path


def test_checking_settings_imports_nothing_heavy() -> None:
    heavy = ["torch", "transformers", "numpy", "pyarrow", "sympy", "datasets", "wandb", "matplotlib", "pandas"]
    code = (
        "import sys; from topr_exp.config.compose_overrides import parse_arguments;"
        "from topr_exp.runs.plan import plan;"
        "plan(parse_arguments(['data=math', 'algo=dpo']));"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=300)
    assert done.stdout.strip() == "[]"


# ---- docs/architecture.md: three ways through the code

STAGES = ("types", "grading", "composition", "training", "evaluation", "algorithms")
WAYS = {
    # the identifiers that hold it, where they are looked for, the most files
    "A setting of a loss": ({"b_neg", "algo"}, None, 13),
    "A completion's reward": ({"reward"}, STAGES, 11),
    "A stop signal": ({"StopFlag"}, None, 9),
}


def identifiers(path: Path) -> set[str]:
    """The names of variables, attributes, parameters, functions and classes in a file."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {str(getattr(node, field, None)) for node in nodes for field in ("id", "attr", "arg", "name")}


@pytest.mark.parametrize("way", WAYS)
def test_the_page_names_every_file_on_a_way(way: str) -> None:
    names, packages, most = WAYS[way]
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = next(part for part in text.split("\n## ") if part.startswith(way))
    rows = {line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")} - {"file"}
    found = {
        "algorithms/" if package == "algorithms" and "reward" in names else str(path.relative_to(ROOT / "topr_exp"))
        for path, package in LIBRARY.items()
        if (packages is None or package in packages) and names & identifiers(path)
    }
    assert rows == found
    assert len(found) <= most
    for path, symbol in re.findall(r"^\| (\S+\.py) \| [^|]*?`(?:\w+\.)?(\w+)", section, re.M):
        assert symbol in identifiers(ROOT / "topr_exp" / path), f"{path} has no {symbol}"


def test_few_files_hold_all_settings() -> None:
    holders = [path for path in LIBRARY if "Config" in identifiers(path)]
    assert len(holders) <= 22, holders
