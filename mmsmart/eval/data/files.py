"""Row files read with the standard library: JSON lines, JSON, tab-separated values."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mmsmart.errors import InputError
from mmsmart.eval.data.source import Row

MAX_CELL = 2**31 - 1
"""Longest TSV cell in characters: a picture in base64."""
HASHED_BYTES = 2**25
"""How much of either end of a file enters its fingerprint."""
_LONGEST_REFERENCE = 64


def read_jsonl(path: Path) -> Iterator[Row]:
    """One JSON object a line; a broken line is a row with an error, an empty one is none."""
    index = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            yield _json_row(line, index, f"line {number} of {path.name}", path.parent)
            index += 1


def read_json(path: Path) -> Iterator[Row]:
    """A JSON list of objects, bare or as the only list of an object.

    Raises:
        InputError: Not JSON, or no such list.
    """
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({_line(error)}); pass a list of objects") from error
    if isinstance(content, dict):
        lists = [value for value in content.values() if isinstance(value, list)]
        content = lists[0] if len(lists) == 1 else None
    if not isinstance(content, list):
        raise InputError(f"{path} holds no single list of rows; pass a JSON list of objects, or one object a line")
    for index, fields in enumerate(content):
        yield _checked(fields, index, f"item {index} of {path.name}", path.parent)


def read_tsv(path: Path) -> Iterator[Row]:
    """Tab-separated values with a header, as pandas and VLMEvalKit write them.

    Empty cells are missing fields. A short ``image`` cell that is another row's ``index`` stands for its picture.
    """
    last: tuple[str, str] | None = None
    for index, (fields, error) in enumerate(_tsv_records(path)):
        cell, key = fields.get("image"), fields.get("index")
        if cell and _is_reference(cell):
            if last is None or last[0] != cell:
                last = (cell, _picture_of(path, cell))
            fields = {**fields, "image": last[1]}
        elif cell and key:
            last = (key, cell)
        yield Row(index, fields, error, path.parent)


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
    ".tsv": read_tsv,
}
"""File name suffix to reader."""


def fingerprint(paths: Sequence[Path]) -> str:
    """Hash of the sizes of files and of `HASHED_BYTES` at either end of each."""
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(str(size).encode())
        with open(path, "rb") as file:
            digest.update(file.read(HASHED_BYTES))
            file.seek(max(HASHED_BYTES, size - HASHED_BYTES))
            digest.update(file.read(HASHED_BYTES))
    return f"sha256:{digest.hexdigest()}"


def _json_row(line: bytes, index: int, what: str, folder: Path) -> Row:
    try:
        fields = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # also what is not UTF-8
        return Row(index, error=f"{what} is not JSON ({_line(error)})", folder=folder)
    return _checked(fields, index, what, folder)


def _checked(fields: Any, index: int, what: str, folder: Path) -> Row:
    if isinstance(fields, dict):
        return Row(index, fields, folder=folder)
    return Row(index, error=f"{what} is a {type(fields).__name__}, not an object", folder=folder)


def _tsv_records(path: Path) -> Iterator[tuple[dict[str, str], str]]:
    csv.field_size_limit(MAX_CELL)
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.reader(file, delimiter="\t")
        header = next(reader, [])
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield {}, f"line {reader.line_num} of {path.name} cannot be read ({_line(error)})"
                continue
            if len(cells) > len(header):
                yield {}, f"line {reader.line_num} of {path.name} has {len(cells)} cells, the header {len(header)}"
            elif cells:
                yield {name: cell for name, cell in zip(header, cells, strict=False) if cell}, ""


def _is_reference(cell: str) -> bool:
    return len(cell) <= _LONGEST_REFERENCE and not set(cell) & set("./\\:")


def _picture_of(path: Path, key: str) -> str:
    found = (fields["image"] for fields, _ in _tsv_records(path) if fields.get("index") == key and "image" in fields)
    return next(found, key)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
