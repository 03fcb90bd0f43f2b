"""`python -m scripts.faults [NAME ...]`: plant the faults of scripts/faults, one at a time, and run the tests on each.

A fault is a short text of one file, which occurs there once or once within `function`, however lines are broken, and
what takes its place. It is planted in
a copy of the tree; tests run from the nearest to the farthest until one fails. A fault that changes nothing says why
(`equivalent`). What came out lies in outputs/faults.json: the same command again goes on where it stopped, and plants
a fault again when the fault, its file or the tests have changed. Exit status 1 below 95 % or when the list is wrong.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.nearest_tests import import_graph, tests_of
from scripts.tree_copy import LIMIT, copy_tree, failing

ROOT = Path(__file__).resolve().parent.parent
LISTS, RESULTS = ROOT / "scripts" / "faults", ROOT / "outputs" / "faults.json"
LEAST = 0.95  # share of the faults that tests have to catch


@dataclass(frozen=True)
class Fault:
    """One text of a file and what takes its place; `equivalent` says why that changes nothing."""

    name: str  # room/what
    file: str  # below topr_exp/, or reproduce/...
    old: str
    new: str
    equivalent: str = ""
    function: str = ""  # or class, or Class.method

    @property
    def path(self) -> str:
        return self.file if self.file.startswith("reproduce/") else f"topr_exp/{self.file}"

    def planted(self, root: Path = ROOT) -> str:
        """The file's text with the fault in it; ValueError where the list was not kept up with the code."""
        text = (root / self.path).read_text(encoding="utf-8")
        start, end = span(text, self.function) if self.function else (0, len(text))
        found = [*re.finditer(re.escape(self.old), text[start:end])] or [*pattern(self.old).finditer(text[start:end])]
        if len(found) != 1:
            where = f"{self.function} of {self.path}" if self.function else self.path
            raise ValueError(f"{self.name}: the old text occurs {len(found)} times in {where}, not once")
        return text[: start + found[0].start()] + self.new + text[start + found[0].end() :]


def span(text: str, function: str) -> tuple[int, int]:
    """Where a function or class begins and ends in a module's text; nowhere: an empty span."""
    starts = [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]
    nodes = [ast.parse(text)]
    for name in function.split("."):
        inner = (each for node in nodes for each in ast.walk(node) if getattr(each, "name", None) == name)
        nodes = [each for each in inner if isinstance(each, ast.FunctionDef | ast.ClassDef)]
    return (starts[nodes[0].lineno - 1], starts[nodes[0].end_lineno or 0]) if len(nodes) == 1 else (0, 0)


def pattern(text: str) -> re.Pattern[str]:
    """A text with any white space between its words and signs; between two words there is some."""
    tokens = re.findall(r"\w+|[^\w\s]", text)
    gaps = [r"\s+" if a[-1].isalnum() and b[0].isalnum() else r"\s*" for a, b in itertools.pairwise(tokens)]
    return re.compile("".join(re.escape(token) + gap for token, gap in zip(tokens, [*gaps, ""], strict=True)))


def read_faults() -> list[Fault]:
    """All faults of the lists, a file a room; the name of a list's table is the fault's."""
    found = []
    for path in sorted(LISTS.glob("*.toml")):
        for name, values in tomllib.loads(path.read_text(encoding="utf-8")).items():
            found.append(Fault(f"{path.stem}/{name}", **values))
    return found


# ---- what came out


def digest(fault: Fault, tests: Sequence[str], root: Path) -> str:
    """What an outcome rests on: the fault, its file, these tests, as they are below `root`."""
    texts = [(root / path).read_text(encoding="utf-8") for path in (fault.path, *tests)]
    return hashlib.blake2b(json.dumps([fault.old, fault.new, *texts]).encode(), digest_size=16).hexdigest()


def is_known(result: dict[str, Any] | None, fault: Fault, tests: Sequence[str]) -> bool:
    """Whether a fault was planted before and would come out the same; what one test caught rests on that alone."""
    rests_on = tests if result is None or result["by"] is None else [result["by"].split("::")[0]]
    there = all((ROOT / path).is_file() for path in rests_on)
    return result is not None and there and result["digest"] == digest(fault, rests_on, ROOT)


