"""Targets in Python behind a process: they are judged as they are in this one, and may print and read as they like."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from planted_children import all_ended

from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Capability, Context, Form, MisuseError, PoolConfig, RemoteError, UnusableError
from kvspec.model.pools import Pools
from kvspec.model.reference import ModelTarget, model_target
from kvspec.model.remote import protocol
from kvspec.model.remote.client import RemoteTargets
from kvspec.model.remote.protocol import Introduction
from kvspec.model.remote.server import Server

POOLS = Pools()
SMALL = PoolConfig(num_blocks=4, block_size=2)
MODULE = '''
import os, sys
from kvspec.model.conformance import Capability, PoolConfig
from kvspec.model.reference import ModelTarget

print("imported")

class Chatty(ModelTarget):
    """Writes wherever one can write, and reads whatever there is."""
    minimum = {"hits": 1}

    def allocate(self, seq, num_tokens):
        print("allocating", seq)
        os.write(1, b"allocating\\n")
        os.system("echo allocating")
        assert sys.stdin.read() == ""
        return super().allocate(seq, num_tokens)

class Leaks(ModelTarget):
    def ref_count(self, block_id):
        return super().ref_count(block_id) + 1

class Careless(ModelTarget):
    def __init__(self, config):
        sizes = {"num_blocks": config.num_blocks, "block_size": config.block_size}
        super().__init__(PoolConfig(**sizes, enable_prefix_cache=config.enable_prefix_cache))

class Hollow:
    capabilities = frozenset({Capability.FORK})
    hit_limit = "all"

    def __init__(self, config):
        pass

class Raises(ModelTarget):
    def cache(self, seq):
        return {}[seq]

class Unwilling:
    def __init__(self, config):
        raise ValueError("no blocks of 2")

class Dies(ModelTarget):
    def preempt(self, seq):
        if self.block_table(seq):
            print("about to die", file=sys.stderr)
            os._exit(5)
        super().preempt(seq)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "served.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def served(name: str) -> RemoteTargets:
    return RemoteTargets([sys.executable, "-m", "kvspec.model.remote", name])


@pytest.mark.parametrize("form", Form)
def test_a_target_is_judged_as_if_it_were_here(form: Form) -> None:
    options = ConformOptions(operations=350, form=form, seed=3)
    here = conform(model_target, options, pools=POOLS)
    with served("kvspec.model.reference:model_target") as made:
        there = conform(made, options, pools=POOLS)
    assert there.violation is None and there.about["name"] == "kvspec.model.reference:model_target"
    assert (there.counts, there.episodes, there.capabilities) == (here.counts, here.episodes, here.capabilities)
    assert there.families == here.families


@pytest.mark.parametrize(
    ("target", "rule"), [("Leaks", "holders/ref_count"), ("Raises", "misuse/crash"), ("Dies", "misuse/crash")]
)
def test_a_fault_is_found_and_made_small(folder: Path, target: str, rule: str) -> None:
    with served(f"served:{target}") as made:
        options = ConformOptions(operations=2000, form=Form.MANAGERS, shrink_seconds=3)
        found = conform(made, options, pools=POOLS).violation
    assert found is not None and f"{found.family}/{found.rule}" == rule and found.reproduced
    if target == "Raises":
        assert "the target failed: KeyError: 'a' (" in found.what and "served.py:" in found.what
        assert made.last_words[0] == "Traceback (most recent call last):"
    if target == "Dies":
        assert found.what == (
            "the target failed: preempt was not answered, as its process has ended with exit code 5; "
            "the last line on its standard error: about to die"
        )


def test_a_target_that_takes_any_config_is_driven_as_what_it_can_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not look at what it is to be is no other than here: its capabilities tell."""
    monkeypatch.syspath_prepend(str(folder))
    from served import Careless  # type: ignore[import-not-found]

    options = ConformOptions(operations=250, prefix_cache=False)
    here = conform(Careless, options, pools=POOLS)
    with served("served:Careless") as made:
        there = conform(made, options, pools=POOLS)
    assert here.violation is None and there.families == here.families and there.counts == here.counts


def test_what_a_manager_prints_does_no_harm(folder: Path) -> None:
    with served("served:Chatty") as made:
        report = conform(made, ConformOptions(operations=100, form=Form.MANAGERS), pools=POOLS)
        assert report.violation is None and report.counts["allocations"] > 10
        assert made._child is not None and made._child.tail[-1] == "allocating"
        target: Any = made(SMALL)
        assert target.minimum == {"hits": 1}


def test_what_cannot_be_made_is_an_answer(folder: Path) -> None:
    with served("served:Hollow") as made, pytest.raises(RemoteError, match=r"^TargetError: .* lacks abort\(\), "):
        made(SMALL)
    with served("served:Unwilling") as made, pytest.raises(RemoteError, match=r"^ValueError: no blocks of 2 \(.*ser"):
        made(SMALL)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent:Thing"], "No module named 'absent'"),
        (["served:Thing"], "has no attribute 'Thing'"),
        (["served"], "usage: python -m kvspec.model.remote package.module:Class"),
        ([], "usage: python -m kvspec.model.remote package.module:Class"),
    ],
)
def test_what_cannot_be_served_says_so(folder: Path, arguments: list[str], words: str) -> None:
    command = [sys.executable, "-m", "kvspec.model.remote", *arguments]
    with RemoteTargets(command) as made, pytest.raises(UnusableError, match="did not say hello") as caught:
        _ = made.introduction
    assert words in str(caught.value)


