"""What every results page says first: the machine, the software and the commit."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

COMMIT = "AUTOTUNE_COMMIT"
"""Variable that names the commit, where files were brought without their history."""


def taken() -> str:
    """The line of Markdown that says when and of which commit: `pages.py` reads it."""
    return f"- date: {datetime.now(UTC):%Y-%m-%d}, commit {commit() or 'unknown'}"


def commit() -> str:
    """Short name of the commit that is measured, with "-dirty" where files differ from it."""
    if given := os.environ.get(COMMIT):
        return given

    def git(*arguments: str) -> str:
        root = Path(__file__).parent
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        return done.stdout.strip()

    # What other benchmarks printed changes nothing here.
    changed = git("status", "--porcelain", "--", ":/", ":(top,exclude)docs/results")
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def describe() -> str:
    """Lines of Markdown naming machine, software and commit."""
    from autotune.cpu.identity import read_cpu  # asks LLVM, which GPUs do without

    device = read_cpu()
    fields = device.fingerprint.fields
    toolchain = ", ".join(f"{name} {version}" for name, version in device.toolchain.items())
    return "\n".join(
        [
            taken(),
            f"- machine: {device.fingerprint.name}, {len(os.sched_getaffinity(0))} cores usable, "
            f"{platform.system()} {platform.machine()}; shared with other work",
            f"- processor: {', '.join(f'{name} {value}' for name, value in fields.items())}",
            f"- software: {toolchain}",
        ]
    )


def checksum(path: Path) -> str:
    """The first digits of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def describe_files(paths: Iterable[Path]) -> str:
    """A line of Markdown with the names of what was read, and the first digits of checksums."""
    return "- data: " + ", ".join(f"{path.name} sha256 {checksum(path)}" for path in paths)
