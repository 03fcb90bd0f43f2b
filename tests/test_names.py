"""Names of values: nouns of the domain, no pronouns, articles or participles."""

import ast

from tests.conftest import ROOT

# What such a word names depends on the sentence around it, so a reader has to find that sentence first.
GRAMMAR_WORDS = frozenset(
    """found each one other others some given told asked known said made there whole own ours theirs rest wanted before
    now then more most least beside later earlier kept held shown alone what seen chosen drawn done gone both these
    those such none again same wrote taken""".split()  # noqa: SIM905 - words read better than a list of strings
)
FOLDERS = ("topr_exp", "reproduce", "scripts", "benchmarks", "tests")
TERMS = frozenset({"chosen", "done"})  # of DPO: the correct completion of a pair; of progress: finished units
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]


def bindings(tree):
    """(line, name) of each variable and parameter that is bound."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def test_no_value_is_named_by_a_pronoun_or_participle():
    named_by_grammar = []
    for path in FILES:
        for line, name in bindings(ast.parse(path.read_text(encoding="utf-8"))):
            if name.strip("_") in GRAMMAR_WORDS - TERMS:
                named_by_grammar.append(f"{path}:{line}: {name}")

    assert named_by_grammar == []
