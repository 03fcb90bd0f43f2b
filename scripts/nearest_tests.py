"""Test files nearest to a file of the package, by the graph of imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("topr_exp", "reproduce", "tests")
REFERENCE_RUN = "tests/reference/test_reference_run.py"
WHOLE_RUNS = (REFERENCE_RUN, "tests/test_pipeline.py")
REFUSED_SETTINGS = "tests/config/test_mistakes.py"  # losses' among them
STORED_KEYS = "tests/store/test_keys.py"  # what finds stored data again, in many rooms
# Faults there show in a whole run within seconds, and rarely in the room's own tests.
TRAINING = "topr_exp/training/"
ALGORITHMS = "topr_exp/algorithms/"
# Loaded by the name that a YAML gives, not by an import.
BY_NAME = (
    ALGORITHMS,
    "topr_exp/data/benchmarks.py",
    "topr_exp/data/jsonl.py",
    "topr_exp/data/ledger.py",
    "topr_exp/data/reasoning_gym.py",
)

Graph = dict[str, set[str]]  # file -> the files that it imports


def imported_names(path: Path) -> Iterator[str]:
    """Iterate over the modules and names that a file imports, also inside functions; not for annotations."""
    open_nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        open_nodes += ast.iter_child_nodes(node)


def imported_files(path: Path) -> set[str]:
    """Return the files of the package and of the tests that a file imports."""
    files = set()
    for name in imported_names(path):
        stem = name.replace(".", "/")
        for file in (f"{stem}.py", f"{stem}/__init__.py"):
            if name.startswith(ROOMS) and (ROOT / file).is_file():
                files.add(file)
    return files


def import_graph() -> Graph:
    graph = {}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            graph[str(path.relative_to(ROOT))] = imported_files(path)
    return graph


def steps_to(file: str, graph: Graph) -> dict[str, int]:
    """Count the imports that lead to a file from each file that needs it."""
    steps = {file: 0}
    level = {file}
    distance = 0
    while level:
        distance += 1
        next_level = set()
        for path, imports in graph.items():
            if path not in steps and imports & level:
                next_level.add(path)
        level = next_level
        steps |= dict.fromkeys(level, distance)
    return steps


def is_test(path: str) -> bool:
    return Path(path).name.startswith("test_")


def tests_of_room(room: Path, graph: Graph) -> list[str]:
    """List the test files of a room; none of the tests of commands, which have nothing to do with one another."""
    if len(room.parts) == 1:
        return []
    return sorted(path for path in graph if is_test(path) and Path(path).parent == room)


def tests_of(file: str, graph: Graph) -> list[str]:
    """List the test files to run on a fault in a file, in their order.

    Its own; for training the reference run; then by distance the tests of its room, the nearest of others, whole runs
    and the keys of stored data; at last the tests of its room that import nothing of it, whole runs where it is
    loaded by name, and for losses the tests of refused settings.
    """
    distances = {path: steps for path, steps in steps_to(file, graph).items() if is_test(path)}
    least_distance = min(distances.values(), default=0)
    room = Path("tests", file.removeprefix("topr_exp/")).parent
    room_tests = tests_of_room(room, graph)
    own_test = str(room / f"test_{Path(file).name}")
    near = []
    for path, distance in distances.items():
        if distance == least_distance or path in (own_test, *room_tests, *WHOLE_RUNS, STORED_KEYS):
            near.append(path)
    near.sort(key=lambda path: (distances[path], path not in room_tests, path not in WHOLE_RUNS, path))
    leading, trailing = [own_test], room_tests
    if file.startswith(TRAINING):
        leading = [own_test, REFERENCE_RUN]
    if file.startswith(BY_NAME):
        trailing = [*room_tests, *WHOLE_RUNS]
    if file.startswith(ALGORITHMS):
        trailing.append(REFUSED_SETTINGS)
    ordered = [path for path in leading if path in near]
    for path in [*near, *trailing]:
        if path not in ordered:
            ordered.append(path)
    return ordered
