"""Installing the toy target: a folder with its metadata, as pip would leave it."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent


def install(folder: Path, name: str = "toy", value: str = "toy_target:ToyTarget") -> Path:
    """Put the package, and what its entry point says, into a folder for ``sys.path``."""
    for each in ("toy_target.py", "toy_families"):
        source = HERE / each
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / each)
    metadata = folder / "autotune_toy-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: autotune-toy\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[autotune.targets]\n{name} = {value}\n")
    return folder
