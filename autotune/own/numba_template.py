"""Templates around a user's function for Numba."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from autotune.core.errors import InputError
from autotune.core.suggestions import must_be
from autotune.operations.operation import Operation
from autotune.own.definition import Definition, raw
from autotune.own.function_text import FunctionText
from autotune.own.taking import KERNEL_MODULES, Surroundings, in_order, surroundings

_GIVEN = {
    "np": "import numpy as np",
    "njit": "from numba import njit",
    "prange": "from numba import prange",
    "types": "from numba import types",
    "intrinsic": "",
    "make_array": "",
    "populate_array": "",
    "REAL": "",
    "ITEMSIZE": "",
    "THREADS": "",
    "OPTIONS": "",
    "INLINE": "",
    "CALLED": "",
    "KERNEL": "",
    "SUMMING": "",
    "view": "",
}
"""Names that the opening of a module binds, and how, where a user may mean the same."""

_KEPT = ("fastmath", "error_model", "boundscheck")


def check_arguments(definition: Definition, text: FunctionText) -> None:
    """Refuse a function that does not take what the kernel has.

    Raises:
        InputError: an argument is missing or means nothing, or a parameter is assigned.
    """
    defined = definition.operation
    operands = [each.name for each in defined.operands]
    scalars = [name for name, _ in defined.scalars]
    known = [*operands, *scalars, *defined.sizes, *definition.parameters]
    for name in text.arguments:
        if name not in known:
            raise InputError(f"kernel {text.name}: {must_be('an argument', name, known)}")
    for name in (*operands, *scalars, *definition.parameters):
        if name not in text.arguments and name != "threads":
            raise InputError(f"kernel {text.name} must take {name} as an argument, and does not")
    for name in definition.compiled:
        if name in text.bound:
            raise InputError(f"kernel {text.name} assigns {name}, which is a constant in it")
    if text.name in text.outside:
        raise InputError(f"kernel {text.name} calls itself: let it call a function that does")


def numba_template(definition: Definition, text: FunctionText) -> str:
    """The template of a family whose kernels run a function on arrays.

    The function keeps its text; what is compiled in leaves its arguments and becomes constants of
    the module. Arrays are contiguous.

    Raises:
        InputError: the function uses what cannot be taken along.
    """
    constants = [name for name in definition.compiled if name in text.arguments]
    around = surroundings(text, KERNEL_MODULES)
    if definition.threads and not around.parallel:
        raise InputError(
            f"kernel {text.name} has a parameter threads and no loop that they share: "
            "use prange (from numba import prange), or leave the parameter out"
        )
    _check_names(definition, text, around, constants)
    lines = [f"{{# {text.name}: a function of arrays, and the entry that calls it. #}}"]
    if not definition.threads:
        lines.append("{% set threads = 1 %}")
    lines.append('{% include "_lib/numba_prelude.py.j2" %}')
    own = dict.fromkeys(each.dtype for each in definition.operation.operands if each.dtype)
    if own:
        lines.append(f"{{% set elements = {list(own)} %}}")
        lines.append('{% include "_lib/numba_views.py.j2" %}')
    lines += _before(definition, around)
    if constants:
        lines += ["", "", "# ---- What is tuned"]
        lines += [_constant(definition, name) for name in constants]
    for helper in around.functions.values():
        lines += ["", "", *_decorator(helper, definition), *raw(helper.text)]
    kept = [name for name in text.arguments if name not in constants]
    head = f"def {_inner(text.name)}({', '.join(kept)}):"
    lines += ["", "", *_decorator(text, definition), *raw(head + text.body)]
    lines += ["", "", "{% with threads = 1 %}", '{% include "_lib/numba_entry.py.j2" %}']
    lines += ["{% endwith %}", f"def {text.name}({{{{ arguments }}}}):"]
    lines.append(f'    """{definition.becomes}."""')
    lines += [f"    {_inner(text.name)}("]
    lines += [f"        {_passed(definition, name)}," for name in kept]
    return "\n".join([*lines, "    )"]) + "\n"


def _inner(name: str) -> str:
    return f"{name}_of_arrays"


def _before(definition: Definition, around: Surroundings) -> Iterator[str]:
    """Imports and constants that the functions need."""
    imports = [text for name, text in around.imports.items() if _GIVEN.get(name) != text]
    shared = definition.threads and around.parallel
    if around.parallel and not shared:
        imports.append(_GIVEN["prange"])
    if not (imports or shared or around.constants):
        return
    yield from ("", "", "# ---- What the function uses")
    yield from in_order(imports)
    if shared:  # with several threads the opening has imported it
        yield from ("{% if threads == 1 %}", _GIVEN["prange"], "{% endif %}")
    if around.constants and (imports or shared):
        yield ""
    for name, text in around.constants.items():
        yield from raw(f"{name} = {text}")


def _check_names(
    definition: Definition, text: FunctionText, around: Surroundings, constants: Sequence[str]
) -> None:
    """Refuse names that the module, or its entry, has for something else."""
    defined = definition.operation
    given = [*map(defined.spelled, defined.sizes), *(name for name, _ in defined.scalars)]
    taken = {*_GIVEN, text.name, _inner(text.name)}
    same = {name for name, told in around.imports.items() if _GIVEN.get(name) == told}
    wrong = [name for name in (*around.names, *constants, *given) if name in taken - same]
    wrong += [name for name in around.names if name in constants]
    for name in wrong:
        raise InputError(
            f"kernel {text.name} uses the name {name}, which the emitted module has for "
            "something else: rename it"
        )


def _constant(definition: Definition, name: str) -> str:
    if name in definition.words:
        told = {word: repr(value) for word, value in definition.words[name].items()}
        return f"{name} = {{{{ {told!r}[{name}] }}}}"
    values = definition.parameters[name]["values"]
    quoted = isinstance(values, Sequence) and isinstance(values[0], str)
    return f'{name} = "{{{{ {name} }}}}"' if quoted else f"{name} = {{{{ {name} }}}}"


def _decorator(text: FunctionText, definition: Definition) -> Iterator[str]:
    """Numba's decorator: options of a function that has one are its own."""
    options = "**CALLED"
    if text.jit is not None:
        own = {name: text.jit.get(name) for name in _KEPT}
        own = {name: value for name, value in own.items() if value is not None}
        own.setdefault("fastmath", False)
        own.setdefault("error_model", "python")
        options = f"**{{**CALLED, {', '.join(f'{name!r}: {_option(own[name])}' for name in own)}}}"
        options = options.replace("'", '"')
    if definition.threads and "prange" in text.outside:
        yield "{% if threads > 1 %}"
        yield f"@njit(parallel=True, {options})"
        yield "{% else %}"
        yield f"@njit({options})"
        yield "{% endif %}"
    else:
        yield f"@njit({options})"


