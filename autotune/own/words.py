"""Parameters whose values are None or tuples: files have words for them, and kernels the values.

Records, studies and expressions know words, numbers and booleans alone. The word for ``(16, 32)``
of a parameter ``tile`` is ``tile-16-32``; expressions of a user's may have ``tile[0]`` and
``tile is None``, which become conditions on the word.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from autotune.core.errors import InputError
from autotune.core.printable import shown
from autotune.families.rendering import WORD

Words: TypeAlias = "Mapping[str, Mapping[str, Any]]"
"""Of every such parameter its values by word."""


def word_of(name: str, value: Any) -> str:
    """The word for a value of a parameter that has words."""
    if value is None:
        return "None"
    parts = value if isinstance(value, tuple) else (value,)
    return "-".join([name, *map(str, parts)])


def words_of(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """The values of a parameter by word; empty where all are plain.

    Raises:
        InputError: a tuple holds something else than whole numbers and words, or is not as long as
            the others.
    """
    if not any(each is None or isinstance(each, tuple) for each in values):
        return {}
    found = {word_of(name, each): each for each in values}
    lengths = {len(each) for each in values if isinstance(each, tuple)}
    if len(lengths) > 1 or not all(map(WORD.fullmatch, found)):
        raise InputError(
            f"parameters.{name} must have whole numbers from 0 on, booleans or words beside None, "
            f"or in tuples of one length, got {shown(list(values))}"
        )
    return found


def in_words(text: Any, words: Words) -> Any:
    """An expression over parameters with conditions on their words; anything else as it is.

    Args:
        text: the expression, or a list or table with some.
        words: of the parameters that have some.
    """
    if isinstance(text, Mapping):
        return {key: in_words(each, words) for key, each in text.items()}
    if isinstance(text, (list, tuple)):
        return [in_words(each, words) for each in text]
    if not isinstance(text, str) or not any(name in text for name in words):
        return text
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError):  # told where it is read
        return text
    return ast.unparse(_InWords(words).visit(tree))


class _InWords(ast.NodeTransformer):
    """Puts words in place of values, and conditions in place of numbers."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        left = node.left
        if isinstance(left, ast.Name) and left.id in self._words and len(node.ops) == 1:
            operator: ast.cmpop = node.ops[0]
            if isinstance(operator, (ast.Is, ast.IsNot)):
                operator = ast.Eq() if isinstance(operator, ast.Is) else ast.NotEq()
            if isinstance(operator, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)):
                against = self._spelled(left.id, node.comparators[0], operator)
                return ast.Compare(left, [operator], [against])
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if not isinstance(node.value, ast.Name) or node.value.id not in self._words:
            return self.generic_visit(node)
        name, place = node.value.id, ast.literal_eval(node.slice)
        values = self._words[name]
        return _chosen(name, [(w, v[place]) for w, v in values.items() if v is not None])

    def visit_Name(self, node: ast.Name) -> ast.AST:
        values = self._words.get(node.id, {})
        numbers = [(w, v) for w, v in values.items() if isinstance(v, (int, float))]
        return _chosen(node.id, numbers) if numbers else node

    def _spelled(self, name: str, value: ast.expr, operator: ast.cmpop) -> ast.expr:
        """The word, or the list of words, of a literal."""
        several = isinstance(operator, (ast.In, ast.NotIn))
        given = ast.literal_eval(value)
        spelled = [
            ast.Constant(each if each in self._words[name] else word_of(name, each))
            for each in (given if several else [given])
        ]
        return ast.List(list(spelled), ast.Load()) if several else spelled[0]


def _chosen(name: str, values: Iterable[tuple[str, Any]]) -> ast.expr:
    """The value that goes with the word that a name stands for; that of the last for all else."""
    *cases, (_, last) = values
    result: ast.expr = ast.Constant(last)
    for word, value in reversed(cases):
        test = ast.Compare(ast.Name(name, ast.Load()), [ast.Eq()], [ast.Constant(word)])
        result = ast.IfExp(test, ast.Constant(value), result)
    return result