def test_serving_needs_msgspec_and_numpy_alone() -> None:
    """So that it can be installed beside any manager, without what kvspec needs otherwise."""
    program = (
        "import sys, msgspec, numpy; known = {*sys.modules}; import kvspec.model.remote.__main__;"
        "new = {name.partition('.')[0] for name in sys.modules if name not in known};"
        "print(*sorted(new - sys.stdlib_module_names - {'numpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["kvspec"]


# -- requests, one by one ---------------------------------------------------------------------------------------------


def asked(server: Server, method: str, **params: Any) -> dict[str, Any]:
    line = json.dumps({"jsonrpc": "2.0", "id": 5, "method": method, "params": params})
    found: dict[str, Any] = json.loads(server.answer(line.encode()))
    assert found.pop("jsonrpc") == "2.0" and found.pop("id") == 5
    return found


@pytest.fixture
def server() -> Server:
    server = Server(ModelTarget, Introduction(protocol.VERSION, "model"))
    config = {"num_blocks": 4, "block_size": 2}
    assert asked(server, "hello", protocol=1, kvspec="0.1.0") == {"result": {"protocol": 1, "name": "model"}}
    made = asked(server, "make", form="managers", config=config)["result"]
    assert made["hit_limit"] == "all_but_one" and "fork" in made["capabilities"] and "minimum" not in made
    return server


def test_requests_are_answered(server: Server) -> None:
    context = json.loads(json.dumps({"adapter": None, "adapter_version": 0, "salt": None, "images": []}))
    assert asked(server, "start", seq="a", tokens=[1, 2, 3], context=context) == {"result": None}
    assert asked(server, "allocate", seq="a", num_tokens=2) == {"result": True}
    assert asked(server, "write", batch=[["a", [7, 8]]]) == {"result": None}
    assert asked(server, "read", seq="a", start=0, stop=2) == {"result": [7, 8]}
    assert asked(server, "cache", seq="a") == {"result": None}
    (event,) = asked(server, "drain_events")["result"]
    assert event["kind"] == "stored" and event["block_id"] == 1
    assert asked(server, "cached") == {"result": {event["key"]: 1}} and bytes.fromhex(event["key"])
    assert asked(server, "free_ids") == {"result": [2, 3]}


@pytest.mark.parametrize(
    ("method", "params", "code", "words"),
    [
        ("cache", {"seq": "b"}, protocol.MISUSE, "b"),
        ("cache", {}, protocol.BAD_PARAMETERS, "cache without seq"),
        ("cache", {"seq": 7}, protocol.BAD_PARAMETERS, "Expected `str`, got `int`"),
        ("make", {"form": "boats", "config": {}}, protocol.BAD_PARAMETERS, "Invalid enum value 'boats'"),
        ("make", {"form": "managers", "config": {"num_blocks": 1, "block_size": 1}}, protocol.BAD_PARAMETERS,
         "num_blocks: 1, expected at least 2"),
        ("fly", {}, protocol.NO_SUCH_METHOD, "there is no method fly"),
        ("mapped_pages", {}, protocol.NO_SUCH_METHOD, "the target lacks mapped_pages()"),
        ("__init__", {}, protocol.NO_SUCH_METHOD, "there is no method __init__"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_answered_has_an_error(
    server: Server, method: str, params: dict[str, Any], code: int, words: str
) -> None:
    error = asked(server, method, **params)["error"]
    assert error["code"] == code and words in error["message"]


def test_a_failure_says_what_and_where(server: Server) -> None:
    class Broken(ModelTarget):
        def cache(self, seq: str) -> None:
            raise KeyError(seq)

    server = Server(Broken, Introduction(protocol.VERSION, "broken"))
    assert asked(server, "cache", seq="a")["error"]["message"] == "cache without a target, expected make first"
    asked(server, "make", form="managers", config={"num_blocks": 4, "block_size": 2})
    error = asked(server, "cache", seq="a")["error"]
    assert (error["code"], error["message"], error["data"]["type"]) == (protocol.FAILURE, "'a'", "KeyError")
    assert error["data"]["where"].startswith(__file__) and "raise KeyError(seq)" in error["data"]["traceback"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", protocol.NO_JSON),
        (b"\xff", protocol.NO_JSON),
        (b"7", protocol.BAD_REQUEST),
        (b'{"id":1}', protocol.BAD_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"method":"hello","params":' + b"[" * 2000 + b"]" * 2000 + b"}", protocol.NO_JSON),
    ],
)
def test_what_is_no_request_has_no_number(server: Server, line: bytes, code: int) -> None:
    found = json.loads(server.answer(line))
    assert found["id"] is None and found["error"]["code"] == code


def test_a_misuse_is_one_on_this_side_too(tmp_path: Path) -> None:
    with served("kvspec.model.reference:ModelTarget") as made:
        target: Any = made(SMALL)
        target.start("a", [1], Context())
        with pytest.raises(MisuseError):
            target.start("a", [1], Context())
        assert Capability.HOLD in target.capabilities and target.num_computed("a") == 0
    assert all_ended(tmp_path)
