"""What every results page says first: the machine, the software and the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from autotune.targets.cpu.identity import read_cpu


def describe() -> str:
    """Lines of Markdown naming machine, software and commit."""
    device = read_cpu()
    fields = device.fingerprint.fields
    root = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        return done.stdout.strip()

    commit = git("describe", "--always")
    if git("status", "--porcelain", "--", ":/", ":(top,exclude)docs/results"):
        commit += "-dirty"  # what other benchmarks printed changes nothing here
    toolchain = ", ".join(f"{name} {version}" for name, version in device.toolchain.items())
    return "\n".join(
        [
            f"- date: {datetime.now(UTC):%Y-%m-%d}, commit {commit or 'unknown'}",
            f"- machine: {device.fingerprint.name}, {len(os.sched_getaffinity(0))} cores usable, "
            f"{platform.system()} {platform.machine()}; shared with other work",
            f"- processor: {', '.join(f'{name} {value}' for name, value in fields.items())}",
            f"- software: {toolchain}",
        ]
    )
