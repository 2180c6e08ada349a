"""Put what was tuned, and its binaries, into ``cache/``: ``python benchmarks/ship_records.py DB``.

Takes the best record of every problem, and the portfolios, from a user's cache and writes, for
each device, a JSON Lines file of either and the binaries by digest, compressed. What is there
already for a problem, or for a type of operands, is replaced.
"""

from __future__ import annotations

import argparse
import lzma
from pathlib import Path

from autotune.core.paths import data_dir
from autotune.model import Portfolio
from autotune.store import TuningCache, TuningRecord, export_lines, shipped_records, superseded
from autotune.store.files import COMPRESSED, read_portfolios, read_records
from autotune.store.portfolio import portfolio_document
from autotune.store.strict_json import line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", type=Path)
    parser.add_argument("--target", default="cuda")
    args = parser.parse_args()
    cache = TuningCache(args.database)
    records = cache.records(target=args.target)
    old = {record.id for record in superseded(records)}
    folders: dict[Path, list[TuningRecord]] = {}
    for record in records:
        if record.id not in old:
            folder = data_dir("cache") / record.fingerprint.slug
            folders.setdefault(folder / f"{record.operation}.jsonl", []).append(record)
    for file, new in folders.items():
        file.parent.mkdir(exist_ok=True)
        keys = {record.key for record in new}
        kept = [record for record in shipped_records(file.stem) if record.key not in keys]
        kept = [record for record in kept if record.fingerprint.slug == file.parent.name]
        file.write_text("".join(f"{line}\n" for line in export_lines([*kept, *new])))
        print(f"{len(new)} records in {file}")
    portfolios: dict[Path, list[Portfolio]] = {}
    for each in cache.portfolios("gemm", args.target):
        folder = data_dir("cache") / each.fingerprint.slug
        portfolios.setdefault(folder / f"{each.operation}.portfolio.jsonl", []).append(each)
    for file, made in portfolios.items():
        file.parent.mkdir(exist_ok=True)
        kinds = {(each.dtype, each.out_dtype, each.threads) for each in made}
        there = read_portfolios(file) if file.exists() else []
        made[:0] = [p for p in there if (p.dtype, p.out_dtype, p.threads) not in kinds]
        lines = [next(export_lines([])), *(line(portfolio_document(each)) for each in made)]
        file.write_text("".join(f"{each}\n" for each in lines))
        print(f"{len(made)} portfolios in {file}")
    for folder in {file.parent for file in (*folders, *portfolios)}:
        keep_binaries(folder, cache)


def keep_binaries(folder: Path, cache: TuningCache) -> None:
    """Write the binaries that a device's files name, and remove those that none names any more."""
    named: set[str] = set()
    for file in folder.glob("*.jsonl"):
        if file.name.endswith(".portfolio.jsonl"):
            entries = (each for made in read_portfolios(file) for each in made.entries)
            named |= {d for each in entries for d in (each.binary, each.support) if d}
        else:
            binaries = (record.binary for record in read_records(file) if record.binary)
            named |= {d for each in binaries for d in (each.digest, each.support) if d}
    for digest in named:
        content = cache.binary(digest)
        if content is not None:
            (folder / f"{digest}{COMPRESSED}").write_bytes(lzma.compress(content, preset=9))
            (folder / f"{digest}.cubin").unlink(missing_ok=True)
    for binary in (*folder.glob("*.cubin"), *folder.glob(f"*{COMPRESSED}")):
        if binary.name.partition(".")[0] not in named:
            binary.unlink()


if __name__ == "__main__":
    main()
