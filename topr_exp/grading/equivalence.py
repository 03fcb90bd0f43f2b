"""Equality of two answers: as text, as exact rational numbers, or by our conventions for lists, names, chains.

The caller compares with `compare_quickly`, which never waits and returns None where only sympy can decide. The workers
compare by the same conventions, with a rule for single expressions (`LeafRule`) that asks sympy.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from topr_exp.grading.expression import rational_value
from topr_exp.grading.latex import GREEK, Tokens, TooComplexError, number_like, words
from topr_exp.grading.sample_points import certainly_different
from topr_exp.grading.structure import Group, Leaf, Named, Node, parse, textual

Equality = bool | None  # None: not decided
LeafRule = Callable[[Leaf, Leaf], Equality]

MAX_UNORDERED = 12  # items of two unordered collections, all pairs of which are compared


@dataclass(slots=True)
class QuickRule:
    """Compares single expressions without sympy; `path` names the last arithmetic that decided, else "string"."""

    path: str = "string"

    def __call__(self, gold: Leaf, answer: Leaf) -> Equality:
        if gold.unit and answer.unit and gold.unit != answer.unit:
            return False
        if gold.tokens == answer.tokens:
            return True
        gold_text = textual(gold.tokens)
        answer_text = textual(answer.tokens)
        if gold_text is not None or answer_text is not None:
            return gold_text == answer_text
        if gold.relation != answer.relation:
            return False
        gold_value = rational_value(gold.tokens)
        answer_value = rational_value(answer.tokens)
        if gold_value is not None and answer_value is not None:
            self.path = "rational"
            return gold_value == answer_value
        if not (is_parseable(gold.tokens) and is_parseable(answer.tokens)):
            return False
        if certainly_different(gold.tokens, answer.tokens):  # never two relations, which are no expressions
            self.path = "numeric"
            return False
        return None


def compare_quickly(gold: str, answer: str) -> tuple[Equality, str]:
    """Compare without sympy: (equal, different or undecided; "string", "rational" or "numeric")."""
    if gold.strip() == answer.strip():
        return True, "string"
    try:
        gold_node = parse(gold)
        answer_node = parse(answer)
    except TooComplexError:
        return False, "string"
    rule = QuickRule()
    equality = same(gold_node, answer_node, rule)
    return equality, rule.path


def same(gold: Node, answer: Node, compare_leaves: LeafRule) -> Equality:
    """Compare two structures; `compare_leaves` compares two single expressions (or two whole relations)."""
    if isinstance(gold, Named) or isinstance(answer, Named):
        return _same_named(gold, answer, compare_leaves)
    if _is_chain(gold) or _is_chain(answer):
        return _same_chain(gold, answer, compare_leaves)
    if isinstance(gold, Group) and isinstance(answer, Group):
        if gold.kind != answer.kind or len(gold.items) != len(answer.items):
            return False
        if gold.kind in ("list", "union"):
            return _same_unordered(gold.items, answer.items, compare_leaves)
        return _all_same(zip(gold.items, answer.items, strict=True), compare_leaves)
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        return compare_leaves(gold, answer)
    if r"\begin" in gold.tokens and r"\begin" in answer.tokens:
        # A matrix is a group of its cells, 2 times a matrix one expression: sympy multiplies out.
        return compare_leaves(Leaf(gold.tokens), Leaf(answer.tokens))
    return False


def _same_named(gold: Node, answer: Node, compare_leaves: LeafRule) -> Equality:
    """x = 5 is 5 and x = 5, not y = 5; equations are compared as a whole."""
    if _are_equations(gold, answer):
        return compare_leaves(Leaf(gold.tokens, relation=True), Leaf(answer.tokens, relation=True))
    if isinstance(gold, Named) and isinstance(answer, Named) and gold.name != answer.name:
        return False
    return same(_without_name(gold), _without_name(answer), compare_leaves)


def _without_name(node: Node) -> Node:
    """The value of x = 5; another node as it is."""
    if isinstance(node, Named):
        return node.value
    return node


def _are_equations(gold: Node, answer: Node) -> bool:
    """Check for equations of several names: y = x + 1 and x = y - 1, or y = x + 1 and y - x = 1."""
    if not isinstance(gold, Named) or not isinstance(answer, Named):
        return _is_relation(gold) or _is_relation(answer)
    if gold.name == answer.name:
        return False
    value_tokens = gold.value.tokens + answer.value.tokens
    return any(map(str.isalpha, value_tokens))


def _is_relation(node: Node) -> bool:
    return isinstance(node, Leaf) and node.relation


def _is_chain(node: Node) -> TypeGuard[Group]:
    return isinstance(node, Group) and node.kind == "="


def _same_chain(gold: Node, answer: Node, compare_leaves: LeafRule) -> Equality:
    """Compare the results, which stand last; a chain that contradicts its result, 3 + 4 = 8, equals nothing."""
    *gold_steps, gold_result = _chain_items(gold)
    *answer_steps, answer_result = _chain_items(answer)
    pairs = [(gold_result, answer_result)]
    pairs += [(step, gold_result) for step in gold_steps]
    pairs += [(step, answer_result) for step in answer_steps]
    return _all_same(pairs, compare_leaves)


def _chain_items(node: Node) -> Sequence[Node]:
    """The expressions of a = b = c; another node alone."""
    if _is_chain(node):
        return node.items
    return (node,)


def _all_same(pairs: Iterable[tuple[Node, Node]], compare_leaves: LeafRule) -> Equality:
    equality: Equality = True
    for first, second in pairs:
        equality_of_pair = same(first, second, compare_leaves)
        if equality_of_pair is False:
            return False
        if equality_of_pair is None:
            equality = None
    return equality


def _same_unordered(gold_items: Sequence[Node], answer_items: Sequence[Node], compare_leaves: LeafRule) -> Equality:
    """Check that the items can be paired off so that the two of each pair are equal."""
    open_golds, open_answers = _without_equal_texts(gold_items, answer_items)
    if len(open_golds) > MAX_UNORDERED:
        return False
    rows: list[list[Equality]] = []  # of each gold with every answer
    for gold in open_golds:
        rows.append([same(gold, answer, compare_leaves) for answer in open_answers])
    columns = zip(*rows, strict=True)
    for equalities in (*rows, *columns):
        if set(equalities) == {False}:  # an item that equals none
            return False
    is_decided = not any(None in row for row in rows)
    paired_answers: set[int] = set()
    for row in rows:
        partners = [index for index, equality in enumerate(row) if equality and index not in paired_answers]
        if not partners:
            return False if is_decided else None
        paired_answers.add(partners[0])  # any will do: all partners of one gold equal each other
    return True


def _without_equal_texts(gold_items: Sequence[Node], answer_items: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """Drop the pairs that are written alike."""
    open_golds = []
    open_answers = list(answer_items)
    for gold in gold_items:
        texts = [answer.tokens for answer in open_answers]
        if gold.tokens in texts:
            open_answers.pop(texts.index(gold.tokens))
        else:
            open_golds.append(gold)
    return open_golds, open_answers


# ---- the tokens that sympy gets

MAX_SYMBOLIC_TOKENS = 400
_COMMANDS = GREEK | words(
    r"""\frac \sqrt \binom \pi \infty \circ \sin \cos \tan \sec \csc \cot \arcsin \arccos \arctan \arccsc \arcsec
    \arccot \sinh \cosh \tanh \arcsinh \arccosh \arctanh \ln \log \exp \max \min \gcd \lcm \floor \ceil \lfloor
    \rfloor \lceil \rceil \leq \geq \neq \pm \in \cup \cap \setminus \emptyset \overline \vec \hat \tilde \sum \prod
    \int \lim \to \begin \end \\ \{ \} \mathbb \angle \triangle \Pi"""
)
_SIGNS = frozenset("+-*/^_!()[]{}|=<>,&")  # not ': the parser reads f' as f


def is_parseable(tokens: Tokens) -> bool:
    r"""Check that these tokens are safe for sympy: only numbers, letters, signs and listed commands.

    Refuses a number in another base (with a subscript) and "3 3": the parser would read base ten, and 33.
    """
    if not tokens or len(tokens) > MAX_SYMBOLIC_TOKENS:
        return False
    for token, next_token in itertools.pairwise(tokens):
        if number_like(token) and (next_token == "_" or number_like(next_token)):
            return False
    return all(_is_admitted(token) for token in tokens)


def _is_admitted(token: str) -> bool:
    if token in _SIGNS or token in _COMMANDS:
        return True
    return token.isascii() and (token.isalpha() or token[0].isdigit() or token[0] == ".")
