"""Emitted CUDA C++ compiled by g++ and run on the host, a fiber for every CUDA thread."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import mmap
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.core.dtypes import DTYPES

HEADER = Path(__file__).with_name("cuda_on_host.h")
RUNTIME = HEADER.with_name("runtime_on_host.cpp")
_SOURCES = (HEADER, *map(HEADER.with_name, ("ptx_on_host.h", "hopper_on_host.h")), RUNTIME)
NEEDS_COMPILER = pytest.mark.skipif(
    shutil.which("g++") is None, reason="emitted CUDA C++ is compiled by g++ here"
)
ON_HOST = [pytest.mark.slow, NEEDS_COMPILER]
# -Og: for most programs g++ takes longer than their threads. What all of them share is -O2.
FLAGS = ("-std=c++17", "-Og", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", "-w")
# Hidden: no library of those that are loaded is bound to the runtime of another.
_COMMAND = ("g++", *FLAGS, "-fvisibility=hidden", "-DAUTOTUNE_HOST")

_DYNAMIC_SHARED = re.compile(
    r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?([\w ]+?)\s+(\w+)\s*\[\s*\]\s*;"
)
_ASM = re.compile(r'asm(?: volatile)?\(\s*((?:"[^"]*"\s*)+)((?::[^;]*)?)\);')
_PREDICATED = re.compile(
    r"\{\s*\.reg \.pred (\w+);\s*setp\.ne\.s32 \1, (%\d+), 0;\s*(.*?);\s*\}"
)  # an instruction whose last operand is whether a number is not zero
_OPERAND = re.compile(r'"([=+]?)\w"\(((?:[^()]|\([^()]*\))*)\)')
_KERNEL = re.compile(r'extern "C" __global__ [^;{]*?\b(\w+)\(([^)]*)\)\s*\{', re.DOTALL)
_CLUSTERED = re.compile(r"__cluster_dims__\((\w+), 1, 1\)[^;{]*?\b(\w+)\(\s*int ")
_KINDS: dict[str, Any] = {
    "int": ctypes.c_int,
    "long long": ctypes.c_longlong,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "unsigned short": ctypes.c_ushort,
    "unsigned": ctypes.c_uint,
    "unsigned long long": ctypes.c_ulonglong,
    "TensorMap": ctypes.c_char_p,
}
_REGISTER = re.compile(r"\.reg \.(pred|b32) (\w+)")
_PAGE = mmap.PAGESIZE


_LOCKS: dict[Path, threading.Lock] = {}
_PRECOMPILING = threading.Lock()


class HostProgram:
    """Kernels of one emitted source, callable on NumPy arrays.

    Args:
        source: emitted CUDA C++ that includes nothing but the headers of 16-bit types.
        folder: where shared libraries are kept, by the digest of what they are made of.

    Raises:
        subprocess.CalledProcessError: g++ refuses the source; its message goes to stderr.
    """

    def __init__(self, source: str, folder: Path) -> None:
        # Bounds are no part of a kernel's arguments; without them a kernel reads like a function.
        self._clusters = {
            kernel: _constant(source, blocks) for blocks, kernel in _CLUSTERED.findall(source)
        }
        source = re.sub(r"__cluster_dims__\([^)]*\)", "", source)
        plain = re.sub(r"__(launch_bounds|maxnreg)__\(.*?\)(?=\s+\w+\()", "", source)
        element = re.search(r"using T = (\w+);", plain)
        heads = re.sub(r"\bT\b", element[1], plain) if element else plain
        self._kernels = {
            m[1]: _arguments(re.sub(r"/\*.*?\*/", "", m[2])) for m in _KERNEL.finditer(heads)
        }
        text = "\n".join([_host_source(plain), *map(_entry, self._kernels.items())])
        path = _compile(text, folder)
        self._library = ctypes.CDLL(str(path))
        # Configurations that differ in what is passed at the call are one library, whose memory
        # for a block is there once.
        self._lock = _LOCKS.setdefault(path, threading.Lock())

    def launch(
        self,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        *,
        shared_bytes: int = 0,
        backwards: bool = False,
        early: bool = False,
    ) -> None:
        """Run all blocks of a kernel.

        Args:
            kernel: its name.
            grid: blocks along x, y and z.
            block: threads along x, y and z.
            arguments: one value per parameter; arrays and addresses for pointers.
            shared_bytes: dynamic shared memory of a block.
            early: carry out copies in bulk when they are begun, not when all wait for them.
            backwards: run the last block first; without it, blocks run in their order.
        """
        types = self._kernels[kernel]
        values = [_value(kind, given) for kind, given in zip(types, arguments, strict=True)]
        sizes = [ctypes.c_uint(size) for size in (*grid, *block)]
        with self._lock:
            self._library.order_blocks(ctypes.c_bool(backwards), ctypes.c_bool(early))
            launch = self._library[f"launch_{kernel}"]
            cluster = ctypes.c_uint(self._clusters.get(kernel, 1))  # blocks that run together
            launch(*sizes, ctypes.c_size_t(shared_bytes), cluster, *values)


def _constant(source: str, text: str) -> int:
    """A number, or the product that a constant of the source is."""
    known = re.search(rf"constexpr int {text} = ([^;]*);", source)
    if known is None:
        return int(text)
    return math.prod(_constant(source, each) for each in known[1].split(" * "))


def _arguments(text: str) -> list[Any]:
    declarations = [part.strip() for part in text.split(",")]
    return [
        ctypes.c_void_p
        if "*" in declaration
        else _KINDS[declaration.removeprefix("const __grid_constant__ ").rpartition(" ")[0]]
        for declaration in declarations
    ]


def _value(kind: Any, given: Any) -> Any:
    if kind is ctypes.c_char_p:
        return ctypes.c_void_p(given.ctypes.data)
    return kind(given.ctypes.data if isinstance(given, np.ndarray) else given)


def _host_source(text: str) -> str:
    """The source with types, PTX and dynamic shared memory of the header's."""
    text = re.sub(r"^#include <cuda_\w+\.h>$", "", text, flags=re.MULTILINE)
    text = _ASM.sub(_carried_out, text)
    pointer = r"#define \2 (reinterpret_cast<\1*>(host::own_shared))"
    return f'#include "{HEADER.name}"\n' + _DYNAMIC_SHARED.sub(pointer, text)


