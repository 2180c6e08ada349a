"""Restrictions that are functions, as expressions: by tracing, or by the rows where they hold.

A function is called with names in place of values. Whatever is computed of them is written down;
where it asks whether something is true, by ``and``, ``or``, ``not``, ``if`` or a chain of
comparisons, it is called once more for the other answer, and every way through it is a condition
of the expression. What was written down is compared with what the function gives for real values,
as names tell nothing of ``is`` and of types. What cannot be written down is called with every
combination of the values of the parameters that it uses.
"""

from __future__ import annotations

import itertools
import logging
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

from autotune.core.errors import ExpressionError, InputError
from autotune.own.tabulating import Called, head, meant, of_values, tabulated
from autotune.space import Expression
from autotune.space.expression import MAX_TEXT

_log = logging.getLogger(__name__)

_WAYS = 64
"""Ways through a function that are followed, at most."""

_COMBINATIONS = 2000
"""Combinations of values for which an expression is compared with its function, at most."""

_SIZES = (64, 1, 2, 3, 7, 16, 100, 1000, 4096)
"""Values of sizes, which may have any, for that."""

Spelled: TypeAlias = "Mapping[str, Sequence[str]]"
"""Names in expressions of the values of parameters that are no plain ones."""

_NONE: Mapping[str, Any] = MappingProxyType({})

_Way: TypeAlias = tuple[tuple[tuple[str, bool], ...], str]
"""Questions with their answers, and the text of what came out."""

_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%"}
_BITS = {"and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>"}
_BINARY = {**_ARITHMETIC, **_BITS, "pow": "**"}
_COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


class _UntraceableError(Exception):
    """A function did what no expression says."""