def _option(value: object) -> str:
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(repr, value)))}}}" if value else "set()"
    return repr(value)


def _passed(definition: Definition, name: str) -> str:
    """The entry's argument for one of the function's."""
    defined = definition.operation
    for operand in defined.operands:
        if operand.name == name:
            sides = [_size(text, defined) for text in operand.shape] or ["1"]
            count = " * ".join(f"({each})" if " " in each else each for each in sides)
            view = f"view_{operand.dtype}" if operand.dtype else "view"
            array = f"{view}(np.int64({name.lower()}_address), {count})"
            return array if len(sides) == 1 else f"{array}.reshape(({', '.join(sides)}))"
    return defined.spelled(name) if name in defined.sizes else name


class _Sizes(ast.NodeTransformer):
    """An expression over sizes in the terms of an entry, which spells them in its own way."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    def visit_Name(self, node: ast.Name) -> ast.Name:
        known = node.id in self._operation.sizes
        return ast.Name(self._operation.spelled(node.id) if known else node.id, node.ctx)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Div):  # which comes out whole
            return ast.BinOp(node.left, ast.FloorDiv(), node.right)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        self.generic_visit(node)
        if name == "ceildiv":
            above, below = node.args
            quotient = ast.BinOp(ast.UnaryOp(ast.USub(), above), ast.FloorDiv(), below)
            return ast.UnaryOp(ast.USub(), quotient)
        return node


def _size(text: str, operation: Operation) -> str:
    return ast.unparse(_Sizes(operation).visit(ast.parse(text, mode="eval")))
