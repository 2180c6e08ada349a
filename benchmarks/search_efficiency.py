"""How few evaluations samplers need: ``python benchmarks/search_efficiency.py --data DIR``.

Replays every recorded space in a folder with our samplers and, with ``--peers``, with Kernel
Tuner's strategies and pyATF's default (``pip install '.[bench]'``). Every unique
configuration asked for is charged, failing ones included. Prints Markdown; partial results go to
stderr as they come. With ``--runs FILE`` every run is kept in that file, and those that are there
already, of the same commit and the same data, are not made again, so that an interrupted benchmark
goes on where it was.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import numpy as np
from environment import checksum, commit, describe, describe_files
from search_peers import contestant_worker, peers

from autotune.core.errors import InputError
from autotune.measuring.failure import Failure
from autotune.measuring.sharing import WorkerPool
from autotune.research import RecordedSpace, Summary, read_recorded, summarise
from autotune.research.replay import ONE_THREAD

MILESTONES = (25, 50, 100, 200)
TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Key:
    """One run.

    Attributes:
        commit: of ours; with "-dirty" at its end it may be any.
        data: the checksum of the recorded space.
    """

    commit: str
    data: str
    space: str
    sampler: str
    budget: int
    seed: int


@dataclass(frozen=True)
class Kept:
    """What came of it."""

    rows: list[int]
    cpu_s: float


class Runs:
    """The runs made so far, and the file they are kept in."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[Key, Kept] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                document = json.loads(line)
                if document["key"].keys() == Key.__dataclass_fields__.keys():
                    self._known[Key(**document["key"])] = Kept(**document["run"])

    def get(self, key: Key) -> Kept | None:
        return self._known.get(key)

    def add(self, key: Key, kept: Kept) -> None:
        self._known[key] = kept
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                print(json.dumps({"key": asdict(key), "run": asdict(kept)}), file=file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of recorded spaces")
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--samplers", nargs="+", default=None)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--runs", type=Path, help="file that keeps every run, to go on from")
    parser.add_argument("--json", type=Path, help="also write the summaries to a file")
    args = parser.parse_args()
    samplers = args.samplers or [
        "auto",
        "tpe",
        *(["gp"] if importlib.util.find_spec("torch") else []),
        "random",
    ]
    names = [*samplers, *(peers() if args.peers else ())]
    runs = Runs(args.runs)
    spaces: dict[Path, RecordedSpace] = {}
    for path in sorted(args.data.iterdir()):
        try:
            spaces[path] = read_recorded(path)
        except InputError as error:
            print(f"left out: {error}", file=sys.stderr)
    if not spaces:
        sys.exit(f"{args.data} holds no recorded space")
    summaries: dict[tuple[str, str], Summary] = {}
    for path, recorded in spaces.items():
        for name, summary in _contest(path, recorded, names, args, runs):
            summaries[recorded.name, name] = summary
            print(
                f"{recorded.name}: {name}: score {summary.score:.3f} ±{summary.score_error:.3f}",
                file=sys.stderr,
                flush=True,
            )
    print(describe())
    print(describe_files(spaces))
    print(f"- samplers: {', '.join(_versions())}")
    print(_ended(list(spaces.values()), names, summaries, args.seeds))
    print(
        f"- {len(spaces)} recorded spaces, {args.budget} evaluations, {args.seeds} seeds; unique "
        "valid configurations are charged, failing ones included\n"
    )
    print(_overall(list(spaces.values()), names, summaries))
    print(_per_space(list(spaces.values()), names, summaries))
    if args.json is not None:
        args.json.write_text(json.dumps(_documents(summaries), indent=1), encoding="utf-8")


