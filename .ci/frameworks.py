"""Installs the frameworks that tests need, beside the interpreter that runs this, where small.

On Linux `pip` usually finds builds for GPUs, of gigabytes: what a requirement of the extra
`frameworks` would bring is asked first, and left out with the reason where it is too much.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from importlib.metadata import requires
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement

LIMIT = 300
"""Megabytes that a framework may take."""

_PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def main() -> None:
    """Install each framework, or say why not."""
    given = map(Requirement, requires("autotune-kernels") or [])
    for each in given:
        if each.marker is None or not each.marker.evaluate({"extra": "frameworks"}):
            continue
        if each.marker.evaluate({"extra": ""}):  # a dependency of everybody's
            continue
        reason = refusal(f"{each.name}{each.specifier}")
        if reason is not None:
            print(f"{each.name} is not installed, its tests are skipped: {reason}", flush=True)


def refusal(requirement: str) -> str | None:
    """Why a framework was not installed; None where it was."""
    asked = subprocess.run(
        [*_PIP, "--dry-run", "--report", "-", requirement], capture_output=True, text=True
    )
    if asked.returncode != 0:
        return f"pip finds none ({_last(asked.stderr)})"
    try:
        size = sum(
            megabytes(each["download_info"]["url"]) for each in json.loads(asked.stdout)["install"]
        )
    except (OSError, ValueError) as error:
        return f"its size is not known ({error})"
    if size >= LIMIT:
        return f"this build takes {size:.0f} MB, not less than {LIMIT}"
    made = subprocess.run([*_PIP, requirement], stderr=subprocess.PIPE, text=True)
    return f"pip failed ({_last(made.stderr)})" if made.returncode else None


def megabytes(url: str) -> float:
    """The size of a file that pip would take.

    Raises:
        OSError: it is not there, or cannot be asked for.
        ValueError: its server does not say.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).stat().st_size / 1e6
    with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=60) as answer:
        return int(answer.headers.get("Content-Length") or "unsaid") / 1e6


def _last(text: str) -> str:
    """The last line of what a program wrote."""
    return (text.strip().splitlines() or ["without a word"])[-1]


if __name__ == "__main__":
    main()
