"""Study of samplers on the data sets that are shipped: ``python benchmarks/data_sets.py``.

Replays every data set with each sampler to its cut-off, and prints as Markdown scores, samplers in
pairs, how winners carry over, importance of parameters, pruning and failures; ``--plot FILE``
draws convergence. ``--keep FILE...`` makes the data sets of sweeps instead: compressed files and
`index.json` in the folder `datasets`.
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
from autotune.core.paths import CacheLocations
from autotune.reporting import Finder
from autotune.reporting.comparing import Comparison
from autotune.reporting.layout import Cell, Figure, Table
from autotune.reporting.page import drawn

FOLDER = Path(__file__).parents[1] / "datasets"
SAMPLERS = ("auto", "tpe", "cmaes", "nsga2", "random")
SHOWN = (
    *("recordings", "scores", "pairs", "portability-table", "importance-table", "interactions"),
    *("funnel-table", "restrictions-table", "outcomes-table", "reasons-table"),
)
COLUMNS, WIDTH, HEIGHT = 3, 250, 150
"""Of the picture: charts in a row, and the size of each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", nargs="+", type=Path, metavar="FILE", help="sweeps, as JSON")
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--plot", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.keep:
        keep(args.keep)
        return
    print(describe())
    page = Comparison.of(
        [datasets.path(name) for name in datasets.names()],
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
    FOLDER.mkdir(exist_ok=True)
    found = dict(json.loads((FOLDER / "index.json").read_text())["datasets"])
    for path in files:
        document = json.loads(path.read_text())
        packed = gzip.compress(path.read_bytes(), mtime=0)
        (FOLDER / f"{path.stem}.json.gz").write_bytes(packed)
        provenance = document["provenance"]
        fields = provenance["fingerprint"]["fields"]
        device = document["device"]
        if "llvm_cpu" in fields:
            device = f"1 thread of {device} ({fields['llvm_cpu']})"
        problem = document["problem"]
        sizes = "x".join(str(problem[name]) for name in "mnk")
        shape = f"{document['operation']} {sizes} {problem['dtype']} {problem['layout']}"
        count = f"{len(document['measurements'])} of {document['size']:,} configurations"
        families = ", ".join(provenance["families"])
        found[path.stem] = {
            "file": f"{path.stem}.json.gz",
            "sha256": hashlib.sha256(packed).hexdigest(),
            "description": f"{count} of {families} for {shape}, {device}, "
            f"{provenance['created'][:10]}; all raw samples, at most "
            f"{provenance['most_samples']} a configuration",
        }
    index = {"licence": "CC-BY-4.0", "datasets": dict(sorted(found.items()))}
    (FOLDER / "index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
