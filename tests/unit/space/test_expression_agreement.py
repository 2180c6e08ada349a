"""Random expressions: evaluated at one point, in columns, as a space, and by Python itself.

The generator is seeded and plain, so that tens of thousands of expressions take seconds:
``AUTOTUNE_FUZZ=50000 pytest tests/unit/space/test_expression_agreement.py``.
"""

from __future__ import annotations

import itertools
import math
import operator
import os
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from true_rows import true_rows

from autotune.core.errors import ExpressionError
from autotune.space import Expression, SearchSpace, UndefinedError
from autotune.space.compiled import ARGUMENT_BITS, Group, UndecidedError, compiled
from autotune.space.operators import LARGEST_BITS

EXPRESSIONS = int(os.environ.get("AUTOTUNE_FUZZ", "400"))
NO_VALUE = "no value"
MISUSE = "misuse"
WAYS = {
    "at once": {},
    "one by one": {"building._SMALL": 0, "terms._SMALL_TABLE": 0, "terms._FEW": 0},
}


class NoValueError(ArithmeticError):
    """The language has no value where Python has a complex or an absurdly large one."""


@dataclass(frozen=True)
class Text:
    """An expression as the language has it, and as Python is given it."""

    text: str
    python: str


def number(value: Any) -> Any:
    if isinstance(value, str):
        raise TypeError("text is no number")
    if isinstance(value, complex) or (
        isinstance(value, int) and value.bit_length() > LARGEST_BITS
    ):
        raise NoValueError
    return value


def numbers(*values: Any) -> list[Any]:
    return [number(value) for value in values]


def calculated(sign: str, left: Any, right: Any) -> Any:
    """Python's operators take texts, too: they join, repeat and fill in."""
    numbers(left, right)
    return number(OPERATORS[sign](left, right))


def power(base: Any, exponent: Any) -> Any:
    numbers(base, exponent)
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1:
        number(1 << min(10**6, max(0, exponent * (abs(base).bit_length() - 1))))
    return number(base**exponent)


def ispow2(value: Any) -> bool:
    return 1 <= number(value) < float("inf") and value == 2 ** (int(value).bit_length() - 1)


def bitwise(sign: str, *values: Any) -> Any:
    """Of integers alone, and no shift is negative or far."""
    if not all(isinstance(value, int) for value in values):
        raise TypeError
    if sign in ("<<", ">>") and not 0 <= values[1] <= LARGEST_BITS:
        raise ArithmeticError
    return number(BITWISE[sign](*values))


def log2(value: Any) -> float:
    if number(value) > 0:
        return math.log2(value)
    raise ArithmeticError


