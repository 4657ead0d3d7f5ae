"""Files of a log of events: what stands in each line, and where it was cut off.

A log is JSON, an object a line. Each file begins with a header that names the chapter and the sizes; then come events
and snapshots, in the order in which they happened. ``docs/traces.md`` describes it.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

import msgspec

from kvspec.model.scenario.language import ScenarioError

VERSION: Final = 1
"""Of the format; it goes up when a line that was legal means something else, or nothing any more."""
FORMAT: Final = "events"
IGNORED: Final = ("time", "where", "note")
"""Fields that any line may have, for whoever reads the log."""
HEADER: Final = ("kvspec", "version", "chapter", "complete", "part")
"""Fields of a header that are no constants of the chapter."""
MAX_LINE: Final = 64 * 2**20
"""Bytes of a line, at most."""


class Row(NamedTuple):
    """One line of a log."""

    file: str
    number: int
    data: Mapping[str, Any]

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}:{self.number}"

    def fail(self, what: str, expected: str) -> ScenarioError:
        """The error that says what is wrong with the line."""
        return ScenarioError(self.file, self.number, 1, what, expected)


class Cut(NamedTuple):
    """A file that ends in the middle of a line."""

    file: str
    number: int


def open_log(path: Path) -> BinaryIO:
    """The bytes of a file, unpacked if it was packed with gzip.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path)) if is_packed else path.open("rb")


def lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Number and text of each line that is not blank, and whether its end is there.

    Raises:
        ScenarioError: a line is too long, or the file is packed and damaged.
    """
    number = 0
    with open_log(path) as file:
        while True:
            number += 1
            try:
                line = file.readline(MAX_LINE + 1)
            except EOFError:  # a packed file that was cut
                yield number, b"", False
                return
            except (OSError, zlib.error) as error:
                raise ScenarioError(str(path), number, 1, f"a damaged file ({error})", "a whole gzip file") from None
            if not line:
                return
            if len(line) > MAX_LINE:
                raise ScenarioError(str(path), number, 1, "a line that does not end", f"at most {MAX_LINE} bytes")
            if line.strip():
                yield number, line, line.endswith(b"\n")


def rows(paths: Sequence[Path]) -> Iterator[Row | Cut]:
    """Every line of the files, one file after the other, and a `Cut` where one ends too early.

    So does what was written by a process that died: then a header follows.

    Raises:
        ScenarioError: a line is no JSON object.
    """
    for path in paths:
        broken: ScenarioError | None = None
        for number, line, whole in lines(path):
            try:
                data = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                if broken is not None:
                    raise broken from None
                what = f"no JSON ({str(error).removeprefix('JSON is malformed: ')})"
                broken = ScenarioError(str(path), number, 1, what, "a JSON object in each line")
                if whole:
                    continue
                yield Cut(str(path), number)
                break
            if not isinstance(data, dict):
                raise broken or ScenarioError(str(path), number, 1, "no JSON object", "a header, event or snapshot")
            if broken is not None:
                if "kvspec" not in data:
                    raise broken
                yield Cut(str(path), broken.line)
                broken = None
            yield Row(str(path), number, data)
        else:
            if broken is not None:
                raise broken


def check_header(row: Row) -> None:
    """Whether a header is of a kind and version that is read here.

    Raises:
        ScenarioError: it is not.
    """
    if row.data.get("kvspec") != FORMAT:
        raise row.fail(f"a log of {row.data.get('kvspec')!r}", f'"kvspec": "{FORMAT}"')
    version = row.data.get("version")
    if version != VERSION or type(version) is not int:
        raise row.fail(f"version {version!r}", f'"version": {VERSION}')
    for name, kind in (("complete", bool), ("part", int)):
        if type(row.data.get(name, kind())) is not kind:
            raise row.fail(f"{name} is {row.data[name]!r}", "true or false" if kind is bool else "a number")


def without(data: Mapping[str, Any], *names: Iterable[str]) -> dict[str, Any]:
    """The fields that are not named, and not ignored anyway."""
    left_out = {n for some in names for n in some} | set(IGNORED)
    return {name: value for name, value in data.items() if name not in left_out}