def save(results: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    temporary = RESULTS.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(RESULTS)


def plant(fault: Fault, tests: Sequence[str], tree: Path) -> dict[str, Any]:
    """Run the tests on a fault. `sure`: the one that failed is known to pass without it."""
    began, own = time.monotonic(), (tree / fault.path).read_text(encoding="utf-8")
    (tree / fault.path).write_text(fault.planted(tree), encoding="utf-8")
    try:  # those of the file itself before any other is imported
        failed = failing(tree, tests[:1], first=True)
        if failed == [] and tests[1:]:
            failed = failing(tree, tests[1:], first=True)
    finally:
        (tree / fault.path).write_text(own, encoding="utf-8")
    seconds, by = round(time.monotonic() - began), failed[0] if failed else None
    rests_on = digest(fault, [by.split("::")[0]] if by else tests, tree)
    return {"by": by, "seconds": seconds, "in_time": failed is not None, "digest": rests_on, "sure": by is None}


def make_sure(results: dict[str, Any], tree: Path) -> list[str]:
    """Run what caught something on the tree as it is: tests that fail here too, whose faults are then to be planted
    again."""
    unsure = sorted({result["by"] for result in results.values() if not result["sure"]})
    failed = failing(tree, unsure, first=False) if unsure else []
    assert failed is not None, "the tests that caught something are together too slow"
    wrong = [test for test in unsure if any(one.startswith(test) for one in failed)]
    for name, result in [*results.items()]:
        if result["by"] in wrong:
            del results[name]
        result["sure"] = True
    return wrong


def line(fault: Fault, result: dict[str, Any]) -> str:
    """How a fault ended."""
    late = "" if result["in_time"] else f" within {LIMIT} s"
    if fault.equivalent:
        told = f"CAUGHT though equivalent: {result['by']}" if result["by"] else f"equivalent: {fault.equivalent}"
    else:
        told = f"caught by {result['by']}" if result["by"] else f"NOT CAUGHT{late}"
    return f"{result['seconds']:4d} s  {fault.name}: {told}"


def score(faults: Sequence[Fault], results: dict[str, Any]) -> Iterator[str]:
    """A line a room and one for all; faults that change nothing don't count."""
    counted = [fault for fault in faults if not fault.equivalent]
    caught = Counter(fault.name.split("/")[0] for fault in counted if results[fault.name]["by"])
    for room, count in Counter(fault.name.split("/")[0] for fault in counted).items():
        yield f"{room:12} {caught[room]:4d} of {count}"
    yield f"{'all':12} {caught.total():4d} of {len(counted)}, {100 * caught.total() / max(len(counted), 1):.1f} %"


def main(names: Sequence[str]) -> int:
    faults = [one for one in read_faults() if not names or any(fnmatch.fnmatch(one.name, name) for name in names)]
    wrong = []
    for fault in faults:
        try:
            fault.planted()
        except (OSError, ValueError) as error:
            wrong.append(f"error: {error}")
    if wrong or not faults:
        print("\n".join(wrong or [f"error: no fault is called {' or '.join(names)}"]))
        return 1
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    graph = import_graph()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        copy_tree(Path(folder))
        for fault in faults:
            tests = tests_of(fault.path, graph)
            if not is_known(results.get(fault.name), fault, tests):
                results[fault.name] = plant(fault, tests, Path(folder))
                save(results)
            print(line(fault, results[fault.name]), flush=True)
        failing_anyway = make_sure(results, Path(folder))
        save(results)
    if failing_anyway:
        print("\n".join(f"error: {test} fails without a fault too; mend it first" for test in failing_anyway))
        return 1
    print("\n".join(score(faults, results)))
    counted = [fault for fault in faults if not fault.equivalent]
    denied = any(results[fault.name]["by"] for fault in faults if fault.equivalent)
    caught = sum(bool(results[fault.name]["by"]) for fault in counted)
    return int(denied or caught < LEAST * len(counted))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
