"""`python -m scripts.faults [NAME ...]`: plant the faults of scripts/faults, one at a time, and run the tests on each.

A fault replaces a short text of one file, which occurs there once, or once within `function`; line breaks don't count.
It is planted in a copy of the tree; tests run from the nearest to the farthest until one fails. A fault that changes
nothing says why (`equivalent`). Results lie in outputs/faults.json: the same command again continues, and plants a
fault again when the fault, its file or the tests have changed. Exit status 1 below 95 % or when the list is wrong.

NAME: a fault's name, or a pattern such as "training/*" (default: all).
"""

from __future__ import annotations

import ast
import fnmatch
import hashlib
import itertools
import json
import re
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.nearest_tests import Graph, import_graph, tests_of, tests_of_room
from scripts.tree_copy import LIMIT, copy_tree, failing_tests

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "scripts" / "faults"
RESULTS = ROOT / "outputs" / "faults.json"
MIN_CAUGHT = 0.95  # share of the faults that tests have to catch


@dataclass(frozen=True)
class Fault:
    """A text of a file and its replacement; `equivalent` says why the replacement changes nothing."""

    name: str  # room/slug
    file: str  # below topr_exp/
    old: str
    new: str
    equivalent: str = ""
    function: str = ""  # or class, or Class.method

    @property
    def path(self) -> str:
        return f"topr_exp/{self.file}"

    @property
    def room(self) -> str:
        return self.name.split("/")[0]

    def planted(self, root: Path = ROOT) -> str:
        """Return the file's text with the fault in it; ValueError if the old text does not occur once."""
        text = (root / self.path).read_text(encoding="utf-8")
        scope, place = slice(0, len(text)), self.path
        if self.function:
            scope, place = span_of(text, self.function), f"{self.function} of {self.path}"
        scope_text = text[scope]
        matches = list(re.finditer(re.escape(self.old), scope_text))
        if not matches:
            matches = list(whitespace_pattern(self.old).finditer(scope_text))
        if len(matches) != 1:
            raise ValueError(f"{self.name}: the old text occurs {len(matches)} times in {place}, not once")
        start = scope.start + matches[0].start()
        end = scope.start + matches[0].end()
        return text[:start] + self.new + text[end:]


def span_of(text: str, function: str) -> slice:
    """Return the part of a module's text that a function or class takes; an empty one unless there is exactly one."""
    nodes: list[ast.AST] = [ast.parse(text)]
    for name in function.split("."):
        nodes = definitions_named(name, nodes)
    if len(nodes) != 1:
        return slice(0, 0)
    (node,) = nodes
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    line_lengths = map(len, text.splitlines(keepends=True))
    line_starts = [0, *itertools.accumulate(line_lengths)]
    return slice(line_starts[node.lineno - 1], line_starts[node.end_lineno or 0])


def definitions_named(name: str, nodes: Sequence[ast.AST]) -> list[ast.AST]:
    """List the functions and classes of a name within some nodes."""
    definitions: list[ast.AST] = []
    for outer in nodes:
        for node in ast.walk(outer):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
                definitions.append(node)
    return definitions


def whitespace_pattern(text: str) -> re.Pattern[str]:
    """Match a text with any white space between its words and signs, and at least some between two words."""
    tokens = re.findall(r"\w+|[^\w\s]", text)
    pattern = re.escape(tokens[0])
    for previous, token in itertools.pairwise(tokens):
        space = r"\s*"
        if previous[-1].isalnum() and token[0].isalnum():
            space = r"\s+"
        pattern += space + re.escape(token)
    return re.compile(pattern)


def read_faults() -> list[Fault]:
    """Read all lists, a file for each room; the name of a list's table is the fault's."""
    faults = []
    for path in sorted(LISTS.glob("*.toml")):
        for slug, values in tomllib.loads(path.read_text(encoding="utf-8")).items():
            faults.append(Fault(f"{path.stem}/{slug}", **values))
    return faults


# ---- results


@dataclass
class Result:
    """How the tests ended on a fault."""

    by: str | None  # the test that failed
    seconds: int
    in_time: bool
    digest: str  # of all that the result depends on
    sure: bool  # the test passes without the fault, or none failed


Results = dict[str, Result]  # by the fault's name


def read_results() -> Results:
    if not RESULTS.is_file():
        return {}
    values = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {name: Result(**fields) for name, fields in values.items()}


def save(results: Results) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    values = {name: asdict(result) for name, result in results.items()}
    text = json.dumps(values, indent=1, ensure_ascii=False)
    temporary = RESULTS.with_suffix(".tmp")
    temporary.write_text(f"{text}\n", encoding="utf-8")
    temporary.replace(RESULTS)


def digest(fault: Fault, tests: Sequence[str], root: Path) -> str:
    """Hash the fault, its file and these tests as they are below `root`."""
    texts = [fault.old, fault.new]
    for path in (fault.path, *tests):
        texts.append((root / path).read_text(encoding="utf-8"))
    return hashlib.blake2b(json.dumps(texts).encode(), digest_size=16).hexdigest()


def file_of_test(test: str) -> str:
    return test.split("::")[0]


