"""How `make faults` finds the text of a fault; the command itself checks first that each can be planted."""

from collections import Counter
from pathlib import Path

import pytest

from scripts import faults

FAULTS = faults.read_faults()


def test_there_are_at_most_a_hundred_of_them_and_none_twice() -> None:
    assert 0 < len(FAULTS) <= 100
    changes = Counter((fault.file, fault.old, fault.new) for fault in FAULTS)
    assert not [change for change, count in changes.items() if count > 1]


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