class _Traced:
    """A value that is not known, as the text of an expression."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, text: str, answers: _Answers, ceiling: str = "") -> None:
        self.text = text
        self.answers = answers
        self.ceiling = ceiling

    def __bool__(self) -> bool:
        return self.answers.of(self.text)

    def __neg__(self) -> _Traced:
        return _Traced(f"(-{self.text})", self.answers)

    def __pos__(self) -> _Traced:
        return self

    def __invert__(self) -> _Traced:
        return _Traced(f"(~{self.text})", self.answers)

    def __abs__(self) -> _Traced:
        return _Traced(f"abs({self.text})", self.answers)

    def __ceil__(self) -> _Traced:
        """The quotient rounded up, as `math.ceil` asks for it."""
        if not self.ceiling:
            raise _UntraceableError
        return _Traced(self.ceiling, self.answers)

    def log2(self) -> _Traced:
        """The logarithm, as `numpy.log2` calls it."""
        return _Traced(f"log2({self.text})", self.answers)

    def _refuse(self, *_: Any) -> NoReturn:
        raise _UntraceableError

    __int__ = __float__ = __index__ = __iter__ = __len__ = __str__ = __format__ = _refuse


def _operation(symbol: str, *, turned: bool) -> Callable[[_Traced, Any], Any]:
    def apply(self: _Traced, other: Any) -> Any:
        text = _text(other)
        if text is None:
            raise _UntraceableError
        left, right = (text, self.text) if turned else (self.text, text)
        ceiling = f"ceildiv({left}, {right})" if symbol == "/" else ""
        return _Traced(f"({left} {symbol} {right})", self.answers, ceiling)

    return apply


for _name, _symbol in (*_BINARY.items(), *_COMPARED.items()):
    setattr(_Traced, f"__{_name}__", _operation(_symbol, turned=False))
    if _name in _BINARY:
        setattr(_Traced, f"__r{_name}__", _operation(_symbol, turned=True))


def _text(value: Any) -> str | None:
    """A value in an expression; None where it is none."""
    if isinstance(value, _Traced):
        return value.text
    plain = value.item() if hasattr(value, "item") else value
    return repr(plain) if isinstance(plain, (bool, int, float, str)) else None


class _Answers:
    """The answers to what a function asks, a way through it after the other."""

    def __init__(self) -> None:
        self.planned: list[bool] = []
        self.asked: list[tuple[str, bool]] = []

    def of(self, text: str) -> bool:
        """The answer to a question; a question that was asked before has the same."""
        for known, answer in self.asked:
            if known == text:
                return answer
        if len(self.asked) >= _WAYS:
            raise _UntraceableError
        place = len(self.asked)
        answer = self.planned[place] if place < len(self.planned) else True
        self.asked.append((text, answer))
        return answer

    def next(self) -> bool:
        """Go on to the next way, and say whether there is one."""
        while self.asked and not self.asked[-1][1]:
            self.asked.pop()
        if not self.asked:
            return False
        self.planned = [answer for _, answer in self.asked[:-1]] + [False]
        self.asked = []
        return True


def restriction_text(
    function: Callable[..., Any],
    parameters: Mapping[str, Sequence[Any]],
    others: Sequence[str],
    words: Spelled = _NONE,
) -> str:
    """The expression that is true where a function is.

    Args:
        function: takes one dictionary of parameters, or parameters and sizes by name.
        parameters: the values of each.
        others: further names that it may take: sizes.
        words: of parameters whose values are no plain ones, what expressions call each.

    Raises:
        InputError: it takes or does something else, or has too many combinations.
    """
    known = [*parameters, *others]
    try:
        called, taken = of_values(function, known)
    except InputError as error:
        raise InputError(f"restriction {error}") from None
    with suppress(Exception):  # of whatever a function does with what is no number
        return _by_words(called, parameters, known, words, truth=True)
    return _by_rows(function, called, parameters, taken, words)


def expressions(
    given: Any,
    known: Sequence[str],
    parameters: Mapping[str, Sequence[Any]] = _NONE,
    words: Spelled = _NONE,
) -> Any:
    """The numbers of a launch, with texts in place of functions.

    Args:
        given: a function of a dictionary or of names, which may give several numbers; a list whose
            elements may be such functions; or something else, which stays.
        known: names of parameters and sizes.
        parameters: the values of each.
        words: as for `restriction_text`.

    Raises:
        InputError: a function takes or does something else.
    """
    if isinstance(given, (list, tuple)):
        return [
            expressions(each, known, parameters, words) if callable(each) else each
            for each in given
        ]
    if not callable(given):
        return given
    called, _ = of_values(given, known)
    try:
        found = called({name: parameters.get(name, _SIZES)[0] for name in known})
        if not isinstance(found, (list, tuple)):
            return _number(called, parameters, known, words)
        return [
            _number(
                lambda values, place=place: called(values)[place],  # type: ignore[misc]
                *(parameters, known, words),
            )
            for place in range(len(found))
        ]
    except Exception as error:  # as for restrictions
        raise InputError(
            f"function {head(given)} must be arithmetic of {', '.join(known)}, by name or in one "
            "dictionary"
        ) from error


def _number(
    called: Called, parameters: Mapping[str, Sequence[Any]], known: Sequence[str], words: Spelled
) -> str:
    """The expression of a function for a number; for each of all values where it must be."""
    with suppress(Exception):  # as for restrictions
        return _by_words(called, parameters, known, words, truth=False)
    return _by_words(called, parameters, known, {**parameters, **words}, truth=False)


def _by_words(
    called: Called,
    parameters: Mapping[str, Sequence[Any]],
    known: Sequence[str],
    words: Mapping[str, Sequence[Any]],
    *,
    truth: bool,
) -> str:
    """The expression of a function that computes, for each of the words that it uses.

    Only whether it is true counts, or its value.
    """
    plain = [name for name in known if name not in words]

    def text(values: Mapping[str, Any]) -> str:
        return _traced(lambda names: called(ChainMap(names, values)), plain, truth=truth)  # type: ignore[arg-type]

    names, found = tabulated(text, {name: parameters[name] for name in words}, "a function")
    *cases, (_, whole) = found.items()
    for places, each in reversed(cases):
        if each != whole:
            spelled = [words[name][at] for name, at in zip(names, places, strict=True)]
            where = " and ".join(
                f"{name} == {w!r}" for name, w in zip(names, spelled, strict=True)
            )
            whole = f"({each} if {where} else {whole})"
        if len(whole) > MAX_TEXT:
            raise _UntraceableError
    values = {name: parameters.get(name, _SIZES) for name in known}
    if not _agrees(whole, called, values, words, truth=truth):
        raise _UntraceableError
    return str(whole)


def _agrees(
    text: str,
    called: Called,
    values: Mapping[str, Sequence[Any]],
    words: Mapping[str, Sequence[Any]],
    *,
    truth: bool,
) -> bool:
    """Return whether an expression has the values of a function, wherever that has one."""
    expression = Expression.parse(text, exact_division=not truth)

    def of_function(row: Mapping[str, Any]) -> Any:
        try:
            return bool(called(row)) if truth else called(row)
        except Exception:  # as where it divides by zero
            return None

    names, found = tabulated(of_function, values, "a function", most=_COMBINATIONS)
    told = {**values, **words}
    usual = {name: each[0] for name, each in told.items()}
    for places, wanted in found.items():
        row = {name: told[name][at] for name, at in zip(names, places, strict=True)}
        # A launch of a part of a block is refused where it is planned.
        if wanted is None or (not truth and wanted != wanted // 1):
            continue
        try:
            got = expression.holds(usual | row) if truth else expression.evaluate(usual | row)
        except InputError:  # it has no value
            return False
        if got != wanted:
            return False
    return True


def _traced(called: Called, known: Sequence[str], *, truth: bool) -> str:
    """The expression of a function that computes, whatever it asks."""
    answers = _Answers()
    ways: list[_Way] = []
    for _ in range(_WAYS):
        result = _text(called({name: _Traced(name, answers) for name in known}))
        if result is None:
            raise _UntraceableError
        decided = dict(answers.asked).get(result) if truth else None
        ways.append((tuple(answers.asked), result if decided is None else str(decided)))
        if not answers.next():
            return Expression.parse(_chosen(ways, 0, truth)).fold({}).text
    raise _UntraceableError


def _chosen(ways: Sequence[_Way], depth: int, truth: bool) -> str:
    """The expression of ways that have so many questions and answers in common."""
    asked, result = ways[0]
    if depth == len(asked):
        return {"1": "True", "0": "False"}.get(result, result) if truth else result
    question = asked[depth][0]
    then, otherwise = (
        _chosen([way for way in ways if way[0][depth][1] is answer], depth + 1, truth)
        for answer in (True, False)
    )
    if not truth:  # `and` and `or` give no number
        return then if then == otherwise else f"({then} if {question} else {otherwise})"
    if then == "True":
        return question if otherwise == "False" else f"({question} or {otherwise})"
    if otherwise == "False":
        return f"({question} and {then})"
    if then == "False":
        return f"(not {question})" if otherwise == "True" else f"(not {question} and {otherwise})"
    if otherwise == "True":
        return f"(not {question} or {then})"
    return f"({then} if {question} else {otherwise})"


def _by_rows(
    function: Callable[..., Any],
    called: Called,
    parameters: Mapping[str, Sequence[Any]],
    taken: Sequence[str] | None,
    words: Spelled,
) -> str:
    """The combinations of values for which a function is true, as an expression."""
    told = f"restriction {head(function)}"
    for name in taken or ():
        if name not in parameters:
            raise InputError(f"{told} must be arithmetic, as {name} is a size of any value")

    def held(values: Mapping[str, Any]) -> bool:
        try:
            return bool(called(values))
        except Exception as error:  # whatever a user's function may raise
            hint = "" if taken is not None else meant(function, error, [*parameters])
            raise InputError(f"{told} fails: {type(error).__name__}: {error}{hint}") from error

    names, found = tabulated(held, parameters, told)
    _log.info("%s is no arithmetic: it was evaluated for %d combinations", told, len(found))
    rows = [
        tuple(
            words[name][at] if name in words else parameters[name][at]
            for name, at in zip(names, places, strict=True)
        )
        for places, right in found.items()
        if right
    ]
    text = (" or ".join(_grouped(names, rows)) if names else str(bool(rows))) or "False"
    try:
        Expression.parse(text)
    except ExpressionError as error:
        raise InputError(f"{told} must be arithmetic, or hold for fewer rows: {error}") from error
    return text


def _grouped(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """Rows as conditions: those that differ in the last name alone are one."""
    for first, group in itertools.groupby(rows, key=lambda row: row[:-1]):
        fixed = [f"{name} == {value!r}" for name, value in zip(names, first, strict=False)]
        last = ", ".join(repr(row[-1]) for row in group)
        yield "(" + " and ".join([*fixed, f"{names[-1]} in [{last}]"]) + ")"
