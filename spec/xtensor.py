"""Blocks in a reserved address range whose pages get memory on demand (seed 5.1; class `XTensorBlockManagerImpl`).

Each manager reserves addresses for all of its blocks, in one or more *regions* (keys and values, or layers), which are
laid out alike: a block lies on the same virtual pages in each. A virtual page can be used once every region has a
physical page behind it. The physical pages are common to all managers, so that what one gives back another can get.

To map a page takes a step for each region, and so does unmapping; each of them can fail, and what was begun is then
undone. What cannot be unmapped is *quarantined*: its physical pages stay where they are, and nobody else gets them,
until a later attempt succeeds. Which pages are mapped ahead, and which idle ones are reclaimed, is any choice.
"""

from __future__ import annotations

from collections.abc import Callable

from kvspec.spec.blocks import Blocks, Holder
from kvspec.spec.language import (
    Bool,
    Id,
    Machine,
    Map,
    Set,
    Static,
    Variants,
    case,
    empty_set,
    event,
    exists,
    forall,
    implies,
    inherit,
    init,
    invariant,
    old,
    possible,
    require,
    theorem,
    use,
    use_each,
    witness,
)
from kvspec.spec.single_block import SingleBlock
from kvspec.spec.sorts import Block


class Manager(Id):
    """A manager of blocks; several of them share the physical pages."""


class Page(Id):
    """A virtual page: the same part of each region of a manager (chapter `pages` counts them)."""


class PhysicalPage(Id):
    """A page of memory."""


class Region(Id):
    """A part of the address range with a layout of its own: keys, values, a layer."""


class Backing(Variants):
    """What a physical page is for: a virtual page of a manager, in one region."""

    of = case(Manager, Page, Region)


class Stage(Variants):
    """How far a virtual page has come."""

    unmapped = case()
    mapping = case()
    mapped = case()
    unmapping = case()
    quarantined = case()


