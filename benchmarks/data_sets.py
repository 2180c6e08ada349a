"""Study of samplers on the data sets that are shipped: ``python benchmarks/data_sets.py``.

Replays every data set with each sampler to its cut-off, and prints as Markdown scores, samplers in
pairs, how winners carry over, importance of parameters, pruning and failures; ``--plot FILE``
draws convergence. ``--keep FILE...`` makes the data sets of sweeps instead: compressed files and
`index.json` in the folder `datasets`. ``--survey CACHE NAME`` makes one of what the survey of a
tuning preset has measured there, on this machine.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from environment import describe

from autotune import datasets
from autotune.core.checks import utc_now
from autotune.core.paths import CacheLocations
from autotune.operations.problem import gemm_from_key
from autotune.reporting import Finder
from autotune.reporting.comparing import Comparison
from autotune.reporting.layout import Cell, Figure, Table
from autotune.reporting.page import drawn
from autotune.research.space import Recording
from autotune.research.swept import entry_of, write_sweep
from autotune.store import TuningCache
from autotune.targets.families import load_families
from autotune.targets.registry import make_target
from autotune.tuning.context import surroundings

FOLDER = Path(__file__).parents[1] / "datasets"
SAMPLERS = ("auto", "tpe", "cmaes", "nsga2", "random")
SHOWN = (
    *("recordings", "scores", "pairs", "portability-table", "importance-table", "interactions"),
    *("funnel-table", "restrictions-table", "outcomes-table", "reasons-table"),
)
SHAPE = ("m", "n", "k", "dtype", "layout")
COLUMNS, WIDTH, HEIGHT = 3, 250, 150
"""Of the picture: charts in a row, and the size of each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", nargs="+", type=Path, metavar="FILE", help="sweeps, as JSON")
    parser.add_argument("--survey", nargs=2, metavar=("CACHE", "NAME"), help="tuning.sqlite")
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--plot", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.keep:
        keep(args.keep)
        return
    if args.survey:
        keep_survey(Path(args.survey[0]), args.survey[1])
        return
    print(describe())
    page = Comparison.of(
        [datasets.path(name) for name, each in datasets.described().items() if each.shapes == 1],
        args.samplers,
        Finder(CacheLocations.at(None)),
        seeds=args.seeds,
        workers=args.workers,
    ).page()
    known = {table.id: table for table in page.tables}
    for table in (known[name] for name in SHOWN if name in known):
        show(table)
    if args.plot:
        figures = {each.id: each for section in page.sections for each in section.figures}
        draw(args.plot, figures["curves"])


def show(table: Table) -> None:
    """Print a table as Markdown."""
    print(f"\n## {table.caption}\n\n| {' | '.join(table.header)} |")
    print("|---" * len(table.header) + "|")
    for row in table.rows:
        cells = (each.text if isinstance(each, Cell) else each for each in row)
        print(f"| {' | '.join(each.replace('|', '/') for each in cells)} |")


def draw(path: Path, figure: Figure) -> None:
    """Draw the medians of all charts of a figure, without bands, beside and below each other."""
    charts = [
        {**spec, "layer": spec["layer"][1:], "title": name, "width": WIDTH, "height": HEIGHT}
        for name, spec in figure.variants
    ]
    rows = [charts[at : at + COLUMNS] for at in range(0, len(charts), COLUMNS)]
    whole = {
        "vconcat": [{"hconcat": row} for row in rows],
        "resolve": {"scale": {"color": "shared"}},
    }
    path.write_bytes(drawn(whole, path.suffix))


def keep(files: Sequence[Path]) -> None:
    """Make data sets of sweeps, named as their files are; those that there are stay."""
    for path in files:
        document = json.loads(path.read_text())
        provenance, problem = document["provenance"], document["problem"]
        device = document["device"]
        if "llvm_cpu" in (fields := provenance["fingerprint"]["fields"]):
            device = f"1 thread of {device} ({fields['llvm_cpu']})"
        sizes = "x".join(str(problem[name]) for name in "mnk")
        shape = f"{document['operation']} {sizes} {problem['dtype']} {problem['layout']}"
        count = f"{len(document['measurements'])} of {document['size']:,} configurations"
        families = ", ".join(provenance["families"])
        add(
            path.stem,
            path.read_text(),
            f"{count} of {families} for {shape}, {device}, {provenance['created'][:10]}; all raw "
            f"samples, at most {provenance['most_samples']} a configuration",
        )


def keep_survey(cache: Path, name: str) -> None:
    """Make a data set of all surveys in a cache: sizes and type are parameters like any other."""
    store = TuningCache(cache)
    studies = [study for study in store.studies() if study.startswith("survey-")]
    found = [row for study in studies for row in store.measurements(study=study)]
    shapes, entries = set(), {}
    for row in found:  # the last time that a program was timed on a shape counts
        shape = {field: row.problem[field] for field in SHAPE}
        shapes.add(tuple(shape.values()))
        entry = entry_of(row.candidate, row.measurement)
        both = {**shape, **entry.configuration}
        entries[row.candidate, *shape.values()] = entry._replace(configuration=both)
    target = make_target(found[0].target)
    device, created = target.device(gemm_from_key(found[0].problem)), utc_now()
    families = load_families(target=target.name)
    recording = Recording(
        entries.values(),
        name,
        unit="s",
        device=device.fingerprint.name,
        subject={"operation": "gemm", "target": target.name},
        provenance={
            "created": created,
            **surroundings(device),
            "families": {
                each: {"digest": families[each].digest}
                for each in sorted({row.candidate.family for row in found})
            },
        },
    )
    about = f"{len(entries)} times of programs on {len(shapes)} shapes drawn at random"
    described = f"{about}, {device.fingerprint.name}, {created[:10]}: what surveys measured"
    add(name, write_sweep(recording), described, shapes=len(shapes))


def add(name: str, content: str, description: str, shapes: int = 1) -> None:
    """Put a data set into the folder and its index."""
    packed = gzip.compress(content.encode(), mtime=0)
    (FOLDER / f"{name}.json.gz").write_bytes(packed)
    index = json.loads((FOLDER / "index.json").read_text())
    index["datasets"][name] = {
        "file": f"{name}.json.gz",
        "sha256": hashlib.sha256(packed).hexdigest(),
        "description": description,
        **({"shapes": shapes} if shapes > 1 else {}),
    }
    index["datasets"] = dict(sorted(index["datasets"].items()))
    (FOLDER / "index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
