"""The command that a report names."""

from __future__ import annotations

import pytest

from topr_exp.report.facts import module


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/home/me/topr_exp/topr_exp/__main__.py", "topr_exp"),
        ("/home/me/topr_exp/report/__main__.py", "topr_exp.report"),
        ("/env/lib/site-packages/topr_exp/evaluate.py", "topr_exp.evaluate"),
        ("/env/bin/topr-exp", "topr_exp"),
        ("-c", "topr_exp"),
        ("", "topr_exp"),
    ],
)
def test_the_module_that_was_run(path: str, name: str) -> None:
    assert module(path) == name
