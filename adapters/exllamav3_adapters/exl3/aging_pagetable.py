"""exllamav3's page table with our eviction order, and its system-memory tier with the same.

The pages of a table become `AgingPage`s, which tell the order of every assignment to a field that it depends on.
exllamav3 1.6.5 makes such assignments in `CachePage`'s own methods, in `PageTable.allocate_pages`, `reset_page_table`
and `defrag`, in `Job.prefill`, `get_input_ids_list`, `hash_completed_page`, `receive_sample` and its rewind, and in
`Generator.iterate_gen`; overriding `CachePage`'s methods would miss half of them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from exllamav3.constants import PAGE_SIZE
from exllamav3.generator.cpu_cache import CPUPageCache
from exllamav3.generator.pagetable import CachePage, PageTable, is_content_hash

from exllamav3_adapters.exl3.engine_signatures import Signatures, changed_functions, misfit
from exllamav3_adapters.policies.aging_credit import AgingCredit
from exllamav3_adapters.policies.leaf_order import LeafOrder, VictimClass, credited_pages
from exllamav3_adapters.policies.page_forest import PageRecord

REGRET_SECONDS = 60.0
"""An eviction is counted as regretted where the page is asked for again this soon."""

_MAX_REMEMBERED_EVICTIONS = 65536

_NOT_KNOWN: tuple[int, ...] = ()

_TELL: dict[str, Callable[[LeafOrder, int, Any], None]] = {
    "phash": lambda order, number, phash: order.rename(number, phash),
    "prev_hash": lambda order, number, parent: order.reparent(number, parent),
    "kv_position": lambda order, number, position: order.set_empty(number, position == 0),
    "ref_count": lambda order, number, count: order.set_referenced(number, count > 0),
    "access_serial": lambda order, number, serial: order.set_serial(number, serial),
}


class AgingPage(CachePage):  # type: ignore[misc]
    """`number` is the page's place in `all_pages`, which stays; `page_index` changes when the cache is defragmented."""

    number: int

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value
        tell = _TELL.get(name)
        if tell is not None:
            tell(self.pagetable.leaf_order, self.number, value)
            if name == "phash" and value in self.pagetable.pinned_hashes:
                self.pagetable.leaf_order.set_pinned(self.number, True)


class Victims:
    """The part of a deque that `PageTable.allocate_pages` uses: the next page, and the one taken."""

    def __init__(self, page_table: AgingPageTable) -> None:
        self._page_table = page_table

    def __getitem__(self, index: int) -> Any:
        assert index == 0, "allocate_pages looks at the next page only"
        return self._page_table.next_victim()[0]

    def popleft(self) -> Any:
        """The page stays the next one until exllamav3 takes it, which it does at once."""
        page, victim_class = self._page_table.next_victim()
        self._page_table.evictions_by_class[victim_class] += 1
        return page


