"""Put tuned records and their binaries into ``cache/``: ``python benchmarks/ship_records.py DB``.

Takes the newest record of every problem from a user's cache and writes, for each device, a JSON
Lines file and the winners' binaries by digest. What is there already for a problem is replaced.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune.core.paths import data_dir
from autotune.store import TuningCache, TuningRecord, export_lines, shipped_records, superseded


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
        for record in new:
            binary = record.binary
            for digest in () if binary is None else (binary.digest, binary.support):
                if digest and (content := cache.binary(digest)) is not None:
                    (file.parent / f"{digest}.cubin").write_bytes(content)
        named = {
            digest
            for record in (*kept, *new)
            if record.binary is not None
            for digest in (record.binary.digest, record.binary.support)
        }
        for binary_file in file.parent.glob("*.cubin"):
            if binary_file.stem not in named:
                binary_file.unlink()
        print(f"{len(new)} records in {file}")


if __name__ == "__main__":
    main()
