"""Templates around a user's text: CUDA C++ with a kernel found in it, or a function for Numba."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.core.dtypes import DTYPES, USUAL_DTYPES
from autotune.core.errors import InputError
from autotune.core.suggestions import must_be
from autotune.families.headers import blanked
from autotune.operations.operation import Operation
from autotune.operations.parts import Kind
from autotune.own.definition import Definition, raw
from autotune.own.function_text import FunctionText
from autotune.own.taking import KERNEL_MODULES, Surroundings, in_order, surroundings

_GLOBAL = re.compile(r"\b__global__\b")
_NAME = re.compile(r"([A-Za-z_]\w*)\s*\(")
_LAST = re.compile(r"([A-Za-z_]\w*)\s*(?:\[\s*\d*\s*\])?\s*$")
_WHOLE = frozenset({"int", "unsigned", "unsigned int", "signed int", "int32_t", "uint32_t"})
_LONG = frozenset(
    {"long long", "long long int", "int64_t", "size_t", "unsigned long long", "uint64_t", "long"}
)
_ELEMENTS = {row.c_type: row.name for row in DTYPES.values()} | {"half": "float16"}
_QUALIFIERS = re.compile(r"\b(const|volatile|__restrict__|__restrict|restrict|std::)(\b|(?<=:))")


@dataclass(frozen=True, slots=True)
class Taken:
    """An argument of a kernel as its source declares it.

    Attributes:
        name: what it is called there.
        type: its type, or what its pointer points to, without qualifiers.
        pointer: whether it is a pointer.
    """

    name: str
    type: str
    pointer: bool


@dataclass(frozen=True, slots=True)
class CudaText:
    """A source of CUDA C++ and the kernel in it.

    Attributes:
        name: the kernel's.
        text: the source, with the kernel's name as C has it.
        taken: what the kernel takes, in order.
    """

    name: str
    text: str
    taken: tuple[Taken, ...]

    @property
    def uses_element_type(self) -> bool:
        """Return whether the source speaks of ``T``, the element type."""
        return re.search(r"\bT\b", blanked(self.text, texts=True)) is not None

    def dtypes(self) -> tuple[str, ...]:
        """The element types that the operands' declarations leave.

        Raises:
            InputError: they are of several types, or of one that no operand may have.
        """
        types = list(dict.fromkeys(each.type for each in self.taken if each.pointer))
        if types == ["T"]:
            return USUAL_DTYPES
        found = [_ELEMENTS[each] for each in types if each in _ELEMENTS]
        if len(types) != 1 or not found:
            raise InputError(
                f"kernel {self.name} must have operands of one type, T or one of "
                f"{', '.join(_ELEMENTS)}, got {', '.join(types)}"
            )
        return tuple(found)


def cuda_text(source: str, name: str | None) -> CudaText:
    """Find the kernel of a source.

    Args:
        source: the text.
        name: the kernel's; None where there is one only.

    Raises:
        InputError: there is no such kernel, it is a template, or its head cannot be read.
    """
    plain = blanked(source, texts=True)
    heads = list(_heads(plain))
    found = [each for each in heads if name in (None, each[0])]
    if len(found) != 1:
        names = ", ".join(each[0] for each in heads) or "none"
        which = f"a kernel {name!r}" if name else "one kernel, or name= which of them,"
        raise InputError(f"source must have {which} (__global__ void ...), and has {names}")
    ((kernel, start, inside),) = found
    before = plain[:start].rstrip()
    if before.endswith(">") and re.search(r"\btemplate\s*<[^;{}]*>$", before):
        raise InputError(
            f"kernel {kernel} must not be a C++ template: parameters are macros, as in "
            "#define ROWS 4, and the element type is T"
        )
    text = source
    if not re.search(r'\bextern\s*"C"\s*(\{[^{}]*)?$', blanked(source)[:start]):
        text = f'{source[:start]}extern "C" {source[start:]}'
    return CudaText(kernel, text, tuple(_parameters(kernel, inside)))


def kernel_arguments(text: CudaText, operation: Operation, dtypes: Sequence[str]) -> list[str]:
    """Names of the operation's arguments in the order in which a kernel takes them.

    Args:
        text: the kernel.
        operation: whose kernel it is.
        dtypes: that it is for.

    Raises:
        InputError: an argument is none of the operation's, or is of another type.
    """
    known = {each.name: each for each in operation.arguments}
    folded = {name.lower(): name for name in known}
    order: list[str] = []
    for taken in text.taken:
        name = folded.get(taken.name.lower())
        if name is None:
            raise InputError(f"kernel {text.name}: {must_be('an argument', taken.name, [*known])}")
        wrong = _mismatch(taken, known[name].kind, dtypes)
        if wrong is not None:
            raise InputError(f"kernel {text.name}: {taken.name} must be {wrong}")
        order.append(name)
    for name, argument in known.items():
        if argument.kind in (Kind.ADDRESS, Kind.SCALAR) and name not in order:
            raise InputError(
                f"kernel {text.name} must take every operand and scalar, and {name} is missing"
            )
    return order


def cuda_template(definition: Definition, text: CudaText) -> str:
    """The template of a family around a source: parameters become macros before it."""
    lines = ["/*", "{% for line in banner.splitlines() %}", ' *{{ " " if line }}{{ line }}']
    lines += ["{% endfor %}", " */", "{{ includes }}"]
    if text.uses_element_type:
        lines += ["using T = {{ ctype }};", ""]
    lines.append("// --- What is tuned ---")
    lines += [f"#define {name} {_macro(definition, name)}" for name in definition.compiled]
    return "\n".join([*lines, "", *raw(text.text.strip("\n"))]) + "\n"


def _macro(definition: Definition, name: str) -> str:
    values = definition.parameters[name]["values"]
    is_bool = isinstance(values, Sequence) and isinstance(values[0], bool)
    return f"{{{{ {name} | int }}}}" if is_bool else f"{{{{ {name} }}}}"


def _mismatch(taken: Taken, kind: Kind, dtypes: Sequence[str]) -> str | None:
    """The rule that an argument breaks, or None."""
    if kind is Kind.ADDRESS:
        if not taken.pointer:
            return "a pointer"
        of_one = all(_ELEMENTS.get(taken.type) == dtype for dtype in dtypes)
        if taken.type == "T" or of_one:
            return None
        return f"a pointer to T, the element type, for {', '.join(dtypes)}, got {taken.type}"
    if taken.pointer:
        return f"a number, and no pointer: it is a {kind.value}"
    if kind is Kind.BATCH:
        return None if taken.type in _LONG else f"a long long, got {taken.type}"
    if kind is not Kind.SCALAR:
        return None if taken.type in _WHOLE else f"an int, got {taken.type}"
    for dtype in dtypes:
        sums = DTYPES[dtype].accumulated
        if taken.type not in (sums.c_type, "T" if sums.name == dtype else sums.c_type):
            return f"{sums.c_type} for {dtype}, got {taken.type}"
    return None


def _heads(plain: str) -> Iterator[tuple[str, int, str]]:
    """Name of every kernel, where its head begins, and what it takes."""
    for found in _GLOBAL.finditer(plain):
        place = found.end()
        while (match := _NAME.search(plain, place)) is not None:
            end = _closing(plain, match.end())
            if match[1].startswith("__") or match[1] == "alignas":  # an attribute, as of bounds
                place = end + 1
                continue
            if plain[end + 1 :].lstrip().startswith(";"):
                break  # a declaration: its definition follows
            yield match[1], found.start(), plain[match.end() : end]
            break


def _closing(plain: str, place: int) -> int:
    """Where a parenthesis that is open before a place is closed."""
    depth = 1
    for position in range(place, len(plain)):
        depth += (plain[position] == "(") - (plain[position] == ")")
        if depth == 0:
            return position
    raise InputError("source must be C++: a parenthesis of a kernel's head is not closed")


def _parameters(kernel: str, inside: str) -> Iterator[Taken]:
    for declared in inside.split(",") if inside.strip() else []:
        match = _LAST.search(declared.strip())
        if match is None or not declared.strip()[: match.start()].strip():
            raise InputError(f"kernel {kernel}: {declared.strip()!r} is no argument with a name")
        kind = declared.strip()[: match.start()]
        pointer = "*" in kind or "[" in match[0]
        bare = " ".join(_QUALIFIERS.sub(" ", kind.replace("*", " ")).split())
        yield Taken(match[1], bare, pointer)


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
    lines.append(
        f'    """{definition.operation.output.name} = {definition.operation.result.text}."""'
    )
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
    given = [*(each.lower() for each in defined.sizes), *(name for name, _ in defined.scalars)]
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
            sides = [_size(text) for text in operand.shape]
            count = " * ".join(f"({each})" if " " in each else each for each in sides)
            array = f"view(np.int64({name.lower()}_address), {count})"
            return array if len(sides) == 1 else f"{array}.reshape(({', '.join(sides)}))"
    return name.lower() if name in defined.sizes else name


class _Sizes(ast.NodeTransformer):
    """An expression over sizes in the terms of an entry, whose sizes are in lower case."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(node.id if node.id in ("min", "max") else node.id.lower(), node.ctx)

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


def _size(text: str) -> str:
    return ast.unparse(_Sizes().visit(ast.parse(text, mode="eval")))
