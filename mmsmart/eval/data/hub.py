"""Rows through the package ``datasets``: hub ids, parquet files, saved data sets. Pictures stay encoded."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mmsmart.errors import InputError
from mmsmart.eval.data.files import fingerprint
from mmsmart.eval.data.source import HubSet, Row, Source

LOCAL_FORMS = "a JSONL, JSON, TSV or parquet file, or a folder of them"


def open_hub(name: str, known: HubSet, hub_id: str | None, *, stream: bool) -> Source:
    """Opens a data set of the hub under the first id that answers.

    Args:
        name: The task's name, for messages.
        known: Ids, split and configuration.
        hub_id: An id to try instead of the known ones.
        stream: Read rows as they come instead of downloading the split first.

    Raises:
        InputError: ``datasets`` is missing, or no id can be loaded; the message says what to pass instead.
    """
    ids = (hub_id,) if hub_id else known.ids
    datasets = _datasets(f"{name} from the hub", f"pass --data with {LOCAL_FORMS}")
    stream = stream and not datasets.config.HF_HUB_OFFLINE  # a downloaded copy answers offline, a stream cannot
    failures: list[str] = []
    for candidate in ids:
        try:
            found = datasets.load_dataset(candidate, known.config, split=known.split, streaming=stream)
        except _errors(datasets) as error:
            failures.append(f"{candidate}: {_line(error)}")
            continue
        return _hub_source(datasets, found, f"hub {candidate}, {known.config or 'default'}, {known.split}")
    raise InputError(
        f"{name} cannot be loaded from the hub ({'; '.join(failures)}); pass --data with {LOCAL_FORMS}, or --hub-id "
        "with another parquet-backed data set"
    )


def open_parquet(paths: Sequence[Path], split: str) -> Source:
    """Opens parquet files: those whose names begin with the split's name, else all.

    Raises:
        InputError: ``datasets`` is missing, or a file cannot be read.
    """
    chosen = [path for path in paths if path.name.startswith(split)] or list(paths)
    where = ", ".join(map(str, chosen[:3])) + (" ..." if len(chosen) > 3 else "")
    datasets = _datasets(where, "convert it to JSONL")
    try:
        found = datasets.load_dataset("parquet", data_files=list(map(str, chosen)), split="train", streaming=True)
    except _errors(datasets) as error:
        raise InputError(f"{where} cannot be read as parquet ({_line(error)})") from error
    return Source(where, fingerprint(chosen), lambda: _rows(datasets, found, chosen[0].parent, where))


def open_saved(folder: Path, split: str) -> Source:
    """Opens a folder that ``save_to_disk`` wrote.

    Raises:
        InputError: ``datasets`` is missing, the folder cannot be read, or it lacks the split.
    """
    datasets = _datasets(str(folder), "convert it to JSONL")
    try:
        found = datasets.load_from_disk(str(folder))
    except _errors(datasets) as error:
        raise InputError(f"{folder} cannot be read as a saved data set ({_line(error)})") from error
    if isinstance(found, dict):
        if split not in found and len(found) != 1:
            raise InputError(f"{folder} has the splits {', '.join(found)}, but {split!r} is wanted; pass its subfolder")
        found = found[split] if split in found else next(iter(found.values()))
    return Source(
        str(folder), fingerprint(sorted(folder.rglob("*.arrow"))), lambda: _rows(datasets, found, folder, str(folder))
    )


def _hub_source(datasets: Any, found: Any, where: str) -> Source:
    state = getattr(found, "_fingerprint", None)  # only a downloaded split has one
    return Source(where, f"{where}, {state}" if state else where, lambda: _rows(datasets, found, None, where))


def _rows(datasets: Any, found: Any, folder: Path | None, where: str) -> Iterator[Row]:
    stream = found.to_iterable_dataset() if hasattr(found, "to_iterable_dataset") else found
    encoded: Iterable[dict[str, Any]] = stream.decode(False)
    index = 0
    try:
        for fields in encoded:
            yield Row(index, fields, folder=folder)
            index += 1
    except _errors(datasets) as error:
        raise InputError(f"{where} broke off after {index} rows ({_line(error)}); run again to go on") from error


def _datasets(what: str, instead: str) -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise InputError(
            f"reading {what} needs the package datasets, which is missing ({_line(error)}); "
            f"install it with pip install 'mmsmart[eval]', or {instead}"
        ) from error


def _errors(datasets: Any) -> tuple[type[BaseException], ...]:
    """What ``datasets`` raises for data that it cannot give, the hub client's own HTTP errors included."""
    from huggingface_hub.errors import HfHubHTTPError

    own = getattr(getattr(datasets, "exceptions", None), "DatasetsError", OSError)
    return (OSError, ValueError, RuntimeError, LookupError, TypeError, own, *HfHubHTTPError.__bases__)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
