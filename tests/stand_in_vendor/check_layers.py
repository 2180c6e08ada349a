"""Run by itself: layers of two weights are tuned in one run, breadth first, by two programs."""

from __future__ import annotations

import json
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

from autotune import load
from autotune.gpu.compiling import CompileRequest
from autotune.measuring.effort import Effort
from autotune.measuring.sharing import WorkerPool
from autotune.surveying import preset_of_shapes, preset_run, run_preset
from autotune.surveying.preset_run import PresetStatus

FAMILIES = Path(__file__).parent / "families"
SHAPES = ("9x20x41", "33x16x24", "65x20x41")


def main(cache: Path) -> None:
    preset_run.EFFORT = Effort(budget_s=0.02, finals_s=0.05)
    cache.mkdir()
    shapes = cache / "shapes.jsonl"
    shapes.write_text("".join(f"{json.dumps({'shape': each})}\n" for each in SHAPES))
    preset = preset_of_shapes(shapes, target="stand-in", extra_families=[FAMILIES], seconds=60)
    compiled: Counter[str] = Counter()
    submit = WorkerPool.submit

    def counted(pool: WorkerPool, request: Any, *rest: Any) -> Any:
        if isinstance(request, CompileRequest):
            compiled[request.family] += 1
        return submit(pool, request, *rest)

    WorkerPool.submit = counted  # type: ignore[method-assign]
    visits, reached = [], []

    found = run_preset(
        preset,
        extra_families=[FAMILIES],
        cache=cache,
        trials=2,
        workers=2,
        watch=lambda problem, seconds: visits.append(problem),
        reached=lambda result: reached.append(result.problem),
    )
    assert [each.status for each in found] == [PresetStatus.TUNED] * len(SHAPES)
    # Every problem once before any again; those of a weight follow each other.
    assert reached == visits[: len(SHAPES)]
    assert set(reached) == {each.problem for each in preset.problems}
    assert len(list(groupby(reached, key=lambda problem: problem.shape[1:]))) == 2
    # Two programs, whatever the number of rows.
    assert compiled["simple"] == 2, compiled
    for problem in reached:
        load(problem, target="stand-in", cache=cache, extra_families=[FAMILIES])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