class XTensor(Machine):
    """A block in use lies on pages that are mapped in all regions, and no physical page is mapped twice."""

    managers = use_each(Manager, Blocks)
    memory = use(SingleBlock, Unit=PhysicalPage, Owner=Backing)

    regions: Static[Set[Region]]
    lies_on: Static[Callable[[Manager, Block, Page], Bool]]

    opened: Set[Manager]
    calling: Set[Manager]
    stage: Map[tuple[Manager, Page], Stage]
    backed: Map[tuple[Manager, Page], Set[Region]]
    frame: Map[tuple[Manager, Page, Region], PhysicalPage]

    @init
    def start(self) -> None:
        self.opened.clear()
        self.calling.clear()
        self.stage.assign_all(lambda manager, page: Stage.unmapped())
        self.backed.assign_all(lambda manager, page: empty_set(Region))

    # -- pages are mapped --------------------------------------------------------------------------------------------

    @event
    def map_begin(self, manager: Manager, page: Page) -> None:
        """A page is to be mapped, for a block that is wanted or ahead of need."""
        require(self.is_in(manager, page, Stage.unmapped()))
        self.stage[manager, page] = Stage.mapping()

    @event
    def map_region(self, manager: Manager, page: Page, region: Region, frame: PhysicalPage) -> None:
        """A free physical page is mapped in one region."""
        require(self.is_in(manager, page, Stage.mapping()))
        require(self.regions.has(region))
        require(~self.backed[manager, page].has(region))
        require(self.memory.ids.free.has(frame))
        self.memory.allocate(frame, Backing.of(manager, page, region))
        self.backed[manager, page].add(region)
        self.frame[manager, page, region] = frame

    @event
    def map_commit(self, manager: Manager, page: Page) -> None:
        """Every region is mapped: the page can be used."""
        require(self.is_in(manager, page, Stage.mapping()))
        require(forall(Region, lambda r: implies(self.regions.has(r), self.backed[manager, page].has(r))))
        self.stage[manager, page] = Stage.mapped()

    @event
    def map_failed(self, manager: Manager, page: Page) -> None:
        """A region could not be mapped; those that were are to be unmapped."""
        require(self.is_in(manager, page, Stage.mapping()))
        self.stage[manager, page] = Stage.unmapping()

    # -- and unmapped ------------------------------------------------------------------------------------------------

    @event
    def unmap_begin(self, manager: Manager, page: Page) -> None:
        """A page on which no block is in use, nor the padding block of an open manager, is reclaimed."""
        require(self.is_in(manager, page, Stage.mapped()))
        require(self.is_idle(manager, page))
        require(~(self.opened.has(manager) & self.has_padding(manager, page)))
        self.stage[manager, page] = Stage.unmapping()

    @event
    def unmap_region(self, manager: Manager, page: Page, region: Region) -> None:
        """A region is unmapped; its physical page is free for anybody."""
        require(self.is_in(manager, page, Stage.unmapping()))
        require(self.backed[manager, page].has(region))
        self.memory.deallocate(self.frame[manager, page, region], Backing.of(manager, page, region))
        self.backed[manager, page].discard(region)

    @event
    def unmap_commit(self, manager: Manager, page: Page) -> None:
        """No region is left: the page can be mapped anew."""
        require(self.is_in(manager, page, Stage.unmapping()))
        require(self.backed[manager, page].is_empty())
        self.stage[manager, page] = Stage.unmapped()

    @event
    def unmap_failed(self, manager: Manager, page: Page) -> None:
        """A region cannot be unmapped: the page is set aside with the physical pages that it still has."""
        require(self.is_in(manager, page, Stage.unmapping()))
        require(~self.backed[manager, page].is_empty())
        self.stage[manager, page] = Stage.quarantined()

    @event
    def unmap_retry(self, manager: Manager, page: Page) -> None:
        """What was set aside is tried again."""
        require(self.is_in(manager, page, Stage.quarantined()))
        self.stage[manager, page] = Stage.unmapping()

    # -- managers and their blocks -----------------------------------------------------------------------------------

    @event
    def open(self, manager: Manager) -> None:
        """A manager begins to serve: the page of its padding block is mapped, and stays so."""
        require(~self.opened.has(manager))
        require(self.is_mapped(manager, self.managers[manager].padding))
        self.opened.add(manager)

    @event
    def close(self, manager: Manager) -> None:
        """A manager without blocks in use serves no more; all of its pages can be reclaimed."""
        require(self.opened.has(manager))
        require(~self.calling.has(manager))
        require(forall(Block, lambda b: self.managers[manager].holders[b].is_empty()))
        self.opened.discard(manager)

    @event
    def call(self, manager: Manager) -> None:
        """A call asks for a block; there is one at a time (allocate)."""
        require(self.opened.has(manager))
        require(~self.calling.has(manager))
        self.calling.add(manager)

    @event
    def take(self, manager: Manager, block: Block, holder: Holder) -> None:
        """The call gets a free block that lies on mapped pages."""
        require(self.calling.has(manager))
        require(self.is_mapped(manager, block))
        inherit(self.managers[manager].take)(block, holder)
        self.calling.discard(manager)

    @event
    def share(self, manager: Manager, block: Block, holder: Holder) -> None:
        """A block in use gets one more holder (allocate_shared)."""
        inherit(self.managers[manager].share)(block, holder)

    @event
    def drop(self, manager: Manager, block: Block, holder: Holder) -> None:
        """A holder gives its handle back; the last one frees the block, whose pages stay mapped (free)."""
        inherit(self.managers[manager].drop)(block, holder)

    @event
    def refuse(self, manager: Manager) -> None:
        """The call is refused: each free block lies on a page that is not mapped and cannot be now."""
        require(self.calling.has(manager))
        require(
            forall(
                Block,
                lambda b: implies(
                    self.managers[manager].free.has(b),
                    exists(Page, lambda v: self.lies_on(manager, b, v) & self.is_stuck(manager, v)),
                ),
            )
        )
        self.calling.discard(manager)

    # -- words -------------------------------------------------------------------------------------------------------

    def is_in(self, manager: Manager, page: Page, stage: Stage) -> Bool:
        return self.stage[manager, page] == stage

    def is_mapped(self, manager: Manager, block: Block) -> Bool:
        """Every page on which the block lies is mapped."""
        return forall(
            Page,
            lambda v: implies(self.lies_on(manager, block, v), self.is_in(manager, v, Stage.mapped())),
        )

    def has_padding(self, manager: Manager, page: Page) -> Bool:
        """The manager's padding block lies on the page."""
        return self.lies_on(manager, self.managers[manager].padding, page)

    def is_idle(self, manager: Manager, page: Page) -> Bool:
        """No block on the page is in use."""
        return forall(
            Block,
            lambda b: implies(self.lies_on(manager, b, page), self.managers[manager].holders[b].is_empty()),
        )

    def is_stuck(self, manager: Manager, page: Page) -> Bool:
        """The page cannot be mapped now: it is being unmapped, set aside, or there are too few physical pages."""
        free = self.memory.ids.free
        return (
            self.is_in(manager, page, Stage.unmapping())
            | self.is_in(manager, page, Stage.quarantined())
            | (self.is_in(manager, page, Stage.mapping()) & free.is_empty())
            | (self.is_in(manager, page, Stage.unmapped()) & (free.size() < self.regions.size()))
        )

    def backs(self, frame: PhysicalPage, manager: Manager, page: Page, region: Region) -> Bool:
        """The physical page is what the virtual page has in the region."""
        return self.backed[manager, page].has(region) & (self.frame[manager, page, region] == frame)

    # -- invariants --------------------------------------------------------------------------------------------------

    @invariant("a block in use lies on mapped pages")
    def held_is_mapped(self) -> Bool:
        return forall(
            Manager,
            Block,
            Page,
            lambda m, b, v: implies(
                ~self.managers[m].holders[b].is_empty() & self.lies_on(m, b, v), self.is_in(m, v, Stage.mapped())
            ),
        )

    @invariant("only an open manager has blocks in use")
    def held_is_open(self) -> Bool:
        return forall(Manager, Block, lambda m, b: implies(~self.managers[m].holders[b].is_empty(), self.opened.has(m)))

    @invariant("only an open manager is called")
    def called_is_open(self) -> Bool:
        return forall(Manager, lambda m: implies(self.calling.has(m), self.opened.has(m)))

    @invariant("the padding block of an open manager lies on mapped pages")
    def padding_is_mapped(self) -> Bool:
        return forall(
            Manager,
            Page,
            lambda m, v: implies(self.opened.has(m) & self.has_padding(m, v), self.is_in(m, v, Stage.mapped())),
        )

    @invariant("a mapped page is mapped in every region")
    def mapped_everywhere(self) -> Bool:
        return forall(
            Manager,
            Page,
            Region,
            lambda m, v, r: implies(self.is_in(m, v, Stage.mapped()) & self.regions.has(r), self.backed[m, v].has(r)),
        )

    @invariant("an unmapped page is mapped in no region")
    def unmapped_nowhere(self) -> Bool:
        return forall(
            Manager,
            Page,
            Region,
            lambda m, v, r: implies(self.is_in(m, v, Stage.unmapped()), ~self.backed[m, v].has(r)),
        )

    @invariant("only what could not be unmapped is set aside")
    def quarantined_somewhere(self) -> Bool:
        return forall(
            Manager, Page, lambda m, v: implies(self.is_in(m, v, Stage.quarantined()), ~self.backed[m, v].is_empty())
        )

    @invariant("a page is mapped only in regions that there are")
    def backed_regions(self) -> Bool:
        return forall(Manager, Page, Region, lambda m, v, r: implies(self.backed[m, v].has(r), self.regions.has(r)))

    @invariant("what is mapped has a physical page of its own")
    def backed_owns(self) -> Bool:
        return forall(
            Manager,
            Page,
            Region,
            lambda m, v, r: implies(
                self.backed[m, v].has(r), self.memory.ids.holders[self.frame[m, v, r]].has(Backing.of(m, v, r))
            ),
        )

    @invariant("a physical page that is not free is mapped where its account says")
    def owned_backs(self) -> Bool:
        return forall(
            PhysicalPage,
            Manager,
            Page,
            Region,
            lambda p, m, v, r: implies(self.memory.ids.holders[p].has(Backing.of(m, v, r)), self.backs(p, m, v, r)),
        )

    # -- theorems ----------------------------------------------------------------------------------------------------

    @theorem("a block in use, and the padding block of an open manager, has memory in every region, which is not free")
    def used_has_memory(self) -> Bool:
        return forall(
            Manager,
            Block,
            Page,
            Region,
            lambda m, b, v, r: implies(
                (~self.managers[m].holders[b].is_empty() | (self.opened.has(m) & (b == self.managers[m].padding)))
                & self.lies_on(m, b, v)
                & self.regions.has(r),
                exists(PhysicalPage, lambda p: self.backs(p, m, v, r) & ~self.memory.ids.free.has(p)),
            ),
        )

    @theorem("no physical page is mapped twice: not for two managers, pages or regions")
    def mapped_once(self) -> Bool:
        return forall(
            PhysicalPage,
            Manager,
            Page,
            Region,
            Manager,
            Page,
            Region,
            lambda p, m, v, r, n, w, s: implies(
                self.backs(p, m, v, r) & self.backs(p, n, w, s), (m == n) & (v == w) & (r == s)
            ),
        )

    @theorem("no physical page leaks: one that is mapped nowhere is free")
    def no_page_leak(self) -> Bool:
        return forall(
            PhysicalPage,
            lambda p: implies(
                self.memory.ids.usable.has(p) & forall(Manager, Page, Region, lambda m, v, r: ~self.backs(p, m, v, r)),
                self.memory.ids.free.has(p),
            ),
        )

    @theorem("a page that is set aside has memory, which nobody else gets")
    def quarantined_has_memory(self) -> Bool:
        return forall(
            Manager,
            Page,
            lambda m, v: implies(
                self.is_in(m, v, Stage.quarantined()),
                exists(PhysicalPage, Region, lambda p, r: self.backs(p, m, v, r) & ~self.memory.ids.free.has(p)),
            ),
        )

    @theorem("when all is reclaimed but the pages of padding blocks, every other physical page is free")
    def drained(self) -> Bool:
        return implies(
            forall(Manager, Page, lambda m, v: self.is_in(m, v, Stage.unmapped()) | self.has_padding(m, v)),
            forall(
                PhysicalPage,
                lambda p: implies(
                    self.memory.ids.usable.has(p),
                    self.memory.ids.free.has(p)
                    | exists(Manager, Page, Region, lambda m, v, r: self.has_padding(m, v) & self.backs(p, m, v, r)),
                ),
            ),
        )

    @theorem("the pages of an open manager's padding block are not reclaimed")
    def padding_stays(self) -> Bool:
        return forall(
            Manager,
            Page,
            lambda m, v: implies(self.opened.has(m) & self.has_padding(m, v), ~possible(self.unmap_begin)(m, v)),
        )

    @theorem("a page on which nothing is in use can be reclaimed, unless it has the padding of an open manager")
    def idle_can_go(self) -> Bool:
        return forall(
            Manager,
            Page,
            lambda m, v: implies(
                self.is_in(m, v, Stage.mapped())
                & forall(
                    Block,
                    Holder,
                    lambda b, h: ~(self.managers[m].holders[b].has(h) & self.lies_on(m, b, v)),
                )
                & (~self.opened.has(m) | ~self.has_padding(m, v)),
                possible(self.unmap_begin)(m, v),
            ),
        )

    @theorem("what is being mapped can go on with any free physical page, be finished, or fail")
    def mapping_goes_on(self) -> Bool:
        return forall(
            Manager,
            Page,
            Region,
            PhysicalPage,
            lambda m, v, r, p: (
                implies(self.is_in(m, v, Stage.unmapped()), possible(self.map_begin)(m, v))
                & implies(
                    self.is_in(m, v, Stage.mapping()),
                    possible(self.map_failed)(m, v)
                    & implies(
                        self.regions.has(r)
                        & ~self.backed[m, v].has(r)
                        & self.memory.ids.usable.has(p)
                        & self.memory.ids.holders[p].is_empty(),
                        possible(self.map_region)(m, v, r, p),
                    )
                    & (
                        possible(self.map_commit)(m, v)
                        | exists(Region, lambda s: self.regions.has(s) & ~self.backed[m, v].has(s))
                    ),
                )
            ),
        )

    @theorem("what is to be unmapped can be, region by region, also after a failure; then the page can be mapped anew")
    def unmapping_goes_on(self) -> Bool:
        return forall(
            Manager,
            Page,
            Region,
            lambda m, v, r: (
                implies(self.is_in(m, v, Stage.quarantined()), possible(self.unmap_retry)(m, v))
                & implies(
                    self.is_in(m, v, Stage.unmapping()),
                    implies(
                        self.backed[m, v].has(r),
                        possible(self.unmap_region)(m, v, r) & possible(self.unmap_failed)(m, v),
                    )
                    & (
                        possible(self.unmap_commit)(m, v)
                        | exists(PhysicalPage, Region, lambda p, s: self.backs(p, m, v, s))
                    ),
                )
            ),
        )

    @theorem("a manager whose padding block lies on mapped pages can open, be called, and close if nothing is in use")
    def opens_and_closes(self) -> Bool:
        return forall(
            Manager,
            lambda m: (
                implies(
                    ~self.opened.has(m)
                    & forall(Page, lambda v: implies(self.has_padding(m, v), self.is_in(m, v, Stage.mapped()))),
                    possible(self.open)(m),
                )
                & implies(
                    self.opened.has(m) & ~self.calling.has(m),
                    possible(self.call)(m)
                    & implies(
                        forall(Block, Holder, lambda b, h: ~self.managers[m].holders[b].has(h)),
                        possible(self.close)(m),
                    ),
                )
            ),
        )

    @theorem("a block that nobody holds and that lies on mapped pages can be had")
    def mapped_can_be_had(self) -> Bool:
        return forall(
            Manager,
            Block,
            Holder,
            lambda m, b, h: implies(
                self.calling.has(m)
                & self.managers[m].usable.has(b)
                & self.managers[m].holders[b].is_empty()
                & forall(Page, lambda v: implies(self.lies_on(m, b, v), self.is_in(m, v, Stage.mapped()))),
                possible(self.take)(m, b, h),
            ),
        )

    @theorem("who could have a block on mapped pages is not refused")
    def mapped_not_refused(self) -> Bool:
        return forall(
            Manager, Block, Holder, lambda m, b, h: implies(possible(self.take)(m, b, h), ~possible(self.refuse)(m))
        )

    @theorem("who could map the next page of a free block, if it is not mapped, is not refused")
    def reach_not_refused(self) -> Bool:
        return forall(
            Manager,
            Block,
            lambda m, b: implies(
                self.managers[m].usable.has(b)
                & self.managers[m].holders[b].is_empty()
                & forall(
                    Page,
                    lambda v: implies(
                        self.lies_on(m, b, v) & ~self.is_in(m, v, Stage.mapped()),
                        (possible(self.map_begin)(m, v) & (self.regions.size() <= self.memory.ids.free.size()))
                        | (
                            self.is_in(m, v, Stage.mapping())
                            & exists(PhysicalPage, lambda p: self.memory.ids.free.has(p))
                        ),
                    ),
                ),
                ~possible(self.refuse)(m),
            ),
        )

    @theorem("a call can be refused when no physical page is free, unless a free block lies on mapped pages")
    def want_can_be_refused(self) -> Bool:
        return forall(
            Manager,
            lambda m: implies(
                self.calling.has(m)
                & exists(Region, lambda r: self.regions.has(r))
                & forall(PhysicalPage, lambda p: ~self.memory.ids.free.has(p))
                & forall(Block, Holder, lambda b, h: ~possible(self.take)(m, b, h)),
                possible(self.refuse)(m),
            ),
        )

    # -- steps -------------------------------------------------------------------------------------------------------

    @theorem("at the start no manager is open or called, and no page is mapped", after=start)
    def starts_unmapped(self) -> Bool:
        return forall(
            Manager, Page, lambda m, v: ~self.opened.has(m) & ~self.calling.has(m) & self.is_in(m, v, Stage.unmapped())
        )

    @theorem("a physical page that is mapped was free, and is so no more", after=map_region)
    def mapped_was_free(self, manager: Manager, page: Page, region: Region, frame: PhysicalPage) -> Bool:
        return (
            old(self).memory.ids.free.has(frame)
            & ~self.memory.ids.free.has(frame)
            & self.backs(frame, manager, page, region)
        )

    @theorem(
        "only a mapping that has not failed is finished, and then the page has all of its memory", after=map_commit
    )
    def committed_is_mapped(self, manager: Manager, page: Page) -> Bool:
        return (
            old(self).is_in(manager, page, Stage.mapping())
            & self.is_in(manager, page, Stage.mapped())
            & forall(
                Region,
                lambda r: implies(self.regions.has(r), exists(PhysicalPage, lambda p: self.backs(p, manager, page, r))),
            )
        )

    @theorem("a page that could not be mapped in all regions is not used", after=map_failed)
    def failed_is_unused(self, manager: Manager, page: Page) -> Bool:
        return (
            self.is_in(manager, page, Stage.unmapping())
            & self.is_idle(manager, page)
            & ~(self.opened.has(manager) & self.has_padding(manager, page))
        )

    @theorem(
        "only a mapped page is reclaimed, without a block in use and padding of an open manager", after=unmap_begin
    )
    def reclaimed_was_idle(self, manager: Manager, page: Page) -> Bool:
        return (
            old(self).is_in(manager, page, Stage.mapped())
            & self.is_in(manager, page, Stage.unmapping())
            & self.is_idle(manager, page)
            & ~(self.opened.has(manager) & self.has_padding(manager, page))
        )

    @theorem("a physical page that is unmapped is free, for anybody", after=unmap_region)
    def unmapped_is_free(self, manager: Manager, page: Page, region: Region) -> Bool:
        return self.memory.ids.free.has(old(self).frame[manager, page, region]) & ~self.backed[manager, page].has(
            region
        )

    @theorem("what has been undone leaves no half-mapped page", after=unmap_commit)
    def undone_is_unmapped(self, manager: Manager, page: Page) -> Bool:
        return self.is_in(manager, page, Stage.unmapped()) & forall(
            PhysicalPage, Region, lambda p, r: ~self.memory.ids.holders[p].has(Backing.of(manager, page, r))
        )

    @theorem("what is set aside keeps its physical pages, one or more, and is not used", after=unmap_failed)
    def set_aside_keeps(self, manager: Manager, page: Page) -> Bool:
        return (
            self.is_in(manager, page, Stage.quarantined())
            & exists(PhysicalPage, Region, lambda p, r: self.backs(p, manager, page, r))
            & forall(PhysicalPage, lambda p: self.memory.ids.free.has(p) == old(self).memory.ids.free.has(p))
        )

    @theorem("a call has what it asked for: a block that lies on mapped pages, and that nobody held", after=take)
    def taken_is_mapped(self, manager: Manager, block: Block, holder: Holder) -> Bool:
        return (
            ~self.calling.has(manager)
            & self.is_mapped(manager, block)
            & self.managers[manager].holders[block].is_only(holder)
            & old(self).managers[manager].holders[block].is_empty()
        )

    @theorem("a call that is refused has ended", after=refuse)
    def refused_has_ended(self, manager: Manager) -> Bool:
        return ~self.calling.has(manager) & old(self).calling.has(manager)

    @theorem("one call at a time", after=call)
    def called_once(self, manager: Manager) -> Bool:
        return self.calling.has(manager) & ~old(self).calling.has(manager)

    @theorem("a manager that is open has its padding", after=open)
    def opened_has_padding(self, manager: Manager) -> Bool:
        return self.opened.has(manager) & self.is_mapped(manager, self.managers[manager].padding)

    @theorem("a closed manager holds no block", after=close)
    def closed_holds_nothing(self, manager: Manager) -> Bool:
        return ~self.opened.has(manager) & forall(Block, Holder, lambda b, h: ~self.managers[manager].holders[b].has(h))

    # -- witnesses ---------------------------------------------------------------------------------------------------

    @witness("a block in use lies on two pages")
    def across_a_border(self) -> Bool:
        return exists(
            Manager,
            Block,
            Page,
            Page,
            lambda m, b, v, w: (
                (v != w) & self.lies_on(m, b, v) & self.lies_on(m, b, w) & ~self.managers[m].holders[b].is_empty()
            ),
        )

    @witness("two managers have pages")
    def both_mapped(self) -> Bool:
        return exists(
            Manager,
            Manager,
            Page,
            Page,
            lambda m, n, v, w: (m != n) & self.is_in(m, v, Stage.mapped()) & self.is_in(n, w, Stage.mapped()),
        )

    @witness("a page is set aside that has memory in one region and not in another")
    def half_unmapped(self) -> Bool:
        return exists(
            Manager,
            Page,
            Region,
            lambda m, v, r: self.is_in(m, v, Stage.quarantined()) & self.regions.has(r) & ~self.backed[m, v].has(r),
        )
