"""New files for what was found."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvspec.model.reporting.saving import save_text


def test_nothing_is_written_over_and_the_same_is_not_written_twice(tmp_path: Path) -> None:
    first = save_text(tmp_path / "new", "a:b", ".kv", "one\n")
    assert first == tmp_path / "new" / "a_b.kv" and save_text(tmp_path / "new", "a:b", ".kv", "one\n") == first
    assert save_text(tmp_path / "new", "a:b", ".kv", "two\n").name == "a_b.2.kv"
    assert first.read_text() == "one\n"


@pytest.mark.parametrize("name", ["x" * 5000, "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 200, "..hidden", "../../up", "a\0b"])
def test_any_name_is_a_file_that_can_be_seen(tmp_path: Path, name: str) -> None:
    file = save_text(tmp_path, f"{name}.content.content", ".kv", "text\n")
    assert file.parent == tmp_path and not file.name.startswith(".") and file.name.endswith(".content.content.kv")


def test_a_file_that_cannot_be_written_whole_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        save_text(tmp_path, "a", ".kv", "text\n" * 10_000 + "\udcff")
    assert list(tmp_path.iterdir()) == []