def is_current(result: Result, fault: Fault, tests: Sequence[str]) -> bool:
    """True if planting the fault again would give this result; a caught fault depends on the catching test alone."""
    if result.by is not None:
        tests = [file_of_test(result.by)]
    if not all((ROOT / path).is_file() for path in tests):
        return False
    return result.digest == digest(fault, tests, ROOT)


def plant(fault: Fault, tests: Sequence[str], tree: Path) -> Result:
    """Run the tests on a fault, its own file's before any other is imported."""
    start_time = time.monotonic()
    path = tree / fault.path
    original_text = path.read_text(encoding="utf-8")
    path.write_text(fault.planted(tree), encoding="utf-8")
    try:
        failures = failing_tests(tree, tests[:1], stop_at_first=True)
        if failures == [] and tests[1:]:
            failures = failing_tests(tree, tests[1:], stop_at_first=True)
    finally:
        path.write_text(original_text, encoding="utf-8")
    test = None
    if failures:
        test = failures[0]
        tests = [file_of_test(test)]
    return Result(
        by=test,
        seconds=round(time.monotonic() - start_time),
        in_time=failures is not None,
        digest=digest(fault, tests, tree),
        sure=test is None,
    )


def make_sure(results: Results, tree: Path) -> list[str]:
    """Run the catching tests on the tree without a fault; returns those that fail here too, and drops their results."""
    tests = {result.by for result in results.values() if result.by and not result.sure}
    failures: list[str] | None = []
    if tests:
        failures = failing_tests(tree, sorted(tests), stop_at_first=False)
    assert failures is not None, "the tests that caught something are together too slow"
    broken_tests = []
    for test in sorted(tests):
        if any(failure == test or failure.startswith(f"{test}::") for failure in failures):
            broken_tests.append(test)
    for name, result in list(results.items()):
        if result.by in broken_tests:
            del results[name]
        result.sure = True
    return broken_tests


def describe(fault: Fault, result: Result) -> str:
    """Say in a line how a fault ended."""
    if fault.equivalent and result.by:
        outcome = f"CAUGHT though equivalent: {result.by}"
    elif fault.equivalent:
        outcome = f"equivalent: {fault.equivalent}"
    elif result.by:
        outcome = f"caught by {result.by}"
    elif result.in_time:
        outcome = "NOT CAUGHT"
    else:
        outcome = f"NOT CAUGHT within {LIMIT} s"
    return f"{result.seconds:4d} s  {fault.name}: {outcome}"


def summarize(faults: Sequence[Fault], results: Results) -> Iterator[str]:
    """Count the caught faults in a line for each room and one for all; equivalent ones don't count."""
    counts = Counter[str]()
    caught = Counter[str]()
    for fault in faults:
        if not fault.equivalent:
            counts[fault.room] += 1
            caught[fault.room] += results[fault.name].by is not None
    for room, count in counts.items():
        yield f"{room:12} {caught[room]:4d} of {count}"
    percent = 100 * caught.total() / max(counts.total(), 1)
    yield f"{'all':12} {caught.total():4d} of {counts.total()}, {percent:.1f} %"


def passes(faults: Sequence[Fault], results: Results) -> bool:
    """True if enough faults were caught and no equivalent one was."""
    counted = caught = 0
    for fault in faults:
        is_caught = results[fault.name].by is not None
        if fault.equivalent and is_caught:
            return False
        counted += not fault.equivalent
        caught += is_caught
    return caught >= MIN_CAUGHT * counted


def list_errors(faults: Sequence[Fault], names: Sequence[str]) -> list[str]:
    """Return a line for each fault that can't be planted."""
    if not faults:
        return [f"error: no fault is called {' or '.join(names)}"]
    errors = []
    for fault in faults:
        try:
            fault.planted()
        except (OSError, ValueError) as error:
            errors.append(f"error: {error}")
    return errors


def tests_for(fault: Fault, graph: Graph) -> list[str]:
    """List the nearest tests of the fault's file, then those of the room whose promise it breaks."""
    tests = tests_of(fault.path, graph)
    for path in tests_of_room(Path("tests", fault.room), graph):
        if path not in tests:
            tests.append(path)
    return tests


def main(names: Sequence[str]) -> int:
    faults = []
    for fault in read_faults():
        if not names or any(fnmatch.fnmatch(fault.name, name) for name in names):
            faults.append(fault)
    if errors := list_errors(faults, names):
        print("\n".join(errors))
        return 1
    results = read_results()
    graph = import_graph()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        for fault in faults:
            tests = tests_for(fault, graph)
            if fault.name not in results or not is_current(results[fault.name], fault, tests):
                results[fault.name] = plant(fault, tests, tree)
                save(results)
            print(describe(fault, results[fault.name]), flush=True)
        planted = {fault.name: results[fault.name] for fault in faults}  # tests of earlier results may be gone
        broken_tests = make_sure(planted, tree)
        for fault in faults:
            if fault.name not in planted:
                del results[fault.name]
        save(results)
    for test in broken_tests:
        print(f"error: {test} fails without a fault too; mend it first")
    if broken_tests:
        return 1
    print("\n".join(summarize(faults, results)))
    return int(not passes(faults, results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
