"""What a key stands for (seed 4.2; ``hash_value_`` of class `Block`, keys of class `PrefixCache`).

What is in a full block depends on its tokens, on everything before it, and on a context: the adapters that are applied
and the version of their weights, the salt that keeps tenants apart, the images that the tokens stand for. A key says
all of it: it has a parent key, the tokens of its block, and a set of parts. Parts are tagged with their kind, so an
adapter and a salt of the same name are different parts. Every tier uses this one key.

**Keys and digests.** A key is the ideal: it *is* its parent, tokens and parts. A program keeps a digest of it, and two
keys may have one digest. Nothing is assumed of ``digest`` here; the chapter says what either kind of lookup is worth:

- A lookup that compares parent, tokens and parts with what is stored is exact, whatever the digest does.
- A lookup by digest alone is exact if no two keys that were ever hashed have the same digest.

How likely is that? For a digest of 128 bits that behaves like a random function, n different keys collide with a
probability of at most n(n-1)/2 / 2^128 < n^2 / 2^129. For n = 2^32 keys (four thousand million blocks) that is 2^-65,
about 3e-20; for n = 2^40, a million blocks per second for twelve days, it is 2^-49, about 2e-15; one in a million needs
n = 2^54.5. Chaining costs nothing: ``digest(key) = H(digest(parent), tokens, parts)`` hashes different inputs for
different keys until a first collision has happened, and the bound counts that first one. (After it, all common
continuations collide too.) With 64 bits the bound is n^2 / 2^65, which is 1/2 for n = 2^32: too short for a lookup by
digest alone.

The bound says nothing of somebody who *looks* for collisions. A fast hash like xxh3 is no defence: whoever knows the
seed can compute colliding tokens. Where tenants do not trust each other, use a keyed cryptographic hash with a secret
key, or compare what is stored. The bytes that are hashed must tell the parts apart as the key does (kind and length
before each part), or two contexts give the same bytes and with them the same digest.
"""

from __future__ import annotations

from collections.abc import Callable

from kvspec.spec.language import (
    Bool,
    Id,
    Machine,
    Map,
    Set,
    Static,
    Variants,
    axiom,
    case,
    choose,
    event,
    exists,
    forall,
    implies,
    init,
    invariant,
    old,
    require,
    theorem,
    witness,
)
from kvspec.spec.sorts import Chain, Index, Seq


class Name(Id):
    """A string that somebody chose, or that stands for something: an adapter's name, a salt, the digest of an image."""


class Version(Id):
    """The weights that an adapter's name stands for at a time."""


class Tokens(Id):
    """The tokens of one full block."""


class Digest(Id):
    """What a program keeps of a key: some bits."""


class Part(Variants):
    """One part of a block's context, with its kind."""

    adapter = case(Name, Version)
    salt = case(Name)
    image = case(Name)


