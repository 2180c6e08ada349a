"""Resources of compiled kernels, read from their binary alone.

A cubin is an ELF file. Registers, stack and launch bounds are attributes in the sections
``.nv.info*``, static shared memory is the size of ``.nv.shared.<kernel>``. No driver is asked.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from autotune.core.errors import InputError
from autotune.gpu.vendor import KernelResources

_HEADER = struct.Struct("<16x H H I Q Q Q I H H H H H H")
_SECTION = struct.Struct("<I I Q Q Q Q I I Q Q")
_SYMBOL = struct.Struct("<I B B H Q Q")
_ATTRIBUTE = struct.Struct("<B B H")
_PAIR = struct.Struct("<I I")
_EXTENTS = struct.Struct("<3I")

_SIZED = 4  # the format of an attribute that carries a payload
_REGISTERS = 0x2F
_FRAME_SIZE = 0x11
_MAX_THREADS = 0x05
_CUDA_MACHINE = 190
_WITHOUT_CONTENT = 8  # the type of a section that takes memory and no room in the file

_ENTRY = 0x10  # marks the symbol of a kernel; others are functions that kernels call

_RESERVED_SYMBOL = ".nv.reservedSmem.offset0"
_RESERVED_BYTES = 1024  # counted in .nv.shared.* by binaries that have the symbol above


def read_cubin(cubin: bytes) -> dict[str, KernelResources]:
    """The kernels of a binary by name.

    Raises:
        InputError: this is no cubin, or a damaged one.
    """
    try:
        return _read(cubin)
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise InputError(f"a cubin must be a whole ELF file; it is damaged: {error}") from None


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    content: memoryview
    size: int
    link: int


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    is_kernel: bool


def _read(cubin: bytes) -> dict[str, KernelResources]:
    sections = _sections(cubin)
    symbols = _symbols(sections)
    by_name = {section.name: section for section in sections}
    registers: dict[str, int] = {}
    frames: dict[str, int] = {}
    for attribute, payload in _attributes(by_name.get(".nv.info")):
        if attribute in (_REGISTERS, _FRAME_SIZE):
            symbol, value = _PAIR.unpack(payload)
            (registers if attribute == _REGISTERS else frames)[symbols[symbol].name] = value
    reserved = _RESERVED_BYTES if any(symbol.name == _RESERVED_SYMBOL for symbol in symbols) else 0
    entries = {symbol.name for symbol in symbols if symbol.is_kernel}
    kernels: dict[str, KernelResources] = {}
    for name in registers:
        if name not in entries or f".text.{name}" not in by_name:
            continue
        bounds = dict(_attributes(by_name.get(f".nv.info.{name}"))).get(_MAX_THREADS)
        shared = by_name.get(f".nv.shared.{name}")
        kernels[name] = KernelResources(
            registers=registers[name],
            local_bytes=frames.get(name, 0),
            shared_bytes=max(shared.size - reserved, 0) if shared else 0,
            max_threads=math.prod(_EXTENTS.unpack(bounds)) if bounds is not None else None,
        )
    return kernels


def _sections(cubin: bytes) -> list[_Section]:
    if cubin[:4] != b"\x7fELF":
        raise InputError(f"a cubin must be an ELF file, and this starts with {cubin[:4]!r}")
    header = _HEADER.unpack_from(cubin)
    machine, table, entry_size, count, names_index = header[1], header[5], *header[10:]
    if machine != _CUDA_MACHINE:
        raise InputError(f"a cubin must be an ELF file for CUDA (190), not for machine {machine}")
    entries = [_SECTION.unpack_from(cubin, table + i * entry_size) for i in range(count)]
    names = bytes(_content(cubin, entries[names_index]))
    return [
        _Section(_text(names, entry[0]), _content(cubin, entry), entry[5], entry[6])
        for entry in entries
    ]


def _content(cubin: bytes, entry: tuple[int, ...]) -> memoryview:
    """The content of a section, not copied: a damaged file may have thousands of large ones."""
    kind, offset, size = entry[1], entry[4], entry[5]
    if kind == _WITHOUT_CONTENT:
        return memoryview(b"")
    if offset + size > len(cubin):
        raise IndexError(f"a section ends at {offset + size} of {len(cubin)} bytes")
    return memoryview(cubin)[offset : offset + size]


def _text(strings: bytes, start: int) -> str:
    """The zero-terminated text at an offset of a string table."""
    end = strings.find(b"\0", start)
    if end < 0:
        raise IndexError(f"no text at {start} of {len(strings)} bytes of names")
    return strings[start:end].decode()


def _symbols(sections: list[_Section]) -> list[_Symbol]:
    """The symbol table, by index."""
    table = next((section for section in sections if section.name == ".symtab"), None)
    if table is None:
        raise IndexError("it has no symbol table")
    strings = bytes(sections[table.link].content)
    return [
        _Symbol(_text(strings, name), bool(other & _ENTRY))
        for name, _, other, *_ in _SYMBOL.iter_unpack(table.content)
    ]


def _attributes(section: _Section | None) -> Iterator[tuple[int, memoryview]]:
    """Number and payload of every attribute that has one."""
    content = section.content if section else memoryview(b"")
    position = 0
    while position < len(content):
        kind, attribute, size = _ATTRIBUTE.unpack_from(content, position)
        position += _ATTRIBUTE.size
        if kind == _SIZED:
            if position + size > len(content):
                raise IndexError(f"attribute {attribute:#x} runs out of its section")
            yield attribute, content[position : position + size]
            position += size
