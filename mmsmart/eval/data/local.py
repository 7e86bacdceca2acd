"""A file or folder on this machine -> its rows."""

from __future__ import annotations

from pathlib import Path

from mmsmart.errors import InputError
from mmsmart.eval.data.files import READERS, fingerprint
from mmsmart.eval.data.hub import LOCAL_FORMS, open_parquet, open_saved
from mmsmart.eval.data.source import Source

_SAVED_MARKS = ("state.json", "dataset_dict.json")


def open_local(path: Path, name: str, split: str) -> Source:
    """Opens a file by its suffix, or finds the rows of a folder.

    In a folder, in this order: ``NAME.jsonl|json|tsv`` or ``metadata.jsonl`` (NAME is the task's or the folder's), a
    saved data set, parquet files at any depth, the only file of the first kinds.

    Args:
        path: The file or folder.
        name: Name of the task.
        split: The split that is wanted where files are named after splits.

    Raises:
        InputError: Nothing there that can be read.
    """
    if path.is_file():
        return _open_file(path, split)
    if not path.is_dir():
        raise InputError(f"no such file or folder: {path}; pass {LOCAL_FORMS} (for a hub id use --hub-id)")
    files = [file for file in sorted(path.iterdir()) if file.suffix.lower() in READERS and file.is_file()]
    names = {name.lower(), path.resolve().name.lower()}
    for file in files:
        if file.stem.lower() in names or file.name.lower() == "metadata.jsonl":
            return _open_file(file, split)
    if any((path / mark).is_file() for mark in _SAVED_MARKS):
        return open_saved(path, split)
    if parquet := sorted(path.rglob("*.parquet")):
        return open_parquet(parquet, split)
    if len(files) == 1:
        return _open_file(files[0], split)
    raise InputError(
        f"no rows in the folder {path}; it needs {name}.jsonl, .json or .tsv, metadata.jsonl, or parquet files"
    )


def _open_file(path: Path, split: str) -> Source:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return open_parquet([path], split)
    if suffix == ".py":
        raise InputError(f"{path} is a data set script, and scripts are never run; pass {LOCAL_FORMS}")
    if suffix not in READERS:
        raise InputError(f"cannot tell how to read {path} by its suffix {path.suffix!r}; pass {LOCAL_FORMS}")
    reader = READERS[suffix]
    return Source(str(path), fingerprint([path]), lambda: reader(path))
