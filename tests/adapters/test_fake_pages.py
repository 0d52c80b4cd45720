import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from exllamav3_adapters.fake.pages import PAGE_SIZE, Lease, PageCache, num_pages_for

CAPACITY = 6
MAX_PINNED = 2

# Few different pages, so that prompts share beginnings.
prompts = st.builds(
    lambda pages, rest: b"".join(bytes([page]) * PAGE_SIZE for page in pages) + b"." * rest,
    st.lists(st.integers(0, 2), max_size=4),
    st.integers(1, PAGE_SIZE),
)


def pages_of(prompt: bytes) -> list[bytes]:
    return [prompt[:end] for end in range(PAGE_SIZE, len(prompt), PAGE_SIZE)]


class CacheOfPages(RuleBasedStateMachine):
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.cache = PageCache(CAPACITY)
        self.held: list[Lease] = []

    @rule(target=leases, prompt=prompts)
    def reserve(self, prompt: bytes) -> object:
        lease = self.cache.reserve(prompt, len(prompt))
        if lease is None:
            return multiple()
        assert len(lease.pages) == num_pages_for(len(prompt))
        assert lease.num_cached * PAGE_SIZE < len(prompt)
        self.held.append(lease)
        return lease

    @rule(lease=leases)
    def publish(self, lease: Lease) -> None:
        if lease in self.held:
            self.cache.publish(lease, lease.token_ids)

    @rule(lease=consumes(leases))
    def release(self, lease: Lease) -> None:
        self.cache.release(lease)
        self.held.remove(lease)

    @rule(prompt=prompts)
    def pin(self, prompt: bytes) -> None:
        assert self.cache.pin(prompt, MAX_PINNED) <= MAX_PINNED

    @rule(prompt=prompts)
    def unpin(self, prompt: bytes) -> None:
        self.cache.unpin(prompt)

    @rule(prompt=prompts)
    def forget(self, prompt: bytes) -> None:
        before = self.cache.num_indexed
        dropped = self.cache.forget(prompt)
        assert self.cache.num_indexed == before - dropped
        assert self.cache.forget(prompt) == 0

    @precondition(lambda self: not self.held)
    @rule(prompt=prompts.filter(lambda prompt: num_pages_for(len(prompt)) <= CAPACITY - MAX_PINNED))
    def an_idle_cache_has_room_beside_its_pins(self, prompt: bytes) -> None:
        lease = self.cache.reserve(prompt, len(prompt))
        assert lease is not None
        self.cache.publish(lease, prompt)
        self.cache.release(lease)
        again = self.cache.reserve(prompt, len(prompt))
        assert again is not None
        assert again.num_cached == len(pages_of(prompt))
        self.cache.release(again)

    @invariant()
    def no_more_pages_exist_than_fit(self) -> None:
        private = {id(page) for lease in self.held for page in lease.pages if page.key is None}
        assert len(private) + self.cache.num_indexed <= CAPACITY
        assert self.cache.num_pinned <= MAX_PINNED

    @invariant()
    def pages_are_used_while_they_are_held_and_no_longer(self) -> None:
        assert self.cache.num_used == len({id(page) for lease in self.held for page in lease.pages})
        assert self.cache.num_reusable <= self.cache.num_indexed

    @invariant()
    def a_page_is_never_without_those_before_it(self) -> None:
        assert all(key[:-PAGE_SIZE] in self.cache for key in self.cache if len(key) > PAGE_SIZE)


TestCacheOfPages = CacheOfPages.TestCase
TestCacheOfPages.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@given(st.integers(0, 2000))
def test_a_started_page_is_a_page(num_tokens: int) -> None:
    assert (num_pages_for(num_tokens) - 1) * PAGE_SIZE < max(num_tokens, 1) <= max(num_pages_for(num_tokens), 1) * 256
