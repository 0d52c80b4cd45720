"""The policy's own modules as an order: what the fast `CreditedShare` is held against."""

from __future__ import annotations

from exllamav3_adapters.policies.aging_credit import AgingCredit
from exllamav3_adapters.policies.leaf_order import LeafOrder
from exllamav3_adapters.policies.page_forest import PageRecord
from trace_study.leaf_first import Chain
from trace_study.page_table import page_hash
from trace_study.workload import Workload


class EngineOrder:
    def __init__(self, workload: Workload, capacity: int, credit: AgingCredit, *, credited_pages: int) -> None:
        self._requests = workload.requests
        self._credit = credit
        records = [PageRecord(number, b"free-%d" % number, referenced=True) for number in range(capacity)]
        self._order = LeafOrder(records, credited_pages=credited_pages, log_credit=credit.log_credit)
        self._serial = capacity
        self._free = list(range(capacity))
        self._number_of: dict[int, int] = {}
        self._page_of: dict[int, int] = {}

    def claim(self, index: int, chain: Chain, num_cached: int) -> None:
        hashes = [page_hash(page) for page in chain.tolist()]
        self._credit.claim(hashes, self._requests[index].seconds)
        self._serials = {page: self._serial + 1 + place for place, page in enumerate(chain.tolist())}
        self._serial += len(chain)
        for page in chain[:num_cached].tolist():
            self._order.set_referenced(self._number_of[page], True)
        self._order.begin(set(hashes))

    def evict(self) -> int:
        victim = self._order.next_victim()
        assert victim is not None
        number = victim[0].number
        page = self._page_of.pop(number)
        del self._number_of[page]
        self._order.set_referenced(number, True)
        self._order.rename(number, b"free-%d" % number)
        self._order.reparent(number, None)
        self._free.append(number)
        return page

    def release(self, chain: Chain) -> None:
        previous: bytes | None = None
        for page in chain.tolist():
            if page not in self._number_of:
                number = self._number_of[page] = self._free.pop()
                self._page_of[number] = page
                self._order.set_referenced(number, True)
                self._order.rename(number, page_hash(page))
                self._order.reparent(number, previous)
                self._order.set_empty(number, False)
            self._order.set_serial(self._number_of[page], self._serials[page])
            previous = page_hash(page)
        for page in chain.tolist():
            self._order.set_referenced(self._number_of[page], False)