BITWISE = {
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "~": lambda value: ~int(value),  # of True and False Python is to give it up
}
OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
PYTHON = {
    "calculated": calculated,
    "number": number,
    "power": power,
    "least": lambda *values: min(numbers(*values)),
    "most": lambda *values: max(numbers(*values)),
    "ceildiv": lambda left, right: -(-numbers(left, right)[0] // right),
    "ispow2": ispow2,
    "bitwise": bitwise,
    "log2": log2,
    "abs": lambda value: abs(number(value)),
    "truth": bool,
    "__builtins__": {},
}


def by_python(expression: Text, names: dict[str, Any]) -> Any:
    try:
        return eval(expression.python, {**PYTHON, **names})
    except ArithmeticError:
        return NO_VALUE
    except TypeError:
        return MISUSE


def at_a_point(expression: Expression, names: dict[str, Any]) -> Any:
    try:
        return expression.evaluate(names)
    except UndefinedError:
        return NO_VALUE
    except ExpressionError:
        return MISUSE


def same(left: Any, right: Any) -> bool:
    if left is NO_VALUE or right is NO_VALUE or left is MISUSE or right is MISUSE:
        return left is right
    # A boolean counts as an integer; an integer and a float of one value go different ways.
    alike = isinstance(left, float) == isinstance(right, float)
    return alike and (left == right or (left != left and right != right))


LITERALS = ("0", "1", "2", "3", "7", "64", "-1", "0.5", "2.0", "1e308", "True", "False", "'a'")
LARGE = ("3000000000", "9007199254740993", "9223372036854775807", "1" + "0" * 40)
COLUMNS: tuple[tuple[Any, ...], ...] = (
    (0, 1, 2),
    (-3, 0, 4, 8),
    (1, 2, 4, 8),
    (False, True),
    (0.0, 0.5, -1.5),
    (1e300, 2.0, -0.0),
    (2**31, -(2**31), 3),
    (2**63 - 1, -(2**63), 5),
    (2**53 + 1, 2**53),
    (2**70, 1, 0),
    ("a", "b"),
    ("a", 2, 0),
    (1, 2.5, 2**64),
    (5,),
)


def leaf(source: random.Random, names: str) -> Text:
    kind = source.random()
    word = (
        source.choice(names) if kind < 0.6 else source.choice(LITERALS if kind < 0.96 else LARGE)
    )
    return Text(word, word)


def expression(source: random.Random, names: str, depth: int) -> Text:
    """Arithmetic, comparisons, junctions, guards and functions, all nested in each other."""

    def part() -> Text:
        return expression(source, names, depth - 1)

    if depth == 0 or source.random() < 0.15:
        return leaf(source, names)
    kind = source.randrange(15)
    left, right = part(), part()
    if kind <= 3:
        sign = source.choice(["+", "-", "*", "/", "//", "%", "+", "*"])
        python = f"calculated({sign!r}, {left.python}, {right.python})"
        return Text(f"({left.text} {sign} {right.text})", python)
    if kind == 4:
        small = right if source.random() < 0.3 else leaf(source, names)
        return Text(f"({left.text}) ** ({small.text})", f"power({left.python}, {small.python})")
    if kind <= 6:
        sign, then = (source.choice(["<", "<=", ">", ">=", "==", "!="]) for _ in "12")
        if source.random() < 0.3:
            last = part()
            return Text(
                f"(({left.text}) {sign} ({right.text}) {then} ({last.text}))",
                f"(({left.python}) {sign} ({right.python}) {then} ({last.python}))",
            )
        return Text(
            f"(({left.text}) {sign} ({right.text}))",
            f"(({left.python}) {sign} ({right.python}))",
        )
    if kind <= 8:
        word = source.choice(["and", "or"])
        return Text(
            f"({left.text} {word} {right.text})", f"truth(({left.python}) {word} ({right.python}))"
        )
    if kind == 9:
        sign = source.choice(["-", "+", "not "])
        checked = left.python if sign == "not " else f"number({left.python})"
        return Text(f"({sign}({left.text}))", f"({sign}({checked}))")
    if kind == 10:
        name, python = source.choice([("min", "least"), ("max", "most"), ("ceildiv", "ceildiv")])
        return Text(
            f"{name}({left.text}, {right.text})", f"{python}({left.python}, {right.python})"
        )
    if kind == 13:
        sign = source.choice(["&", "|", "^", "<<", ">>"])
        return Text(
            f"({left.text} {sign} {right.text})",
            f"bitwise({sign!r}, {left.python}, {right.python})",
        )
    if kind == 14:
        if source.random() < 0.3:
            return Text(f"(~{left.text})", f"bitwise('~', {left.python})")
        name = source.choice(["abs", "log2"])
        return Text(f"{name}({left.text})", f"{name}({left.python})")
    if kind == 12:
        condition = part()
        return Text(
            f"({left.text} if {condition.text} else {right.text})",
            f"({left.python} if {condition.python} else {right.python})",
        )
    if source.random() < 0.5:
        return Text(f"ispow2({left.text})", f"ispow2({left.python})")
    among = source.choice(["in [1, 2.5, 'a']", "not in (0, True, -3)"])
    return Text(f"(({left.text}) {among})", f"(({left.python}) {among})")


def drawn(seed: int, depth: int = 3) -> tuple[Text, dict[str, tuple[Any, ...]]]:
    source = random.Random(seed)
    return expression(source, "abc", depth), {name: source.choice(COLUMNS) for name in "abc"}


def as_array(values: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    if len(set(map(type, values))) == 1 and not isinstance(values[0], str):
        return np.array(values)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def test_points_columns_and_python_agree() -> None:
    """Columns are refused exactly where a point is, and have its values in all others."""
    for seed in range(EXPRESSIONS):
        text, columns = drawn(seed)
        parsed = Expression.parse(text.text)
        points = [
            dict(zip("abc", row, strict=True)) for row in itertools.product(*columns.values())
        ]
        found = [at_a_point(parsed, point) for point in points]
        for point, value in zip(points, found, strict=True):
            expected = by_python(text, point)
            assert same(value, expected), (seed, text.text, point, value, expected)
        # a along one axis, b along another: nothing says that names vary together
        shape = [len(values) for values in columns.values()]
        arrays = dict(zip("abc", np.ix_(*map(np.arange, shape)), strict=True))
        arrays = {name: as_array(columns[name])[at] for name, at in arrays.items()}
        try:
            values, defined = parsed.evaluate_columns(arrays)
        except ExpressionError:
            assert MISUSE in found, (seed, text.text, columns)
            continue
        assert MISUSE not in found, (seed, text.text, columns)
        values = np.broadcast_to(values, shape).ravel()
        defined = np.broadcast_to(True if defined is None else defined, shape).ravel()
        holds = np.broadcast_to(true_rows(parsed, arrays), shape).ravel()
        for number, value in enumerate(found):
            there = plain(values[number]) if defined[number] else NO_VALUE
            assert same(there, value), (seed, text.text, points[number], there, value)
            assert holds[number] == (value is not NO_VALUE and bool(value)), (seed, text.text)


def test_what_is_folded_has_the_same_values() -> None:
    """Whichever names are known; and written out it is the same expression again."""
    for seed in range(EXPRESSIONS):
        text, columns = drawn(seed)
        parsed = Expression.parse(text.text)
        point = {name: random.Random(seed).choice(values) for name, values in columns.items()}
        value = at_a_point(parsed, point)
        for known in ("", "a", "bc", "abc"):
            folded = parsed.fold({name: point[name] for name in known})
            assert folded.names <= set("abc") - set(known)
            assert same(at_a_point(folded, point), value), (seed, text.text, folded.text)
            if "inf" not in folded.text and "nan" not in folded.text:  # which are no literals
                again = Expression.parse(folded.text)
                assert same(at_a_point(again, point), value), (seed, text.text, folded.text)


def groups_by_hand(
    texts: dict[str, Expression], names: dict[str, Any]
) -> tuple[tuple[Any, ...] | None, ...] | None:
    """What a compiled function must give; raises what evaluating one after the other does."""
    known = {**names, "d": texts["d"].evaluate(names)}
    if not texts["required"].evaluate(known):
        return None
    wanted = (texts["first"].evaluate(known),)
    return wanted, (texts["second"].evaluate(known),) if texts["when"].evaluate(known) else None


def test_compiled_functions_agree() -> None:
    """They have the values that there are, and are undecided exactly where there is none."""
    decided = undecided = 0
    for seed in range(EXPRESSIONS // 2):
        source = random.Random(10**6 + seed)
        texts = {
            name: Expression.parse(
                expression(source, "abc" if name == "d" else "abcd", 2).text,
                exact_division=source.random() < 0.5,
            )
            for name in ("d", "required", "first", "second", "when")
        }
        columns = {name: source.choice(COLUMNS) for name in "abc"}
        for row in itertools.product(*columns.values()):
            names = dict(zip("abc", row, strict=True))
            whole = [name for name, each in names.items() if isinstance(each, int)]
            arguments = [name for name in whole if source.random() < 0.7]
            constants = {name: each for name, each in names.items() if name not in arguments}
            function = compiled(
                arguments,
                constants,
                {"d": texts["d"]},
                [texts["required"]],
                [Group((texts["first"],)), Group((texts["second"],), texts["when"])],
            )
            given = [names[name] for name in arguments]
            where = (seed, {name: str(each) for name, each in texts.items()}, names, arguments)
            if any(abs(each) >= 2**ARGUMENT_BITS for each in given):
                with pytest.raises(UndecidedError):
                    function(*given)
                continue
            try:
                expected = groups_by_hand(texts, names)
            except (UndefinedError, ExpressionError):
                undecided += 1
                with pytest.raises(UndecidedError):
                    function(*given)
                continue
            decided += 1
            found = function(*given)
            assert (found is None) == (expected is None), where
            for one, other in zip(found or (), expected or (), strict=True):
                assert (one is None) == (other is None), where
                assert one is None or other is None or same(one[0], other[0]), where
    assert min(decided, undecided) > EXPRESSIONS // 2


@pytest.mark.parametrize("way", WAYS)
def test_spaces_and_python_agree(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are those that Python lets through, restriction by restriction, and in that order."""
    for name, limit in WAYS[way].items():
        monkeypatch.setattr(f"autotune.space.{name}", limit)
    for seed in range(EXPRESSIONS // 2):
        source = random.Random(-1 - seed)
        columns = {name: source.choice(COLUMNS) for name in "abc"}
        rules = [expression(source, "abck", 2) for _ in range(source.randint(1, 3))]
        expected, misused = brute_force(columns, rules)
        space = SearchSpace(columns, [rule.text for rule in rules], constants={"k": 3})
        where = (seed, columns, [rule.text for rule in rules])
        try:
            rows = {tuple(map(repr, row.values())) for row in space}
        except ExpressionError:
            assert misused, where
            continue
        assert rows == {tuple(map(repr, row.values())) for row in expected}, where
        for row in expected:
            assert row in space, where
            assert space.rejection(row) is None, where


def brute_force(
    columns: dict[str, tuple[Any, ...]], rules: list[Text]
) -> tuple[list[dict[str, Any]], bool]:
    """The valid rows, and whether a rule was given what it does not take."""
    rows = []
    misused = False
    for values in itertools.product(*columns.values()):
        row = dict(zip(columns, values, strict=True))
        for rule in rules:
            value = by_python(rule, {**row, "k": 3})
            misused |= value is MISUSE
            if value is NO_VALUE or value is MISUSE or not value:
                break
        else:
            rows.append(row)
    return rows, misused
