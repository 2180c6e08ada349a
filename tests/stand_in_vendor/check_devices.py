"""Run by itself: three GPUs make trials of one study, and one of two helpers is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from autotune import Gemm, tune
from autotune.cli import main as command
from autotune.core.errors import InputError
from autotune.measuring.effort import Effort
from autotune.search.claims import Owner, claim_of
from autotune.search.study import TuningStudy
from autotune.tuning.helping import Helpers

HERE = Path(__file__).parent
SIDES = [4, 6, 8]


def made_by(study: TuningStudy[Any]) -> Counter[int]:
    """Measured trials by process."""
    owners = [
        Owner.parse(str(claim_of(trial)["owner"]))
        for trial in study.optuna.get_trials(deepcopy=False)
        if "outcome" in trial.user_attrs
    ]
    return Counter(owner.pid for owner in owners if owner is not None)


def main(cache: Path) -> None:
    cache.mkdir()
    families = cache / "families"
    families.mkdir()
    (families / "simple.cu.j2").write_text((HERE / "families/simple.cu.j2").read_text())
    text = (HERE / "families/simple.toml").read_text()
    (families / "simple.toml").write_text(text.replace("[4, 8]", str(SIDES)))
    problem = Gemm(33, 20, 41)
    options: dict[str, Any] = {
        "cache": cache,
        "extra_families": [families],
        "target": "stand-in",
        "effort": Effort(budget_s=0.02, finals_s=0.05),
        "timeout": 500,
        "workers": 2,
    }
    seen: list[tuple[Counter[int], list[str]]] = []
    close = TuningStudy.close

    def closing(study: TuningStudy[Any]) -> None:
        close(study)
        seen.append((made_by(study), [trial.state for trial in study.trials]))

    TuningStudy.close = closing  # type: ignore[method-assign]
    result = tune(problem, devices=[0, 1, 2], trials=3, study="three", **options)
    made, states = seen.pop()
    assert sorted(made.values()) == [1, 1, 1], made
    assert made[os.getpid()] == 1
    assert len({trial.candidate for trial in result.trials}) == len(result.trials) == 3
    assert result.best.effort.trials == 3
    assert "RUNNING" not in states

    begin = Helpers.begin

    def beginning(helpers: Helpers, *arguments: Any) -> None:
        begin(helpers, *arguments)
        os.kill(helpers.pids[0], signal.SIGKILL)

    Helpers.begin = beginning  # type: ignore[method-assign]
    result = tune(problem, devices=[0, 1], trials=2, study="killed", **options)
    made, states = seen.pop()
    assert made == {os.getpid(): 1}, made
    assert len(result.trials) == 1
    assert "RUNNING" not in states
    Helpers.begin = begin  # type: ignore[method-assign]

    with pytest.raises(InputError, match="there is no GPU 7"):
        tune(problem, devices=[0, 7], **options)
    with pytest.raises(InputError, match="device must be left out"):
        tune(problem, devices=[0, 1], device=1, **options)
    arguments = ["tune", "--target", "stand-in", "--families", str(families), "--shape", "9x8x7"]
    arguments += ["--cache", str(cache)]
    assert command([*arguments, "--devices", "0-1", "--device", "1"]) == 2
    assert command([*arguments, "--devices", "all"]) == 2
    assert command(["tune", "--target", "cpu", "--devices", "0", "--cache", str(cache)]) == 2


if __name__ == "__main__":
    main(Path(sys.argv[1]))
