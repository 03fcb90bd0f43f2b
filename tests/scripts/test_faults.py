"""The faults that `make faults` plants are kept up with the code: each of them can be planted."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from scripts import faults, nearest_tests

FAULTS = faults.read_faults()


def test_there_are_a_hundred_of_them_and_none_twice() -> None:
    assert len([fault for fault in FAULTS if not fault.equivalent]) >= 100
    changes = Counter((fault.file, fault.old, fault.new) for fault in FAULTS)
    assert not [change for change, count in changes.items() if count > 1]


@pytest.mark.parametrize("room", sorted({fault.name.split("/")[0] for fault in FAULTS}))
def test_each_can_be_planted(room: str) -> None:
    """Its old text occurs once, and what takes its place is Python, and another."""
    for fault in FAULTS:
        if fault.name.startswith(f"{room}/"):
            assert fault.old != fault.new, fault.name
            ast.parse(fault.planted(), fault.name)


def test_the_nearest_tests_run_first() -> None:
    graph = nearest_tests.import_graph()
    own = nearest_tests.tests_of("topr_exp/composition/selection.py", graph)[0]
    assert own == "tests/composition/test_selection.py"
    others = nearest_tests.tests_of("topr_exp/composition/training_set.py", graph)
    nearer, farther = "tests/training/test_learnable.py", "tests/reference/test_reference_run.py"
    assert others.index(nearer) < others.index(farther)
    assert "tests/test_pipeline.py" not in nearest_tests.tests_of("reproduce/claims.py", graph), "it needs none"
    of_training = nearest_tests.tests_of("topr_exp/training/metrics.py", graph)
    assert of_training[:2] == ["tests/training/test_metrics.py", "tests/reference/test_reference_run.py"]
    assert "tests/reference/test_reference_run.py" not in of_training[2:]


def test_what_a_yaml_loads_by_name_is_tested_by_its_room_and_by_whole_runs() -> None:
    joints = nearest_tests.JOINTS
    graph = {"topr_exp/algorithms/lone.py": set[str](), "tests/algorithms/test_any.py": set[str]()}
    graph |= {path: set() for path in joints}
    assert nearest_tests.tests_of("topr_exp/algorithms/lone.py", graph) == ["tests/algorithms/test_any.py", *joints]
