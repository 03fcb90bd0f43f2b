"""Which test files stand nearest to a file of the package, by what imports what."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("topr_exp", "reproduce", "tests")
JOINTS = ("tests/reference/test_reference_run.py", "tests/test_pipeline.py")  # whole runs
TRAINING = "topr_exp/training/"  # most of its faults show in a whole run within seconds, in few of its room's tests
SOURCES = tuple(f"topr_exp/data/{name}.py" for name in ("benchmarks", "jsonl", "ledger", "reasoning_gym"))
BY_NAME = ("topr_exp/algorithms/", *SOURCES)  # loaded by the name that a YAML gives, not by an import

Graph = dict[str, set[str]]  # file -> the files that it imports


def imports_of(path: Path) -> set[str]:
    """The files of the package and of the tests that a file imports, inside functions too; not for annotations."""
    open_: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    names = set()
    while open_:
        node = open_.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        open_ += ast.iter_child_nodes(node)
    parts = [name.replace(".", "/") for name in names if name.startswith(ROOMS)]
    return {file for part in parts for file in (f"{part}.py", f"{part}/__init__.py") if (ROOT / file).is_file()}


def import_graph() -> Graph:
    paths = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    return {str(path.relative_to(ROOT)): imports_of(path) for path in paths}


def steps_to(file: str, graph: Graph) -> dict[str, int]:
    """How many imports lead to a file from each file that needs it."""
    steps = {file: 0}
    level = {file}
    while level:
        level = {path for path, imported in graph.items() if imported & level and path not in steps}
        steps |= dict.fromkeys(level, max(steps.values()) + 1)
    return steps


def tests_of(file: str, graph: Graph) -> list[str]:
    """The test files to run on a fault in this one, in order: its own; for training the plain script's whole run;
    those of its room, those from which no other is nearer, and whole runs, by the imports that lead to it; at last
    those of its room that import nothing of it, and whole runs where it is loaded by name."""
    steps = {path: count for path, count in steps_to(file, graph).items() if Path(path).name.startswith("test_")}
    room = Path("tests", Path(file).relative_to("topr_exp") if file.startswith("topr_exp/") else file).parent
    least = min(steps.values(), default=0)
    own = str(room / f"test_{Path(file).name}")
    of_room = sorted(path for path in graph if Path(path).parent == room and Path(path).name.startswith("test_"))
    of_room = of_room if len(room.parts) > 1 else []  # the tests of commands have nothing to do with one another
    near = [path for path, count in steps.items() if count == least or path in (own, *of_room, *JOINTS)]
    near.sort(key=lambda path: (steps[path], path not in of_room, path not in JOINTS, path))
    first = (own, *(JOINTS[:1] if file.startswith(TRAINING) else ()))
    near = [*(path for path in first if path in near), *(path for path in near if path not in first)]
    last = (*of_room, *(JOINTS if file.startswith(BY_NAME) else ()))
    return [*near, *(path for path in last if path not in near)]
