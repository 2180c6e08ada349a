"""Files that a process has mapped, as /proc shows them."""

from __future__ import annotations

from pathlib import Path


def mapped_files(process: int | str) -> set[str]:
    """Paths of the files that a process has mapped, whatever bytes their names consist of.

    Raises:
        OSError: there is no such process, or it is somebody else's.
    """
    maps = Path(f"/proc/{process}/maps").read_text("utf-8", "surrogateescape")
    return {line.split(maxsplit=5)[-1] for line in maps.split("\n") if "/" in line}
