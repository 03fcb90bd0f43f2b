"""The faults that `make faults` plants are kept up with the code: each of them can be planted."""

import ast
from collections import Counter
from pathlib import Path

import pytest
import yaml

from scripts import faults

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
            (yaml.safe_load if fault.path.endswith(".yaml") else ast.parse)(fault.planted())


def test_a_fault_survives_another_breaking_of_lines_and_is_looked_up_within_its_function(tmp_path: Path) -> None:
    (tmp_path / "reproduce").mkdir()
    text = "def one():\n    return f(\n        a, b\n    )\n\n\nclass C:\n    def two(self):\n        return f(a, b)\n"
    (tmp_path / "reproduce" / "x.py").write_text(text)

    def planted(function: str, old: str = "return f(a, b)") -> str:
        return faults.Fault("x/y", "reproduce/x.py", old, "pass", function=function).planted(tmp_path)

    assert planted("C.two") == text.replace("return f(a, b)", "pass")
    assert planted("one") == text.replace("return f(\n        a, b\n    )", "pass")
    assert planted("", "f( a,b )\n\nclass") == text.replace("f(\n        a, b\n    )\n\n\nclass", "pass")
    for function, old, count in (("C.one", "f(a, b)", 0), ("two", "nothing", 0), ("", "return f(", 2)):
        with pytest.raises(ValueError, match=f"occurs {count} times in"):
            planted(function, old)