def _carried_out(statement: re.Match[str]) -> str:
    """A call of what carries out an asm statement: see ptx_on_host.h."""
    code = "".join(re.findall(r'"([^"]*)"', statement[1])).replace(r"\n", " ").strip().rstrip(";")
    if not code:
        return 'asm volatile("" : : : "memory");'  # no instruction: nothing is moved across it
    operands = _OPERAND.findall(statement[2])
    predicated = _PREDICATED.fullmatch(code)
    if predicated:
        predicate, number, code = predicated.groups()
        code = re.sub(rf"\b{predicate}\b", number, code)
        place = int(number[1:])
        operands[place] = ("", f"ptx::Predicate{{{operands[place][1]}}}")
    registers = dict(map(reversed, _REGISTER.findall(code)))
    if registers:  # in a scope of their own, where C++ may have such a name, too
        code = code.removeprefix("{").removesuffix("}")
        code = re.sub(rf"\b({'|'.join(registers)})\b", r"ptx_\1", code)
        registers = {f"ptx_{register}": kind for register, kind in registers.items()}
    carried = []
    for line in filter(None, map(str.strip, code.split(";"))):
        declared = _REGISTER.fullmatch(line)
        if declared:
            kind = "bool" if declared[1] == "pred" else "unsigned"
            carried.append(f"{kind} {declared[2]};")
        else:
            carried.append(_instruction(line, operands, registers))
    return carried[0] if len(carried) == 1 else f"{{ {' '.join(carried)} }}"


def _instruction(line: str, operands: list[tuple[str, str]], registers: Mapping[str, str]) -> str:
    """A call of what carries out one PTX instruction."""
    name, _, rest = line.partition(" ")

    def given(text: str, written: bool) -> str:
        text = text.removeprefix("_|")  # the first of two results is not asked for
        number = re.fullmatch(r"%(\d+)", text)
        if number is None:
            text = "nullptr" if text == "_" else text
            return f"&{text}" if written and text in registers else text
        constraint, value = operands[int(number[1])]
        return f"&{value}" if written and constraint else value

    arguments = []
    rest = re.sub(r"[\[\]]", " ", rest)
    for place, text in enumerate(re.findall(r"\{[^}]*\}|[^{},\s]+", rest)):
        values = [given(value, place == 0) for value in re.split(r"[{},\s]+", text) if value]
        arguments.append(f"ptx::list({', '.join(values)})" if text[0] == "{" else values[0])
    function = re.sub(r"[.:]+", "_", name)
    columns = re.search(r"(?<=_m64)n(\d+)", function) if name.startswith("wgmma") else None
    if columns:
        function = f"{function.replace(columns[0], '', 1)}<{columns[1]}>"
    return f"ptx::{function}({', '.join(arguments)});"