class Keys(Machine):
    """Equal keys mean equal tokens and equal contexts, block by block from the start."""

    nothing: Static[Chain]
    parent: Static[Callable[[Chain], Chain]]
    tokens: Static[Callable[[Chain], Tokens]]
    parts: Static[Callable[[Chain], Set[Part]]]
    depth: Static[Callable[[Chain], Index]]
    upto: Static[Callable[[Chain, Index], Chain]]
    digest: Static[Callable[[Chain], Digest]]

    says: Static[Callable[[Seq, Index], Tokens]]
    shows: Static[Callable[[Seq, Index, Name], Bool]]
    applies: Static[Callable[[Seq, Name], Bool]]
    salted: Static[Callable[[Seq, Name], Bool]]

    version: Map[Name, Version]
    past: Set[tuple[Name, Version]]

    length: Map[Seq, Index]
    key_of: Map[tuple[Seq, Index], Chain]
    weights: Map[tuple[Seq, Index, Name], Version]
    reads: Map[tuple[Seq, Index], Chain]

    hashed: Set[Chain]
    stored: Set[Digest]
    record: Map[Digest, Chain]
    made_with: Map[tuple[Digest, Name], Version]

    @axiom("a key is its parent, its tokens and its parts")
    def determined(self) -> Bool:
        return forall(
            Chain,
            Chain,
            lambda j, k: implies(
                (j != self.nothing)
                & (k != self.nothing)
                & (self.parent(j) == self.parent(k))
                & (self.tokens(j) == self.tokens(k))
                & self.parts(j).equals(self.parts(k)),
                j == k,
            ),
        )

    @axiom("the key of a first block has depth zero")
    def first_depth(self) -> Bool:
        return forall(Chain, lambda k: implies(self.parent(k) == self.nothing, self.depth(k).is_zero()))

    @axiom("any other key is one place behind its parent")
    def next_depth(self) -> Bool:
        return forall(
            Chain,
            Index,
            lambda k, i: implies(
                (k != self.nothing) & (self.parent(k) != self.nothing),
                (self.depth(self.parent(k)) < self.depth(k))
                & ~((self.depth(self.parent(k)) < i) & (i < self.depth(k))),
            ),
        )

    @axiom("up to its own place a key is itself")
    def upto_itself(self) -> Bool:
        return forall(Chain, lambda k: self.upto(k, self.depth(k)) == k)

    @axiom("up to an earlier place a key is what its parent is")
    def upto_earlier(self) -> Bool:
        return forall(
            Chain,
            Index,
            lambda k, i: implies(
                (k != self.nothing) & (i < self.depth(k)), self.upto(k, i) == self.upto(self.parent(k), i)
            ),
        )

    @init
    def start(self) -> None:
        self.past.clear()
        self.length.assign_all(lambda seq: Index.zero())
        self.hashed.clear()
        self.stored.clear()

    # -- requests ------------------------------------------------------------------------------------------------

    @event
    def compute(self, seq: Seq, key: Chain) -> None:
        """The sequence computes its next block with the weights of now and stores it under the digest of its key."""
        digest = self.digest(key)
        self.append(seq, key, key)
        self.stored.add(digest)
        self.record[digest] = key
        self.made_with.assign_all(lambda d, name: choose(d == digest, self.version[name], self.made_with[d, name]))

    @event
    def look_up(self, seq: Seq, key: Chain) -> None:
        """The sequence finds its next block by digest, and what is stored compares equal (`PrefixCache.match`)."""
        found = self.record[self.digest(key)]
        require(self.stored.has(self.digest(key)))
        require(self.parent(found) == self.parent(key))
        require(self.tokens(found) == self.tokens(key))
        require(self.parts(found).equals(self.parts(key)))
        self.append(seq, key, found)

    @event
    def look_up_by_digest(self, seq: Seq, key: Chain) -> None:
        """The sequence finds its next block by digest, and nothing else is compared (`PrefixCache.match`)."""
        require(self.stored.has(self.digest(key)))
        self.append(seq, key, self.record[self.digest(key)])

    @event
    def reload(self, adapter: Name, version: Version) -> None:
        """An adapter is replaced under its name; the new weights are a version that never was in force."""
        require(version != self.version[adapter])
        require(~self.past.has((adapter, version)))
        self.past.add((adapter, self.version[adapter]))
        self.version[adapter] = version

    def append(self, seq: Seq, key: Chain, found: Chain) -> None:
        """The sequence goes on by the block with this key, and reads there what was stored with the key found."""
        index = self.length[seq]
        require(key != self.nothing)
        require(
            (index.is_zero() & (self.parent(key) == self.nothing))
            | (~index.is_zero() & (self.parent(key) == self.key_of[seq, index.prev()]))
        )
        require(self.tokens(key) == self.says(seq, index))
        require(
            forall(
                Name,
                lambda name: self.parts(key).has(Part.adapter(name, self.version[name])) == self.applies(seq, name),
            )
        )
        require(
            forall(
                Name,
                Version,
                lambda name, v: implies(self.parts(key).has(Part.adapter(name, v)), self.version[name] == v),
            )
        )
        require(forall(Name, lambda name: self.parts(key).has(Part.salt(name)) == self.salted(seq, name)))
        require(forall(Name, lambda name: self.parts(key).has(Part.image(name)) == self.shows(seq, index, name)))
        self.key_of[seq, index] = key
        self.weights.assign_all(
            lambda s, i, name: choose((s == seq) & (i == index), self.version[name], self.weights[s, i, name])
        )
        self.reads[seq, index] = found
        self.length[seq] = index.next()
        self.hashed.add(key)

    # -- words ---------------------------------------------------------------------------------------------------

    def no_collision(self) -> Bool:
        """No two keys that were ever hashed have the same digest."""
        return forall(
            Chain,
            Chain,
            lambda j, k: implies(self.hashed.has(j) & self.hashed.has(k) & (self.digest(j) == self.digest(k)), j == k),
        )

    def appended(self, seq: Seq, index: Index) -> Bool:
        """The sequence has a block at this place, where it had none."""
        return index < self.length[seq]

    def same_key(self, one: Seq, i: Index, other: Seq, j: Index) -> Bool:
        """Two blocks have the same key."""
        return (i < self.length[one]) & (j < self.length[other]) & (self.key_of[one, i] == self.key_of[other, j])

    # -- invariants ----------------------------------------------------------------------------------------------

    @invariant("the key of a block says how many blocks are before it")
    def key_depth(self) -> Bool:
        return forall(Seq, Index, lambda s, i: implies(i < self.length[s], self.depth(self.key_of[s, i]) == i))

    @invariant("the key of a block leads to the keys of all blocks before it")
    def key_chained(self) -> Bool:
        return forall(
            Seq,
            Index,
            Index,
            lambda s, i, j: implies(
                (i < self.length[s]) & (j <= i), self.upto(self.key_of[s, i], j) == self.key_of[s, j]
            ),
        )

    @invariant("the key of a block has the tokens of the block")
    def key_tokens(self) -> Bool:
        return forall(
            Seq, Index, lambda s, i: implies(i < self.length[s], self.tokens(self.key_of[s, i]) == self.says(s, i))
        )

    @invariant("the key of a block names the adapters that were applied, with the versions of then")
    def key_adapters(self) -> Bool:
        return forall(
            Seq,
            Index,
            Name,
            lambda s, i, name: implies(
                i < self.length[s],
                self.parts(self.key_of[s, i]).has(Part.adapter(name, self.weights[s, i, name]))
                == self.applies(s, name),
            ),
        )

    @invariant("the key of a block names no other version of an adapter")
    def key_versions(self) -> Bool:
        return forall(
            Seq,
            Index,
            Name,
            Version,
            lambda s, i, name, v: implies(
                (i < self.length[s]) & self.parts(self.key_of[s, i]).has(Part.adapter(name, v)),
                self.weights[s, i, name] == v,
            ),
        )

    @invariant("the key of a block has the salts of the request")
    def key_salts(self) -> Bool:
        return forall(
            Seq,
            Index,
            Name,
            lambda s, i, name: implies(
                i < self.length[s], self.parts(self.key_of[s, i]).has(Part.salt(name)) == self.salted(s, name)
            ),
        )

    @invariant("the key of a block names the images in the block")
    def key_images(self) -> Bool:
        return forall(
            Seq,
            Index,
            Name,
            lambda s, i, name: implies(
                i < self.length[s], self.parts(self.key_of[s, i]).has(Part.image(name)) == self.shows(s, i, name)
            ),
        )

    @invariant("the key of a block was hashed")
    def key_hashed(self) -> Bool:
        return forall(Seq, Index, lambda s, i: implies(i < self.length[s], self.hashed.has(self.key_of[s, i])))

    @invariant("only proper keys are hashed")
    def hashed_proper(self) -> Bool:
        return ~self.hashed.has(self.nothing)

    @invariant("what is stored under a digest has a key with this digest")
    def record_digest(self) -> Bool:
        return forall(
            Digest,
            lambda d: implies(self.stored.has(d), self.hashed.has(self.record[d]) & (self.digest(self.record[d]) == d)),
        )

    @invariant("what is stored was made with the weights that its key names")
    def record_truth(self) -> Bool:
        return forall(
            Digest,
            Name,
            Version,
            lambda d, name, v: implies(
                self.stored.has(d) & self.parts(self.record[d]).has(Part.adapter(name, v)),
                self.made_with[d, name] == v,
            ),
        )

    @invariant("the version in force was not in force before")
    def version_new(self) -> Bool:
        return forall(Name, lambda name: ~self.past.has((name, self.version[name])))

    @invariant("what a sequence reads has the key of its block, or a hashed key that collides with it")
    def reads_or_collides(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda s, i: implies(
                (i < self.length[s]) & (self.reads[s, i] != self.key_of[s, i]),
                self.hashed.has(self.reads[s, i]) & (self.digest(self.reads[s, i]) == self.digest(self.key_of[s, i])),
            ),
        )

    # -- theorems ------------------------------------------------------------------------------------------------

    @theorem("equal keys stand at the same place")
    def same_place(self) -> Bool:
        return forall(Seq, Index, Seq, Index, lambda s, i, t, j: implies(self.same_key(s, i, t, j), i == j))

    @theorem("equal keys have equal keys before them, back to the first block")
    def same_prefix(self) -> Bool:
        return forall(
            Seq,
            Seq,
            Index,
            Index,
            lambda s, t, i, j: implies(self.same_key(s, i, t, i) & (j <= i), self.same_key(s, j, t, j)),
        )

    @theorem("equal keys mean equal tokens, back to the first block")
    def same_tokens(self) -> Bool:
        return forall(
            Seq,
            Seq,
            Index,
            Index,
            lambda s, t, i, j: implies(self.same_key(s, i, t, i) & (j <= i), self.says(s, j) == self.says(t, j)),
        )

    @theorem("equal keys mean the same adapters in the same versions: both are in the keys, back to the first block")
    def same_adapters(self) -> Bool:
        return forall(
            Seq,
            Seq,
            Index,
            Index,
            Name,
            lambda s, t, i, j, name: implies(
                self.same_key(s, i, t, i) & (j <= i) & self.applies(s, name),
                self.parts(self.key_of[t, j]).has(Part.adapter(name, self.weights[s, j, name]))
                & self.applies(t, name)
                & (self.weights[t, j, name] == self.weights[s, j, name]),
            ),
        )

    @theorem("equal keys mean equal salts, those in the key: tenants with different salts share nothing")
    def same_salts(self) -> Bool:
        return forall(
            Seq,
            Seq,
            Index,
            Name,
            lambda s, t, i, name: implies(
                self.same_key(s, i, t, i),
                (self.salted(s, name) == self.parts(self.key_of[t, i]).has(Part.salt(name)))
                & (self.parts(self.key_of[t, i]).has(Part.salt(name)) == self.salted(t, name)),
            ),
        )

    @theorem("equal keys mean equal images, back to the first block")
    def same_images(self) -> Bool:
        return forall(
            Seq,
            Seq,
            Index,
            Index,
            Name,
            lambda s, t, i, j, name: implies(
                self.same_key(s, i, t, i) & (j <= i), self.shows(s, j, name) == self.shows(t, j, name)
            ),
        )

    @theorem("parts share no name space: adapter x alone and salt x alone never give equal keys")
    def parts_apart(self) -> Bool:
        return forall(
            Chain,
            Chain,
            Name,
            Version,
            lambda j, k, x, v: implies(
                self.parts(j).is_only(Part.adapter(x, v)) & self.parts(k).is_only(Part.salt(x)), j != k
            ),
        )

    @theorem("as long as no two hashed keys collide, a sequence reads only blocks with its own keys")
    def reads_exact(self) -> Bool:
        return implies(
            self.no_collision(),
            forall(Seq, Index, lambda s, i: implies(i < self.length[s], self.reads[s, i] == self.key_of[s, i])),
        )

    @theorem("a computed block is the next of its sequence, and it is stored", after=compute)
    def computed_is_stored(self, seq: Seq, key: Chain) -> Bool:
        return self.appended(seq, old(self).length[seq]) & self.stored.has(self.digest(key))

    @theorem("a block that was found is the next of its sequence", after=look_up)
    def found_is_next(self, seq: Seq) -> Bool:
        return self.appended(seq, old(self).length[seq])

    @theorem("a block that was found by digest alone is the next of its sequence", after=look_up_by_digest)
    def found_by_digest_is_next(self, seq: Seq) -> Bool:
        return self.appended(seq, old(self).length[seq])

    @theorem("an adapter that is replaced was in force before, and is no more", after=reload)
    def replaced_is_past(self, adapter: Name) -> Bool:
        return self.past.has((adapter, old(self).version[adapter]))

    @theorem("a lookup that compares is exact, whatever the digest does", after=look_up)
    def compared_is_exact(self, seq: Seq, key: Chain) -> Bool:
        return self.reads[seq, old(self).length[seq]] == key

    @theorem("a lookup by digest alone is exact, unless two keys that were hashed collide", after=look_up_by_digest)
    def digest_is_exact(self, seq: Seq, key: Chain) -> Bool:
        found = self.reads[seq, old(self).length[seq]]
        return implies(
            found != key, self.hashed.has(found) & self.hashed.has(key) & (self.digest(found) == self.digest(key))
        )

    @theorem("a lookup never returns what was made before an adapter in use was reloaded", after=look_up)
    def compared_is_fresh(self, seq: Seq, key: Chain) -> Bool:
        return forall(
            Name,
            lambda name: implies(
                self.applies(seq, name), ~self.past.has((name, self.made_with[self.digest(key), name]))
            ),
        )

    @theorem("nor does a lookup by digest alone, if it returns the right key", after=look_up_by_digest)
    def digest_is_fresh(self, seq: Seq, key: Chain) -> Bool:
        return forall(
            Name,
            lambda name: implies(
                self.applies(seq, name) & (self.reads[seq, old(self).length[seq]] == key),
                ~self.past.has((name, self.made_with[self.digest(key), name])),
            ),
        )

    @witness("an adapter was reloaded, and a block that was made with it before is still stored")
    def outdated_but_stored(self) -> Bool:
        return exists(
            Digest,
            Name,
            Version,
            lambda d, name, v: (
                self.stored.has(d) & self.parts(self.record[d]).has(Part.adapter(name, v)) & self.past.has((name, v))
            ),
        )

    @witness("two sequences have a common block")
    def a_common_block(self) -> Bool:
        return exists(Seq, Seq, lambda s, t: (s != t) & self.same_key(s, Index.zero(), t, Index.zero()))

    @witness("two stored keys would have one digest, and a sequence reads a block that is not its own")
    def a_collision(self) -> Bool:
        return exists(Seq, Index, lambda s, i: (i < self.length[s]) & (self.reads[s, i] != self.key_of[s, i]))
