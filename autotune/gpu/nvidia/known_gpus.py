"""GPUs known by name, so that spaces are pruned and kernels compiled on machines without one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TypeAlias

from autotune.core.errors import InputError, UnknownNameError
from autotune.core.limits import GpuLimits
from autotune.core.paths import expanded
from autotune.core.printable import shown
from autotune.core.suggestions import did_you_mean
from autotune.core.toml_table import Table

_KIB = 2**10
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A GPU as the table describes it.

    Attributes:
        key: what users call it ("h200").
        name: what the driver calls it ("NVIDIA H200").
        memory_bytes: device memory, nominal.
        limits: numbers to prune with.
    """

    key: str
    name: str
    memory_bytes: int
    limits: GpuLimits


_COMMON = {
    "warp_size": 32,
    "max_threads_per_block": 1024,
    "registers_per_thread": 255,
    "registers_per_block": 65536,
    "registers_per_multiprocessor": 65536,
    "shared_bytes_static": 48 * _KIB,
}

_ARCHITECTURE = {
    "threads": ("max_threads_per_multiprocessor", 1),
    "blocks": ("max_blocks_per_multiprocessor", 1),
    "shared_kib": ("shared_bytes_per_multiprocessor", _KIB),
    "block_shared_kib": ("shared_bytes_per_block", _KIB),
    "reserved_bytes": ("shared_bytes_reserved", 1),
    "granularity": ("shared_granularity", 1),
}
"""Keys of an architecture: the limit that each says, and its unit."""

_Architectures: TypeAlias = dict[int, dict[str, int]]
"""Limits that the devices of a compute capability share."""


def known_gpus() -> dict[str, KnownGpu]:
    """Every GPU there is a description of: the shipped ones and those in ``$AUTOTUNE_GPUS``.

    The variable names TOML files in the format of the shipped ``known_gpus.toml``; their entries
    replace shipped ones of the same name.

    Raises:
        InputError: one of the files cannot be read or does not fit the format; the message names
            file and key.
    """
    architectures, gpus = _shipped()
    for path in os.environ.get("AUTOTUNE_GPUS", "").split(os.pathsep):
        if path:
            gpus |= _read(expanded(path), architectures)
    return gpus


def find_gpu(name: str) -> KnownGpu:
    """The GPU called `name`, or described by the file of that name.

    Args:
        name: a key or a driver's name, whatever its case, spaces and dashes; or the path of a
            TOML file (``*.toml``) that describes one GPU.

    Raises:
        UnknownNameError: there is no such GPU; the message lists those there are.
        InputError: a file of GPUs cannot be read or does not fit the format.
    """
    if name.endswith(".toml"):
        described = _read(expanded(name), _shipped()[0])
        if len(described) != 1:
            raise InputError(
                f"{name} must describe one GPU to be a device, and describes "
                f"{', '.join(described) or 'none'}: name the file in $AUTOTUNE_GPUS and give "
                "the GPU's name"
            )
        return next(iter(described.values()))
    gpus = known_gpus()
    for gpu in gpus.values():
        if _plain(name) in (_plain(gpu.key), _plain(gpu.name)):
            return gpu
    raise UnknownNameError(
        f"device must be one of {', '.join(gpus)}, or a TOML file that describes one, "
        f"got {shown(name)}{did_you_mean(name[:80], gpus)}"
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _shipped() -> tuple[_Architectures, dict[str, KnownGpu]]:
    architectures: _Architectures = {}
    with resources.as_file(resources.files("autotune.gpu.nvidia") / "known_gpus.toml") as path:
        gpus = _read(path, architectures)
    return architectures, gpus


def _read(path: Path, architectures: _Architectures) -> dict[str, KnownGpu]:
    """The GPUs of one file; its architectures are added to those there are."""
    top = Table.read(path, error=InputError)
    table = top.table("architectures", {})
    for key in table:
        entry = table.table(key)
        architectures[_compute_capability(table, key, key)] = {
            limit: unit * entry.whole(name, least=0 if name == "reserved_bytes" else 1)
            for name, (limit, unit) in _ARCHITECTURE.items()
        }
        entry.close()
    gpus = {gpu.key: gpu for gpu in _gpus(top.table("gpus", {}), architectures)}
    top.close()
    return gpus


def _gpus(table: Table, architectures: _Architectures) -> Iterator[KnownGpu]:
    for key in table:
        entry = table.table(key)
        text = entry.text("compute_capability")
        capability = _compute_capability(entry, "compute_capability", text)
        if capability not in architectures:
            known = ", ".join(f"{number // 10}.{number % 10}" for number in sorted(architectures))
            entry.fail("compute_capability", f"must be one of {known}, got {shown(text)}")
        yield KnownGpu(
            key=key,
            name=entry.text("name"),
            memory_bytes=entry.whole("memory_gib") * _GIB,
            limits=GpuLimits(
                compute_capability=capability,
                multiprocessor_count=entry.whole("multiprocessors"),
                l2_bytes=entry.whole("l2_kib") * _KIB,
                **_COMMON,  # type: ignore[arg-type]
                **architectures[capability],  # type: ignore[arg-type]
            ),
        )
        entry.close()


def _compute_capability(table: Table, key: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,3}\.\d", text, re.ASCII):
        table.fail(key, f'must be a compute capability like "9.0", got {shown(text)}')
    return int(text.replace(".", ""))
