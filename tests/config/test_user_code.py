"""Import of a user's own code that fails."""

import pytest

from tests.conftest import each_row
from topr_exp.config.load import class_of
from topr_exp.types import ConfigError

FAILING = r"""
import sys\nsys.exit('no' + chr(10) + 'idea')\n | line 2, raised SystemExit: no idea
import json\n1 / 0\n | line 2, raised ZeroDivisionError: division by zero
def f(:\n | line 1, raised SyntaxError: invalid syntax
import absent_module\n | line 1, raised ModuleNotFoundError: No module named 'absent_module'
import json\njson.loads('') | line 2, raised JSONDecodeError: Expecting value: line 1 column 1 (char 0)
"""


@each_row("code reason", FAILING)
def test_a_module_that_cannot_be_imported_is_named_with_its_line(working_folder, code, reason):
    name = f"failing_{abs(hash(code))}"
    (working_folder / f"{name}.py").write_text(code.replace(r"\n", "\n"))

    with pytest.raises(ConfigError) as error:
        class_of("algo._target_", f"{name}.Mine")

    assert str(error.value) == f"algo._target_={name}.Mine: {name}.py, {reason}"


def test_a_class_that_a_module_lacks_is_named():
    with pytest.raises(ConfigError, match=r"^algo\._target_=json\.Mine: module 'json' has no attribute 'Mine'$"):
        class_of("algo._target_", "json.Mine")
