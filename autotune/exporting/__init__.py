"""Exporting: a record's kernel as a folder of files, for programs without this package."""

from autotune.exporting.exportable import check_folder, write_folder

__all__ = ["check_folder", "write_folder"]
