"""Commands that measure for a moment only: how fast the winners are is of no interest.

Run as a program it is `python -m autotune` that does so.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def be_brief(patch: Callable[[object, str, object], None]) -> None:
    """Replace the effort that commands make where nobody says which."""
    from autotune.cli import bench
    from autotune.cpu import evaluator
    from autotune.distributed.mpi import evaluator as of_ranks
    from autotune.measuring.effort import Effort
    from autotune.surveying import preset_run

    effort = Effort(budget_s=0.02, finals_s=0.1)
    for module in (evaluator, of_ranks):
        patch(module, "Effort", lambda: effort)
    for module in (bench, preset_run):
        patch(module, "EFFORT", effort)


if __name__ == "__main__":
    from autotune.__main__ import main

    be_brief(setattr)
    sys.exit(main())
