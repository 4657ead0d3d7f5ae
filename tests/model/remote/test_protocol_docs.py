"""What docs/protocol.md says: the messages that it shows are those of the driver, and its tables those of the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvspec.model.conformance import METHODS_OF, Capability, Form, PoolConfig
from kvspec.model.remote import client, process, protocol
from kvspec.model.remote.protocol import Answer, Hello, Introduction, Make, Request, methods_of
from kvspec.model.remote.schema import document, schema

DOCS = Path(__file__).parent.parent.parent.parent / "docs"
PAGE = (DOCS / "protocol.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^([→←]) (.*)$", PAGE, re.MULTILINE)
REQUESTS = [line for arrow, line in SHOWN if arrow == "→"]
ANSWERS = [line for arrow, line in SHOWN if arrow == "←"]


def test_the_messages_that_are_shown_are_those_of_the_driver() -> None:
    script = DOCS / "drivers" / "paged_driver.py"
    done = subprocess.run(
        [sys.executable, script], input="\n".join(REQUESTS) + "\n", capture_output=True, text=True, check=True
    )
    said = done.stdout.splitlines()
    assert len(said) == len(ANSWERS) > 10
    for line, shown in zip(said, ANSWERS, strict=True):
        begin, dots, end = shown.partition("...")
        assert line == shown if not dots else line.startswith(begin) and line.endswith(end)


def test_the_messages_that_are_shown_are_messages() -> None:
    for number, line in enumerate(REQUESTS, 1):
        request = msgspec.json.decode(line, type=Request)
        assert request.id == number
        if request.method == "hello":
            assert msgspec.json.decode(request.params, type=Hello).protocol == protocol.VERSION
        elif request.method == "make":
            msgspec.json.decode(request.params, type=Make)
        else:
            method, given = methods_of(Form.MANAGERS)[request.method], json.loads(bytes(request.params))
            assert list(given) == [p.name for p in method.parameters]
            for parameter in method.parameters:
                msgspec.convert(given[parameter.name], parameter.codec.wire)
    for line in ANSWERS:
        assert msgspec.json.decode(line.replace("...", "null"), type=Answer).jsonrpc == "2.0"


def test_the_first_request_to_make_has_all_fields_of_a_config() -> None:
    shown = next(json.loads(line) for line in REQUESTS if '"make"' in line)
    config = PoolConfig(num_blocks=4, block_size=2)
    assert shown["params"] == json.loads(msgspec.json.encode(Make(Form.MANAGERS, config)))


def words(kind: Any) -> str:
    """A type, as the table of methods calls it."""
    simple = {type(None): "null", bool: "true or false", int: "number"}
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind in simple:
        return simple[kind]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"object of {words(inside[1])}s"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return "numbers" if inside == (int,) else "objects"
    raise ValueError(kind)


def test_the_table_of_methods_is_that_of_the_code() -> None:
    rows = {name: (params, result) for name, params, result in re.findall(METHOD, PAGE)}
    methods = methods_of(Form.MANAGERS)
    shown = {Capability.FREE_IDS, Capability.FREE_COUNT, Capability.USED_COUNT, Capability.REF_COUNTS,
             Capability.CACHED_KEYS, Capability.EVENTS, Capability.CONTENTS, Capability.FORK, Capability.TRUNCATE,
             Capability.HOLD}  # fmt: skip
    excused = {name for c, names in METHODS_OF.items() if c not in shown for name in names}
    own = {name for name in methods if hasattr(protocol.PROTOCOLS[Form.MANAGERS], name)}
    assert rows.keys() == own - excused
    for name, (params, result) in rows.items():
        assert re.findall(r"`(\w+)`", params) == [p.name for p in methods[name].parameters]
        assert result == words(methods[name].result.wire)
    names = list(rows)
    looks = names[names.index("block_table") : names.index("read") + 1]
    assert set(looks) == {name for name in rows if methods[name].looks}


METHOD = r"\| `(\w+)` \|([^|\n]*)\| ([a-z ]+) \|"


def test_numbers_are_those_of_the_code() -> None:
    codes = {"MISUSE", "FAILURE", "NO_SUCH_METHOD", "BAD_PARAMETERS", "NO_JSON", "BAD_REQUEST"}
    said = set(map(int, re.findall(r"-32\d{3}", PAGE[PAGE.index("## Errors") :])))
    assert said == {getattr(protocol, code) for code in codes}
    assert f"The protocol has a version, now {protocol.VERSION};" in PAGE
    assert f"`--call-seconds` ({client.CALL_SECONDS:g} unless told otherwise)" in PAGE
    assert client.START_SECONDS == 120 and "may take two minutes" in PAGE
    assert process._GRACE == 2 and "two seconds later" in PAGE and "two seconds after that" in PAGE


def test_the_schema_in_the_docs_is_that_of_the_code() -> None:
    shown = (DOCS / "protocol.schema.json").read_text(encoding="utf-8")
    assert shown == document(), "python -m kvspec.model.remote.schema > docs/protocol.schema.json"


@pytest.mark.parametrize("form", Form)
def test_the_schema_has_every_method_with_its_parameters(form: Form) -> None:
    found = schema()
    for name in (n for n in methods_of(form) if hasattr(protocol.PROTOCOLS[form], n)):
        request = found["$defs"][f"{name}_request"]
        assert request["properties"]["method"] == {"enum": [name]} and request["description"].endswith(".")
        params = found["$defs"][request["properties"]["params"]["$ref"].rpartition("/")[2]]
        assert {p.name for p in methods_of(form)[name].parameters} <= params["properties"].keys()
        assert set(params.get("required", ())) <= {p.name for p in methods_of(form)[name].parameters if p.required}
        assert name in found["results"]
    made = found["$defs"]["Made"]
    assert {"capabilities", "hit_limit"} == set(made["required"])
    assert protocol.attributes_of(form).keys() <= made["properties"].keys()
    assert found["results"]["hello"] == {"$ref": f"#/$defs/{Introduction.__name__}"}
