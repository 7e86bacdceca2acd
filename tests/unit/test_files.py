from pathlib import Path

import pytest

from mmsmart.files import replacing


def test_a_file_is_replaced_whole_and_nothing_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.json"
    for text in ("old", "new"):
        with replacing(path) as draft:
            draft.write_text(text)
            assert not path.exists() or path.read_text() == "old"
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def half_written(path: Path) -> None:
    with replacing(path) as draft:
        draft.write_text("ne")
        raise KeyboardInterrupt


def test_an_error_leaves_what_was_there_before(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        half_written(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
