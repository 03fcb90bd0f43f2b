"""Equality of two answers: as text, as exact rational numbers, or by our conventions for lists, names, chains.

The caller compares with `compare_quickly`, which never waits and leaves open (None) what only sympy can decide. The
workers compare by the same conventions, with a rule for single expressions (`leaf`) that asks sympy.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from topr_exp.grading.expression import rational_value
from topr_exp.grading.latex import GREEK, Tokens, TooComplex, number_like, words
from topr_exp.grading.sample_points import certainly_different
from topr_exp.grading.structure import Group, Leaf, Named, Node, parse, textual

Verdict3 = bool | None  # equal, different, not decided
LeafRule = Callable[[Leaf, Leaf], Verdict3]

MAX_UNORDERED = 12  # items of two unordered collections that are compared each with each


@dataclass(slots=True)
class QuickRule:
    """Compares single expressions without sympy, and remembers which arithmetic took part last."""

    path: str = "string"

    def __call__(self, gold: Leaf, answer: Leaf) -> Verdict3:
        if gold.unit and answer.unit and gold.unit != answer.unit:
            return False
        if gold.tokens == answer.tokens:
            return True
        gold_text, answer_text = textual(gold.tokens), textual(answer.tokens)
        if gold_text is not None or answer_text is not None:
            return gold_text == answer_text
        if gold.relation != answer.relation:
            return False
        gold_value, answer_value = rational_value(gold.tokens), rational_value(answer.tokens)
        if gold_value is not None and answer_value is not None:
            self.path = "rational"
            return gold_value == answer_value
        if not (parseable(gold.tokens) and parseable(answer.tokens)):
            return False
        if not gold.relation and certainly_different(gold.tokens, answer.tokens):
            self.path = "numeric"
            return False
        return None


def compare_quickly(gold: str, answer: str) -> tuple[Verdict3, str]:
    """(equal, different or undecided; "string", "rational" or "numeric"): all that can be said without sympy."""
    if gold.strip() == answer.strip():
        return True, "string"
    try:
        gold_node, answer_node = parse(gold), parse(answer)
    except TooComplex:
        return False, "string"
    rule = QuickRule()
    verdict = same(gold_node, answer_node, rule)
    return verdict, rule.path


def same(gold: Node, answer: Node, leaf: LeafRule) -> Verdict3:
    """Compares two structures; `leaf` compares two single expressions (or two whole relations)."""
    if isinstance(gold, Named) or isinstance(answer, Named):
        return _same_named(gold, answer, leaf)
    if "=" in {node.kind for node in (gold, answer) if isinstance(node, Group)}:
        return _same_chain(gold, answer, leaf)
    if isinstance(gold, Group) and isinstance(answer, Group):
        if gold.kind != answer.kind or len(gold.items) != len(answer.items):
            return False
        if gold.kind in ("list", "union"):
            return _same_unordered(list(gold.items), list(answer.items), leaf)
        return _all_same(zip(gold.items, answer.items, strict=True), leaf)
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        return leaf(gold, answer)
    if r"\begin" in gold.tokens and r"\begin" in answer.tokens:  # 2 times a matrix, and a matrix
        return leaf(Leaf(gold.tokens), Leaf(answer.tokens))
    return False


def _same_named(gold: Node, answer: Node, leaf: LeafRule) -> Verdict3:
    """x = 5 is 5 and x = 5, not y = 5; two equations such as y = x + 1 and x = y - 1 go to `leaf`."""
    one, other = (node.value if isinstance(node, Named) else node for node in (gold, answer))
    if isinstance(gold, Named) and isinstance(answer, Named):
        if gold.name == answer.name:
            return same(one, other, leaf)
        if not any(token.isalpha() for value in (one, other) for token in value.tokens):
            return False
    elif not any(isinstance(node, Leaf) and node.relation for node in (gold, answer)):
        return same(one, other, leaf)
    return leaf(Leaf(gold.tokens, relation=True), Leaf(answer.tokens, relation=True))


def _same_chain(gold: Node, answer: Node, leaf: LeafRule) -> Verdict3:
    """A chain whose parts differ equals nothing."""
    chains = [node.items if isinstance(node, Group) and node.kind == "=" else (node,) for node in (gold, answer)]
    within = [(part, parts[-1]) for parts in chains for part in parts[:-1]]
    return _all_same([(chains[0][-1], chains[1][-1]), *within], leaf)


def _all_same(pairs: Iterable[tuple[Node, Node]], leaf: LeafRule) -> Verdict3:
    undecided = False
    for one, other in pairs:
        verdict = same(one, other, leaf)
        if verdict is False:
            return False
        undecided |= verdict is None
    return None if undecided else True


def _same_unordered(gold: list[Node], answer: list[Node], leaf: LeafRule) -> Verdict3:
    """Check that the items can be paired off so that each is equal to its partner."""
    open_gold: list[Node] = []
    for one in gold:  # equal as written: no comparison needed
        match = next((i for i, other in enumerate(answer) if other.tokens == one.tokens), None)
        if match is None:
            open_gold.append(one)
        else:
            answer.pop(match)
    if len(open_gold) > MAX_UNORDERED:
        return False
    table = [[same(one, other, leaf) for other in answer] for one in open_gold]
    if not all(any(verdict is not False for verdict in line) for line in (*table, *zip(*table, strict=True))):
        return False
    taken: set[int] = set()
    for row in table:
        partner = next((i for i, verdict in enumerate(row) if verdict and i not in taken), None)
        if partner is None:
            return None if any(None in row for row in table) else False
        taken.add(partner)
    return True


MAX_SYMBOLIC_TOKENS = 400
_COMMANDS = GREEK | words(
    r"""\frac \sqrt \binom \pi \infty \circ \sin \cos \tan \sec \csc \cot \arcsin \arccos \arctan \arccsc \arcsec
    \arccot \sinh \cosh \tanh \arcsinh \arccosh \arctanh \ln \log \exp \max \min \gcd \lcm \floor \ceil \lfloor
    \rfloor \lceil \rceil \leq \geq \neq \pm \in \cup \cap \setminus \emptyset \overline \vec \hat \tilde \sum \prod
    \int \lim \to \begin \end \\ \{ \} \mathbb \angle \triangle \Pi"""
)
_SIGNS = frozenset("+-*/^_!()[]{}|=<>,'&")


def parseable(tokens: Tokens) -> bool:
    r"""Check that these tokens are safe for sympy: only numbers, letters, signs and listed commands.

    Refuses a number in another base (with a subscript) and "3 3": the parser would read base ten, and 33.
    """
    if not tokens or len(tokens) > MAX_SYMBOLIC_TOKENS:
        return False
    for before, token in itertools.pairwise(tokens):
        if number_like(before) and (token == "_" or number_like(token)):
            return False
    return all(
        token in _SIGNS
        or token in _COMMANDS
        or (token.isascii() and (token.isalpha() or token[0].isdigit() or token[0] == "."))
        for token in tokens
    )
