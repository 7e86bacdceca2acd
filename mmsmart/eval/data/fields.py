"""Fields of a raw row under the names that data sets give them."""

from __future__ import annotations

import ast
import base64
import binascii
import string
from pathlib import Path
from typing import Any, TypeAlias

from PIL import Image

from mmsmart.eval.data.source import Row, RowError

Picture: TypeAlias = Path | str | bytes | Image.Image
"""A picture that is not decoded yet (a path, a data URL, encoded bytes), or a drawn one."""

QUESTION = ("question", "query")
ANSWER = ("answer", "label")
ANSWERS = ("answers", "answer", "label")
OPTIONS = ("options", "choices")
PICTURES = ("image", "images", "image_path", "imgname", "file_name")
IDS = ("id", "pid", "index", "question_id")

_BASE64_BEGINNINGS = ("/9j/", "iVBORw", "R0lGOD", "UklGR", "Qk0", "SUkq", "TU0A")
"""JPEG, PNG, GIF, WebP, BMP, TIFF."""
_LONGEST_PATH = 1024


def first(row: Row, names: tuple[str, ...]) -> Any:
    """The first of these fields that the row has, ``None`` if none."""
    return next((row.fields[name] for name in names if row.fields.get(name) is not None), None)


def text(row: Row, names: tuple[str, ...]) -> str:
    """A field that must be there, as text.

    Raises:
        RowError: Missing or blank.
    """
    value = first(row, names)
    if value is None or isinstance(value, dict | list):
        raise RowError(f"no field {' or '.join(names)}; it has: {', '.join(map(str, row.fields)) or 'none'}")
    if not str(value).strip():
        raise RowError(f"the field {' or '.join(names)} is empty")
    return str(value)


def optional(row: Row, *names: str) -> str:
    """A field as text, "" where missing."""
    value = first(row, names)
    return "" if value is None else str(value)


def labels(row: Row) -> tuple[str, ...]:
    """One answer or a list of equally right ones; text is never taken apart."""
    value = first(row, (*ANSWER, "answers"))
    if value is None:
        return ()
    return tuple(map(str, value)) if isinstance(value, list | tuple) else (str(value),)


def annotator_answers(row: Row) -> tuple[str, ...]:
    """Several people's answers: a list of texts or records, records turned inside out, or such a list as text.

    Raises:
        RowError: Something else.
    """
    value = first(row, ANSWERS)
    if isinstance(value, str):
        value = _listed(value)
    if isinstance(value, dict):
        value = value.get("answer")
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise RowError(f"the answers are a {type(value).__name__}, not a list")
    records = [item.get("answer") if isinstance(item, dict) else item for item in value]
    if None in records:
        raise RowError("an answer record has no field answer")
    return tuple(map(str, records))


def options(row: Row) -> tuple[str, ...]:
    """Texts of the options, from one list or from the fields A, B, C, ...

    Raises:
        RowError: Fewer than two.
    """
    value = first(row, OPTIONS)
    if isinstance(value, str):
        value = _listed(value)
    if value is None:
        value = []
        for letter in string.ascii_uppercase:
            if row.fields.get(letter) is None:
                break
            value.append(row.fields[letter])
    if not isinstance(value, list | tuple) or len(value) < 2:
        raise RowError("no list of at least two options (options, choices, or A, B, ...)")
    return tuple(map(str, value))


def letter(row: Row, count: int) -> str:
    """The right option's letter, from an index ("0", 0) or a letter; "" where the row has no answer.

    Raises:
        RowError: Neither, or beyond the options.
    """
    value = next(iter(labels(row)), "").strip()
    if not value:
        return ""
    if value.isdecimal() and int(value) < count:
        return string.ascii_uppercase[int(value)]
    if len(value) == 1 and value.upper() in string.ascii_uppercase[:count]:
        return value.upper()
    raise RowError(f"the answer {value!r} is neither an index nor a letter of {count} options")


def pictures(row: Row) -> tuple[Picture, ...]:
    """The row's pictures, encoded as they are; paths are joined with the row's folder.

    Raises:
        RowError: Something that cannot be a picture.
    """
    value = first(row, PICTURES)
    if value is None or value == "":
        return ()
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(_picture(item, row.folder) for item in values)


def _picture(value: Any, folder: Path | None) -> Picture:
    if isinstance(value, dict):
        value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
    if isinstance(value, bytes | Image.Image):
        return value
    if not isinstance(value, str) or not value:
        raise RowError(f"the picture is a {type(value).__name__}, not a path, bytes or base64")
    if value.startswith("data:") or "://" in value:
        return value
    if len(value) > _LONGEST_PATH or (value.startswith(_BASE64_BEGINNINGS) and "." not in value):
        return _decoded(value)
    return Path(value) if folder is None else folder / value


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RowError(f"the picture is broken base64 ({error})") from error


def _listed(value: str) -> Any:
    """A list written as text; ``None`` for other text."""
    try:
        parsed = ast.literal_eval(value) if value.lstrip().startswith("[") else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return parsed if isinstance(parsed, list) else None