def _entry(kernel: tuple[str, list[Any]]) -> str:
    """A C function that launches a kernel: grid, block, shared bytes, then its arguments."""
    name, kinds = kernel
    spelling = {kind: name for name, kind in _KINDS.items()}
    spelling[ctypes.c_char_p] = "void*"
    types = [spelling.get(kind, "void*") for kind in kinds]
    parameters = ", ".join(f"{kind} p{i}" for i, kind in enumerate(types))
    fields = " ".join(f"{kind} p{i};" for i, kind in enumerate(types))
    values = ", ".join(f"p{i}" for i in range(len(types)))
    # A pointer converts to whatever element type the kernel wants.
    passed = ", ".join(
        f"host::map_at<TensorMap>(call.p{i})"
        if kinds[i] is ctypes.c_char_p
        else f"host::Pointer{{call.p{i}}}"
        if kind == "void*"
        else f"call.p{i}"
        for i, kind in enumerate(types)
    )
    return f"""
namespace host {{
#ifndef AUTOTUNE_HOST_POINTER
#define AUTOTUNE_HOST_POINTER
struct Pointer {{
  void* address;
  template <typename Element>
  operator Element*() const {{
    return static_cast<Element*>(address);
  }}
}};
#endif
struct Call_{name} {{ {fields} }};
}}
extern "C" __attribute__((visibility("default"))) void launch_{name}(
    unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
    std::size_t shared_bytes, unsigned cluster, {parameters}) {{
  host::Call_{name} arguments = {{{values}}};
  host::launch({{gx, gy, gz}}, {{bx, by, bz}}, shared_bytes, cluster, [](void* given) {{
    const auto& call = *static_cast<host::Call_{name}*>(given);
    {name}({passed});
  }}, &arguments);
}}
"""


@functools.cache
def _precompiled() -> tempfile.TemporaryDirectory[str]:
    """A folder with what g++ then need not do for every program.

    It has the header as g++ has read it, and the runtime's object.
    """
    folder = tempfile.TemporaryDirectory()
    made_by = {
        f"{HEADER.name}.gch": ("-x", "c++-header", HEADER),
        RUNTIME.with_suffix(".o").name: ("-O2", "-c", RUNTIME),
    }
    for name, arguments in made_by.items():
        subprocess.run([*_COMMAND, *arguments, "-o", Path(folder.name, name)], check=True)
    return folder


def _compile(text: str, folder: Path) -> Path:
    made_of = "\0".join([str(_COMMAND), *(path.read_text() for path in _SOURCES), text])
    library = folder / f"{hashlib.sha256(made_of.encode()).hexdigest()[:24]}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source = Path(scratch, "kernel.cpp")
        source.write_text(text)
        built = Path(scratch, "kernel.so")
        with _PRECOMPILING:
            precompiled = _precompiled().name
        included = [f"-I{precompiled}", f"-I{HEADER.parent}"]
        linked = [source, Path(precompiled, RUNTIME.name).with_suffix(".o")]
        subprocess.run([*_COMMAND, *included, "-o", built, *linked], check=True)
        built.replace(library)
    return library


def guarded(shape: tuple[int, int], ld: int, dtype: str, *, misaligned: int = 0) -> Any:
    """A matrix whose memory ends where nothing may be read or written any more.

    Args:
        shape: rows and columns.
        ld: elements from row to row, at least the columns.
        dtype: its element type.
        misaligned: elements between a 16-byte boundary and the first element.

    Returns:
        A view of shape `shape`, all NaN, as are the elements between its rows and those before and
        behind it within 16 bytes. At most 15 bytes follow its last element before an access is a
        segmentation fault: none where size and `misaligned` add up to a multiple of 16.
    """
    rows, columns = shape
    row = DTYPES[dtype]
    item = row.itemsize
    used = ((rows - 1) * ld + columns) * item
    pages = -(-(used + 16) // _PAGE) * _PAGE
    memory = mmap.mmap(-1, pages + _PAGE)
    base = np.frombuffer(memory, dtype=np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(base.ctypes.data + pages), ctypes.c_size_t(_PAGE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    start = (pages - used - misaligned * item) // 16 * 16 + misaligned * item
    base[start // 16 * 16 : pages].view(row.numpy).fill(np.nan)
    flat = base[start : start + used].view(row.numpy)
    return np.lib.stride_tricks.as_strided(flat, shape, (ld * item, item))
