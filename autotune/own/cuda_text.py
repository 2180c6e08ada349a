"""Templates around a user's source of CUDA C++, in which a kernel is found."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from autotune.core.dtypes import ELEMENTS, USUAL_DTYPES
from autotune.core.errors import InputError
from autotune.core.suggestions import must_be
from autotune.families.gpu.c_expression import c_text
from autotune.families.headers import blanked
from autotune.operations.operation import Operation
from autotune.operations.parts import Argument, Kind
from autotune.own.definition import Definition, raw
from autotune.space import Expression

_GLOBAL = re.compile(r"\b__global__\b")
_NAME = re.compile(r"([A-Za-z_]\w*)\s*\(")
_LAST = re.compile(r"([A-Za-z_]\w*)\s*(?:\[\s*\d*\s*\])?\s*$")
_WHOLE = frozenset({"int", "unsigned", "unsigned int", "signed int", "int32_t", "uint32_t"})
_LONG = frozenset(
    {"long long", "long long int", "int64_t", "size_t", "unsigned long long", "uint64_t", "long"}
)
_ELEMENTS = {row.c_type: row.name for row in ELEMENTS.values()} | {
    "half": "float16",
    "unsigned": "uint32",
    "char": "int8",
    "long": "int64",
    "unsigned long": "uint64",
    "size_t": "uint64",
    "float2": "complex64",
    "double2": "complex128",
    "cuComplex": "complex64",
    **{f"{name}_t": name for name, row in ELEMENTS.items() if row.kind == "integer"},
}
"""Element types by what C++ calls them."""
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

    def with_kernels(self, names: Sequence[str]) -> CudaText:
        """The same with further kernels, which take the same arguments.

        Raises:
            InputError: one is not there, or takes others.
        """
        text = self.text
        for name in names:
            other = cuda_text(text, name)
            if [each.name for each in other.taken] != [each.name for each in self.taken]:
                raise InputError(
                    f"kernel {name} must take the arguments of {self.name}: "
                    f"{', '.join(each.name for each in self.taken)}"
                )
            text = other.text
        return replace(self, text=text)

    def in_clusters(self, sides: Sequence[str], parameters: Collection[str]) -> CudaText:
        """The same with the main kernel's blocks in clusters, unless the source says so itself.

        Args:
            sides: blocks of a cluster along x, y and z, expressions.
            parameters: what these may be of: macros.

        Raises:
            InputError: a side is of something else.
        """
        plain = blanked(self.text, texts=True)
        if "__cluster_dims__" in plain:
            return self
        names = {name: name for name in parameters}
        said = [c_text(Expression.parse(each, exact_division=True), names) for each in sides]
        if None in said:
            raise InputError(
                f"kernel {self.name}: launch.cluster must be arithmetic of "
                f"{', '.join(parameters)}, got {', '.join(sides)}"
            )
        (start,) = (place for name, place, _ in _heads(plain) if name == self.name)
        clusters = f"__cluster_dims__({', '.join(map(str, said))}) "
        return replace(self, text=self.text[:start] + clusters + self.text[start:])

    def types(self, *named: Iterable[str]) -> tuple[tuple[str, ...], dict[str, str]]:
        """The element types that the declarations leave, and those that are of one alone.

        Args:
            named: names of the operands, outputs and scalars.

        Returns:
            The types that ``T`` may stand for, or the only one; and by name, in small letters, the
            types of operands that are otherwise, and of scalars that are integers.

        Raises:
            InputError: an operand is of a type that no operand may have.
        """
        known = {name.lower() for names in named for name in names}
        own: dict[str, str] = {}
        pointed: dict[str, None] = {}
        for each in self.taken:
            if each.name.lower() not in known:  # it is a size, or is refused later
                continue
            if each.pointer and each.type != "T" and each.type not in _ELEMENTS:
                raise InputError(
                    f"kernel {self.name} must have operands of type T or one of "
                    f"{', '.join(_ELEMENTS)}, got {each.type} {each.name}"
                )
            if each.pointer:
                pointed[each.type] = None
            whole = each.type in _WHOLE or each.type in _LONG
            if (each.pointer and each.type != "T") or whole:
                own[each.name.lower()] = _ELEMENTS.get(each.type, "int32")
        if "T" in pointed or not pointed:
            return USUAL_DTYPES, own
        found = [_ELEMENTS[each] for each in pointed]
        if len(found) == 1 and ELEMENTS[found[0]].kind == "floating":
            return (found[0],), {k: v for k, v in own.items() if v != found[0]}
        return (), own


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


def kernel_arguments(
    text: CudaText, operation: Operation, dtypes: Sequence[str], *, workspace: bool = False
) -> list[str]:
    """Names of the operation's arguments in the order in which a kernel takes them.

    Args:
        text: the kernel.
        operation: whose kernel it is.
        dtypes: that it is for.
        workspace: whether it takes one, as its last argument.

    Raises:
        InputError: an argument is none of the operation's, or is of another type.
    """
    known = {each.name: each for each in operation.arguments}
    folded = {name.lower(): name for name in reversed(known)}
    whole = dict(operation.integers)
    order: list[str] = []
    declared = text.taken
    if workspace:
        *rest, last = declared
        if last.name != "workspace" or not last.pointer:
            raise InputError(f"kernel {text.name} must take workspace, a pointer, at last")
        declared = tuple(rest)
    for taken in declared:
        name = taken.name if taken.name in known else folded.get(taken.name.lower())
        if name is None:
            raise InputError(f"kernel {text.name}: {must_be('an argument', taken.name, [*known])}")
        wrong = _mismatch(taken, known[name], whole.get(name, ""), dtypes)
        if wrong is not None:
            raise InputError(f"kernel {text.name}: {taken.name} must be {wrong}")
        order.append(name)
    for name, argument in known.items():
        if argument.kind in (Kind.ADDRESS, Kind.SCALAR) and name not in order:
            raise InputError(
                f"kernel {text.name} must take every operand and scalar, and {name} is missing"
            )
    return order


def cuda_template(definition: Definition, text: CudaText, options: Sequence[str] = ()) -> str:
    """The template of a family around a source: parameters become macros before it.

    Args:
        definition: what it computes, and what is tuned.
        text: the source.
        options: the line with the compiler's options, or none.
    """
    lines = ["/*", "{% for line in banner.splitlines() %}", ' *{{ " " if line }}{{ line }}']
    lines += ["{% endfor %}", " */", *options, "{{ includes }}"]
    if text.uses_element_type:
        lines += ["using T = {{ ctype }};", ""]
    lines.append("// --- What is tuned ---")
    for name in definition.compiled:
        lines += _macros(definition, name)
    return "\n".join([*lines, "", *raw(text.text.strip("\n"))]) + "\n"


def _macros(definition: Definition, name: str) -> Iterator[str]:
    """The macro of a parameter; of tuples one for each place, of None none."""
    words = definition.words.get(name)
    if words is None:
        values = definition.values[name]
        number = f"{name} | int" if isinstance(values[0], bool) else name
        yield f"#define {name} {{{{ {number} }}}}"
        return
    several = any(isinstance(value, tuple) for value in words.values())
    known = {w: v if several else (v,) for w, v in words.items() if v is not None}
    if len(known) < len(words):
        yield f'{{% if {name} != "None" %}}'
    for place in range(len(next(iter(known.values()), ()))):
        told = {
            w: int(v[place]) if isinstance(v[place], bool) else v[place] for w, v in known.items()
        }
        yield f"#define {name}{f'_{place}' if several else ''} {{{{ {told!r}[{name}] }}}}"
    if len(known) < len(words):
        yield "{% endif %}"


def _mismatch(taken: Taken, known: Argument, integer: str, dtypes: Sequence[str]) -> str | None:
    """The rule that an argument breaks, or None; a scalar may be of a type of integers."""
    kind = known.kind
    if kind is Kind.ADDRESS:
        if not taken.pointer:
            return "a pointer"
        if known.dtype:
            own = known.dtype
            right = _ELEMENTS.get(taken.type) == own
            return None if right else f"a pointer to {own} elements, got {taken.type}"
        of_one = all(_ELEMENTS.get(taken.type) == dtype for dtype in dtypes)
        if taken.type == "T" or of_one:
            return None
        return f"a pointer to T, the element type, for {', '.join(dtypes)}, got {taken.type}"
    if taken.pointer:
        return f"a number, and no pointer: it is a {kind.value}"
    if kind is Kind.BATCH:
        return None if taken.type in _LONG else f"a long long, got {taken.type}"
    if kind is not Kind.SCALAR or integer == "int32":
        return None if taken.type in _WHOLE else f"an int, got {taken.type}"
    if integer:
        return None if taken.type in _LONG else f"a long long, got {taken.type}"
    for dtype in dtypes:
        sums = ELEMENTS[dtype].accumulated
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
