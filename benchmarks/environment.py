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
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True
    ).stdout.strip()
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