class AgingPageTable(PageTable):  # type: ignore[misc]
    """A `PageTable` that `install_aging` has changed. All of it runs on the scheduler's thread."""

    leaf_order: LeafOrder
    credit: AgingCredit
    pinned_hashes: set[bytes]
    """Pages that go after all others, whenever they are in the cache."""
    evictions_by_class: Counter[VictimClass]
    regretted_evictions: int
    """Evictions of pages that were asked for again within `REGRET_SECONDS`."""
    on_claim: Callable[[Sequence[bytes], tuple[int, ...], float], object]
    """What a claim that counts means: given the chained hashes of its pages, the prompt's tokens (empty where they are
    not known) and the time. Credit, until a policy that does more is put here."""
    _prompt: tuple[int, ...] | None
    _clock: Callable[[], float]
    _share: float
    _evicted_at: OrderedDict[bytes, float]

    def adopt(self, credit: AgingCredit, share: float, clock: Callable[[], float]) -> None:
        self.credit = credit
        self.pinned_hashes = set()
        self.evictions_by_class = Counter()
        self.regretted_evictions = 0
        self.on_claim = lambda chain, _, seconds: credit.claim(chain, seconds)
        self._prompt = _NOT_KNOWN
        self._clock = clock
        self._share = share
        self._evicted_at = OrderedDict()
        self._adopt_pages()

    def reset_page_table(self) -> None:
        super().reset_page_table()
        self._adopt_pages()

    def build_eviction_order(self, protected_hashes: Collection[bytes] | None = None) -> Victims:
        self.leaf_order.begin(protected_hashes or ())
        return Victims(self)

    def next_victim(self) -> tuple[Any, VictimClass]:
        victim = self.leaf_order.next_victim()
        assert victim is not None, "a job is only started where enough pages are unreferenced"
        record, victim_class = victim
        return self.all_pages[record.number], victim_class

    @contextmanager
    def claiming(self, prompt: tuple[int, ...] | None) -> Iterator[None]:
        """Says for which prompt's tokens pages are allocated meanwhile; None: the claim is not to count. Pages behind
        those tokens do not count either."""
        self._prompt = prompt
        try:
            yield
        finally:
            self._prompt = _NOT_KNOWN

    def allocate_pages(self, page_hashes: list[bytes], *args: Any, **kwargs: Any) -> Any:
        now = self._clock()
        if self._prompt is not None:
            known = page_hashes[: len(self._prompt) // PAGE_SIZE] if self._prompt else page_hashes
            self.on_claim(known, self._prompt, now)
        self._count_regretted(page_hashes, now)
        return super().allocate_pages(page_hashes, *args, **kwargs)

    def evict(self, page: Any, protect: set[bytes] | None = None) -> None:
        if page.kv_position == PAGE_SIZE and is_content_hash(page.phash):
            self._evicted_at[page.phash] = self._clock()
            self._evicted_at.move_to_end(page.phash)
            if len(self._evicted_at) > _MAX_REMEMBERED_EVICTIONS:
                self._evicted_at.popitem(last=False)
        super().evict(page, protect)

    def forget_evicted(self, page_hashes: Collection[bytes]) -> None:
        for phash in page_hashes:
            self._evicted_at.pop(phash, None)

    def set_pinned(self, phash: bytes, pinned: bool) -> None:
        if pinned:
            self.pinned_hashes.add(phash)
        else:
            self.pinned_hashes.discard(phash)
        page = self.referenced_pages.get(phash) or self.unreferenced_pages.get(phash)
        if page is not None:
            self.leaf_order.set_pinned(page.number, pinned)

    def _adopt_pages(self) -> None:
        records = []
        for number, page in enumerate(self.all_pages):
            page.__class__ = AgingPage
            page.__dict__["number"] = number
            records.append(
                PageRecord(
                    number,
                    page.phash,
                    page.prev_hash,
                    empty=page.kv_position == 0,
                    referenced=page.ref_count > 0,
                    serial=page.access_serial,
                    pinned=page.phash in self.pinned_hashes,
                )
            )
        self.leaf_order = LeafOrder(
            records,
            credited_pages=credited_pages(self.max_pages, self._share),
            log_credit=self.credit.log_credit,
        )

    def _count_regretted(self, page_hashes: list[bytes], now: float) -> None:
        if not self._evicted_at:
            return
        for phash in page_hashes:
            evicted_at = self._evicted_at.pop(phash, None)
            if evicted_at is not None and now - evicted_at <= REGRET_SECONDS and self.get_live_page(phash) is None:
                self.regretted_evictions += 1


class AgingPageCache(CPUPageCache):  # type: ignore[misc]
    """The system-memory tier: its snapshots list the entries as the page table would take its pages."""

    credit: AgingCredit
    _share: float

    def _build_order(self) -> None:
        records = [
            PageRecord(number, phash, self._parent(entry), empty=False, serial=entry["access_serial"])
            for number, (phash, entry) in enumerate(self.entries.items())
        ]
        order = LeafOrder(
            records, credited_pages=credited_pages(self.max_slots, self._share), log_credit=self.credit.log_credit
        )
        self._order = deque(order.drain())
        self._order_pops = 0

    def _parent(self, entry: dict[str, Any]) -> bytes | None:
        """None also where the page before it is in the cache itself: its chain is whole."""
        parent: bytes | None = entry["prev_hash"]
        in_cache = (
            parent is not None and self.pagetable is not None and self.pagetable.get_live_page(parent) is not None
        )
        return None if in_cache and parent not in self.entries else parent


def install_aging(generator: Any, *, credit: AgingCredit, share: float, clock: Callable[[], float]) -> AgingPageTable:
    """Gives the generator's page table and its system-memory tier the order of `LeafOrder`, in place.

    `share` of the pages may be kept for their credit; `clock` gives seconds. Raises LoadFailed where the installed
    exllamav3 is not the one that this was written for.
    """
    _check(type(generator.pagetable))
    page_table: AgingPageTable = generator.pagetable
    page_table.__class__ = AgingPageTable
    page_table.adopt(credit, share, clock)
    if (tier := generator.cpu_page_cache) is not None:
        tier.__class__ = AgingPageCache
        tier.credit, tier._share = credit, share
        tier._order.clear()
        # A small tier would use up a whole snapshot, credited entries included, before it makes the next one.
        tier._order_rebuild = min(tier._order_rebuild, max(1, tier.max_slots // 8))
    return page_table


_EXPECTED_PARAMETERS: Signatures = {
    PageTable.build_eviction_order: ["self", "protected_hashes"],
    PageTable.evict: ["self", "page", "protect"],
    PageTable.reset_page_table: ["self"],
    PageTable.allocate_pages: [
        "self",
        "page_hashes",
        "new_unique_pages",
        "recurrent_pages",
        "protected_hashes",
        "restore_limit",
    ],
    CPUPageCache._build_order: ["self"],
}


def _check(page_table_class: type) -> None:
    unknown = [name for name in (*_TELL, "page_index") if name not in CachePage.__dataclass_fields__]
    changed = changed_functions(_EXPECTED_PARAMETERS)
    if unknown or changed or page_table_class is not PageTable:
        raise misfit("memory.aging_lfu", ", ".join([*unknown, *changed]) or page_table_class.__name__)
