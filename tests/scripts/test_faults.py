"""How `make faults` finds the text of a fault; the command itself checks first that each can be planted."""

from collections import Counter

import pytest

from scripts import faults

TEXT = "def one():\n    return f(\n        a, b\n    )\n\n\nclass C:\n    def two(self):\n        return f(a, b)\n"


def test_there_are_at_most_a_hundred_faults_and_none_twice():
    changes = Counter((fault.file, fault.old, fault.new) for fault in faults.read_faults())

    assert 0 < len(changes) <= 100
    assert set(changes.values()) == {1}


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "topr_exp").mkdir()
    (tmp_path / "topr_exp/x.py").write_text(TEXT)
    return tmp_path


def fault_in(function, old):
    return faults.Fault("x/y", "x.py", old, "pass", function=function)


@pytest.mark.parametrize("function, replaced", [("C.two", "return f(a, b)"), ("one", "return f(\n        a, b\n    )")])
def test_a_fault_survives_another_breaking_of_lines(tree, function, replaced):
    assert fault_in(function, "return f(a, b)").planted(tree) == TEXT.replace(replaced, "pass")


@pytest.mark.parametrize("function, count", [("C.one", 0), ("", 2)])
def test_a_fault_is_refused_unless_its_text_occurs_once(tree, function, count):
    with pytest.raises(ValueError, match=f"occurs {count} times in"):
        fault_in(function, "return f(").planted(tree)