def _contest(
    path: Path,
    recorded: RecordedSpace,
    names: Sequence[str],
    args: argparse.Namespace,
    runs: Runs,
) -> Iterator[tuple[str, Summary]]:
    budget = min(args.budget, recorded.size)
    pool = WorkerPool(contestant_worker, path, count=args.workers, environment=ONE_THREAD)
    with pool:
        subject = commit(), checksum(path), recorded.name
        for name in names:
            keys = [Key(*subject, name, budget, seed) for seed in range(args.seeds)]
            todo = [key for key in keys if runs.get(key) is None]
            # A few at a time: what was made is kept even if this is interrupted.
            for start in range(0, len(todo), 2 * args.workers):
                batch = todo[start : start + 2 * args.workers]
                requests = [(key.sampler, budget, key.seed) for key in batch]
                for key, reply in zip(batch, pool.run(requests, TIMEOUT_S), strict=True):
                    if isinstance(reply, Failure):
                        print(f"{key}: {reply.reason}", file=sys.stderr, flush=True)
                    else:
                        rows, cpu_s = reply
                        runs.add(key, Kept(list(rows), cpu_s))
            done = [kept for key in keys if (kept := runs.get(key)) is not None]
            if done:
                yield (
                    name,
                    summarise(
                        recorded.values,
                        [np.array(kept.rows, dtype=np.int64) for kept in done],
                        budget,
                        [kept.cpu_s for kept in done],
                    ),
                )


def _ended(
    spaces: Sequence[RecordedSpace],
    names: Sequence[str],
    summaries: dict[tuple[str, str], Summary],
    seeds: int,
) -> str:
    """How many runs came to an end: what follows is of these alone."""
    lost = []
    for recorded in spaces:
        for name in names:
            summary = summaries.get((recorded.name, name))
            ended = 0 if summary is None else len(summary.scores)
            if ended < seeds:
                lost.append(f"{ended} of {seeds} of {name} on {recorded.name}")
    if not lost:
        return f"- runs that ended: all {len(spaces) * len(names) * seeds}"
    return f"- runs that ended: {', '.join(lost)}, and all others"


def _overall(
    spaces: Sequence[RecordedSpace],
    names: Sequence[str],
    summaries: dict[tuple[str, str], Summary],
) -> str:
    """Means over the spaces of each sampler's medians over seeds; those with all spaces only."""
    lines = [
        f"| sampler | fraction of optimum after {' / '.join(map(str, MILESTONES))} | reach 95% "
        "| reach 99% | score | CPU ms per evaluation |",
        "|---|---|---|---|---|---|",
    ]
    for name in names:
        found = [summaries.get((recorded.name, name)) for recorded in spaces]
        complete = [summary for summary in found if summary is not None]
        if len(complete) < len(spaces):
            continue
        fractions = " ".join(
            f"{mean(summary.fraction(step) for summary in complete):.3f}" for step in MILESTONES
        )
        # The spaces are what there is, not a sample: the error is that of the seeds alone.
        error = sum(summary.score_error**2 for summary in complete) ** 0.5 / len(complete)
        lines.append(
            f"| {name} | {fractions} | {mean(s.reach95 for s in complete):.2f} "
            f"| {mean(s.reach99 for s in complete):.2f} "
            f"| {mean(s.score for s in complete):.3f} ±{error:.3f} "
            f"| {mean(s.cpu_ms for s in complete):.2f} |"
        )
    return "\n".join(lines) + "\n"


def _per_space(
    spaces: Sequence[RecordedSpace],
    names: Sequence[str],
    summaries: dict[tuple[str, str], Summary],
) -> str:
    lines = [
        "Score and, in brackets, n95/n99: evaluations until the median run has 95% and 99% of "
        "the optimum's speed.\n",
        f"| space | configurations (failing) | {' | '.join(names)} |",
        "|---|---|" + "---|" * len(names),
    ]
    for recorded in spaces:
        cells = []
        for name in names:
            summary = summaries.get((recorded.name, name))
            if summary is None:
                cells.append("-")
                continue
            counts = "/".join(
                f">{summary.budget}" if count is None else f"{count:g}"
                for count in (summary.n95, summary.n99)
            )
            cells.append(f"{summary.score:.2f} ({counts})")
        lines.append(
            f"| {recorded.name} | {recorded.size} ({recorded.failures}) | {' | '.join(cells)} |"
        )
    return "\n".join(lines) + "\n"


def _documents(summaries: dict[tuple[str, str], Summary]) -> list[dict[str, object]]:
    documents: list[dict[str, object]] = []
    for (space, name), summary in summaries.items():
        fields = asdict(summary)
        curves = {key: fields.pop(key).tolist() for key in ("median", "low", "high")}
        documents.append(
            {"space": space, "sampler": name, "score": summary.score, **fields, "curves": curves}
        )
    return documents


def _versions() -> Iterator[str]:
    for package in ("optuna", "kernel_tuner", "pyatf", "torch"):
        try:
            yield f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            continue


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"took {time.perf_counter() - started:.0f} s", file=sys.stderr)
