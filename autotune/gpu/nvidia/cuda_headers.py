"""Headers that come with CUDA: where they are, and the digest of those that a source includes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from autotune.core import session
from autotune.core.errors import MissingDependencyError
from autotune.core.installing import install_hint

INSTALL = install_hint("compile")

_INCLUDE = re.compile(r"""^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]""", re.MULTILINE)
_UNFOUND = re.compile(r'(?:could not|cannot) open source file "([^"]+)"')

_FURTHER = ("cccl", "curand")
"""Packages of headers beside the runtime's, as `cuda.pathfinder` calls them."""

_PACKAGES = (
    (re.compile(r"crt/"), "nvidia-cuda-crt"),
    (re.compile(r"nv/|cuda/|cub/|thrust/"), "nvidia-cuda-cccl"),
    (re.compile(r"curand"), "nvidia-curand"),
)


def header_folders(text: str) -> tuple[str, ...]:
    """Folders of the headers that a source may include; none where it includes nothing.

    Raises:
        MissingDependencyError: it includes something, and the headers of the runtime are missing.
    """
    return _folders() if _INCLUDE.search(text) else ()


def header_digest(text: str) -> str:
    """A digest of the headers that a source includes, and of those that they include.

    Raises:
        MissingDependencyError: as `header_folders`.
    """
    names = tuple(sorted(set(_INCLUDE.findall(text))))
    return _digest(names) if names else ""


def missing_header(message: str, major: int) -> str:
    """The remedy for a header that the compiler did not find; empty for any other message."""
    found = _UNFOUND.search(message)
    if found is None:
        return ""
    name = found[1]
    for pattern, package in _PACKAGES:
        if pattern.match(name):
            return f": pip install {package}{'' if major > 12 else f'-cu{major}'}"
    return (
        ": neither CUDA has such a header (of C's and C++'s libraries it has none), nor is one "
        "beside the source"
    )


@session.cached()
def _folders() -> tuple[str, ...]:
    """Folders of headers: a wheel's, a toolkit's or Conda's."""
    from cuda.pathfinder import locate_nvidia_header_directory  # comes with cuda-bindings

    located = map(locate_nvidia_header_directory, ("cudart", *_FURTHER))
    runtime, *further = [folder.abs_path if folder is not None else None for folder in located]
    if runtime is None:
        raise MissingDependencyError(
            f"compiling what includes headers needs those of CUDA's runtime: {INSTALL}"
        )
    return (str(runtime), *(str(folder) for folder in further if folder is not None))


@session.cached()
def _digest(names: tuple[str, ...]) -> str:
    """A digest of headers by name; conditions around what they include are not looked at."""
    digest = hashlib.sha256()
    waiting, seen = list(reversed(names)), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for folder in _folders():
            path = Path(folder, name)
            if path.is_file():
                content = path.read_bytes()
                digest.update(f"{name}\0{len(content)}\0".encode() + content)
                found = _INCLUDE.findall(content.decode(errors="replace"))
                beside = [str(Path(name).parent / header) for header in found if "/" in name]
                waiting += reversed([*found, *beside])
                break
    return digest.hexdigest()
