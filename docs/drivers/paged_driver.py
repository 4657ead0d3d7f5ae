"""A driver in Python: a small paged KV-cache manager with a prefix cache, and the protocol of docs/protocol.md.

It needs nothing but the standard library, so it shows what a driver in any language has to do. Blocks are shared by
hits only: without `fork`, `truncate` and `hold` nobody writes into a block that others hold. Run it with

    kvspec conform --exec "python3 docs/drivers/paged_driver.py"
    kvspec conform --exec "python3 docs/drivers/paged_driver.py --fault leak"      # or evict_used, or long_hit
"""

import hashlib
import json
import sys
import traceback
from types import SimpleNamespace

FAULT = sys.argv[2] if sys.argv[1:2] == ["--fault"] else ""


class Misuse(Exception):
    """A call that makes no sense; nothing has changed."""


def check(legal, what):
    if not legal:
        raise Misuse(what)


class Manager:
    """Blocks of one size. A block is free if nobody holds it; a key is one holder, and a block that only its key holds
    may be evicted."""

    capabilities = ("free_ids", "free_count", "ref_counts", "events", "contents")

    def __init__(self, config):
        self.size, self.caching = config["block_size"], config["enable_prefix_cache"]
        self.free = list(range(1, config["num_blocks"]))  # block 0 is padding
        self.refs = [0] * config["num_blocks"]
        self.cells = [[0] * self.size for _ in self.refs]
        self.block_of, self.key_of = {}, {}  # keys, the oldest first, and their blocks; and the other way round
        self.events, self.seqs = [], {}

    def seq(self, name):
        check(name in self.seqs, f"{name} is unknown")
        return self.seqs[name]

    def drop(self, block):
        self.refs[block] -= 1
        if not self.refs[block]:
            self.free.append(block)

    def idle(self):
        return [block for block in self.block_of.values() if self.refs[block] <= 1 + (FAULT == "evict_used")]

    def forget(self, block):
        key = self.key_of.pop(block)
        del self.block_of[key]
        self.events.append({"kind": "removed", "key": key, "block_id": block})
        self.drop(block)

    def take(self):
        if not self.free:
            self.forget(self.idle()[0])
        block = self.free.pop()
        self.refs[block] = 1
        return block

    def key(self, s, index):
        """Of all tokens up to the end of a block, and of everything else that its contents depend on."""
        whole = json.dumps([s.context, s.tokens[: (index + 1) * self.size]], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()

    def start(self, seq, tokens, context):
        check(seq not in self.seqs and min(tokens, default=0) >= 0, f"{seq} exists, or a token is negative")
        self.seqs[seq] = SimpleNamespace(tokens=tokens, context=context, table=[], computed=0)

    def append(self, seq, tokens):
        check(min(tokens, default=0) >= 0, "a token is negative")
        self.seq(seq).tokens += tokens

    def allocate_shared(self, seq):
        s = self.seq(seq)
        check(not s.table, f"{seq} has blocks")
        last = len(s.tokens) - (FAULT != "long_hit")  # the last token is left to compute, for its logits
        for index in range(last // self.size):
            block = self.block_of.get(self.key(s, index))
            if block is None:
                break
            self.refs[block] += 1
            s.table.append(block)
        s.computed = len(s.table) * self.size
        return s.computed

    def allocate(self, seq, num_tokens):
        s = self.seq(seq)
        check(0 <= num_tokens <= len(s.tokens), f"{num_tokens} of {len(s.tokens)} tokens")
        missing = max(-(-num_tokens // self.size) - len(s.table), 0)
        if missing > len(self.free) + len(self.idle()):
            return False
        s.table += [self.take() for _ in range(missing)]
        return True

    def write(self, batch):
        for n, (name, tags) in enumerate(batch):  # check all of the step, then do it
            s, end = self.seq(name), self.seq(name).computed + len(tags)
            check(name not in [other for other, _ in batch[:n]], f"{name} is named twice")
            check(end <= min(len(s.tokens), len(s.table) * self.size), f"no room for {end} tokens of {name}")
        for name, tags in batch:
            s = self.seqs[name]
            for tag in tags:
                self.cells[s.table[s.computed // self.size]][s.computed % self.size] = tag
                s.computed += 1

    def read(self, seq, start, stop):
        s = self.seq(seq)
        check(0 <= start <= stop <= s.computed, f"{seq} has {s.computed} computed tokens")
        return [self.cells[s.table[at // self.size]][at % self.size] for at in range(start, stop)]

    def cache(self, seq):
        s = self.seq(seq)
        for index in range(s.computed // self.size if self.caching else 0):
            key, block = self.key(s, index), s.table[index]
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key
                self.refs[block] += 1
                self.events.append({"kind": "stored", "key": key, "block_id": block})

    def deallocate(self, seq):
        self.cache(seq)
        self.abort(seq)

    def preempt(self, seq):
        s = self.seq(seq)
        while s.table:
            block = s.table.pop()  # the last first, so that a prefix outlives what goes on behind it
            if FAULT != "leak" or self.refs[block] == 1:
                self.drop(block)
        s.computed = 0

    def abort(self, seq):
        self.preempt(seq)
        del self.seqs[seq]

    def evict(self, num_blocks):
        check(num_blocks >= 0, f"{num_blocks} blocks")
        gone = self.idle()[:num_blocks]
        for block in gone:
            self.forget(block)
        return len(gone)

    def reset(self):
        for block in list(self.key_of):
            self.forget(block)
        return True

    def drain_events(self):
        events, self.events = self.events, []
        return events


LOOKS = {
    "block_table": lambda m, seq: m.seq(seq).table,
    "num_computed": lambda m, seq: m.seq(seq).computed,
    "free_ids": lambda m: m.free,
    "free_count": lambda m: len(m.free),
    "ref_count": lambda m, block_id: m.refs[block_id],
}
manager = None


def call(method, params):
    """The result of a request."""
    global manager
    if method == "hello":
        return {"protocol": 1, "name": "paged-py", "version": "1.0"}
    if method == "make":
        if params["form"] != "managers":
            raise ValueError(f"no {params['form']} here, expected managers")
        manager = Manager(params["config"])
        return {"capabilities": manager.capabilities, "hit_limit": "all_but_one"}
    check(manager is not None, "the manager is closed")
    if method == "close":
        manager = None
        return None
    return LOOKS[method](manager, **params) if method in LOOKS else getattr(manager, method)(**params)


for line in sys.stdin:
    request = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": request["id"]}
    try:
        answer["result"] = call(request["method"], request["params"])
    except Misuse as error:
        answer["error"] = {"code": -32000, "message": str(error)}
    except Exception as error:
        detail = {"type": type(error).__name__, "traceback": traceback.format_exc()}
        answer["error"] = {"code": -32001, "message": str(error), "data": detail}
    print(json.dumps(answer), flush=True)
