"""Samplers on the data sets that are shipped: ``python benchmarks/data_sets.py``.

Replays every data set with each sampler to its cut-off, and prints scores, samplers in pairs and
how winners carry over, as Markdown. ``--keep FILE...`` makes the data sets of sweeps instead:
compressed files and `index.json` in the folder `datasets`.
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
from autotune.reporting.comparing import Comparison
from autotune.reporting.layout import Cell, Table
from autotune.research import replay
from autotune.research.scoring import FIRST_SCORED, cut_off

FOLDER = Path(__file__).parents[1] / "datasets"
SHOWN = ("scores", "pairs", "portability-table", "recordings")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", nargs="+", type=Path, metavar="FILE", help="sweeps, as JSON")
    parser.add_argument("--samplers", nargs="+", default=["auto", "tpe", "random"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    if args.keep:
        keep(args.keep)
        return
    print(describe())
    spaces = [datasets.load(name) for name in datasets.names()]
    summaries = {
        (recorded.name, sampler): summary
        for recorded in spaces
        for sampler, summary in replay(
            recorded,
            args.samplers,
            trials=max(cut_off(recorded.values), FIRST_SCORED),
            seeds=args.seeds,
            workers=args.workers,
        )
    }
    page = Comparison(spaces, [], summaries).page()
    tables = [
        table
        for section in page.sections
        for table in (*(figure.table for figure in section.figures), *section.tables)
    ]
    for name in SHOWN:
        show(next(table for table in tables if table.id == name))


def show(table: Table) -> None:
    """Print a table as Markdown."""
    print(f"\n## {table.caption}\n\n| {' | '.join(table.header)} |")
    print("|---" * len(table.header) + "|")
    for row in table.rows:
        cells = (each.text if isinstance(each, Cell) else each for each in row)
        print(f"| {' | '.join(cells)} |")


def keep(files: Sequence[Path]) -> None:
    """Make data sets of sweeps, named as their files are."""
    FOLDER.mkdir(exist_ok=True)
    found = {}
    for path in files:
        document = json.loads(path.read_text())
        packed = gzip.compress(path.read_bytes(), mtime=0)
        (FOLDER / f"{path.stem}.json.gz").write_bytes(packed)
        provenance = document["provenance"]
        cpu = provenance["fingerprint"]["fields"]["llvm_cpu"]
        sizes = "x".join(str(document["problem"][name]) for name in "mnk")
        families = ", ".join(provenance["families"])
        found[path.stem] = {
            "file": f"{path.stem}.json.gz",
            "sha256": hashlib.sha256(packed).hexdigest(),
            "description": f"{document['size']} configurations of {families} for "
            f"{document['operation']} {sizes} {document['problem']['dtype']}, 1 thread of "
            f"{document['device']} ({cpu}), {provenance['created'][:10]}; all raw samples, at "
            f"most {provenance['most_samples']} a configuration",
        }
    index = {"licence": "CC-BY-4.0", "datasets": dict(sorted(found.items()))}
    (FOLDER / "index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
