"""The tokens behind the text of conversations, so that a follow-up keeps those that were generated.

A model samples its answer in tokens that the tokenizer might never cut the same text into, and what comes back from a
client is text. A follow-up that was tokenised anew would then leave the cached pages, and the recurrent checkpoints,
somewhere in that answer. Here a text is known when it is a prompt and the answer that was sent for it, whole; a text
that begins with a known one gets exactly the known one's tokens, and the rest is tokenised as usual.

Known tokens are the engine's own and their text is the client's, byte for byte, so nobody gets tokens into a prompt by
writing something that looks like them. Like pages, they serve every client that sends the text. The usual tokens would
read differently in two cases: what looks like a special token, spelt out in an answer, stays ordinary text; and a word
that goes on where an answer was cut off is in two pieces, as when the model itself goes on with it.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from bisect import bisect_right, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Encode = Callable[[str], list[int]]

MAX_TEXTS = 4096
"""Prompts and answers that are remembered together: some hundreds of conversations."""
MAX_TOKENS = 8 * 2**20
"""Tokens in them, four bytes each. What a turn shares with the one before it counts once."""
NUM_BREAKS = 16
"""How many of a broken answer's last pieces its reader may have missed."""
_ANCHORS = ("\n", "a")
"""Texts before which the rest of a prompt is tokenised: some tokenizers put a space before the first word of a text.
Two, since a tokenizer may join one of them with what follows."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of an answer, and the text that was sent for them: one token, or those of one character."""

    token_ids: tuple[int, ...]
    text: str


@dataclass(eq=False, slots=True)
class _Text:
    """A prompt or an answer, after its `parent`: the answer of the turn before, or the answer's prompt."""

    parent: _Text | None
    token_ids: array[int]
    num_tokens: int
    """The parent's included, as in all that follows."""
    num_bytes: int
    hasher: Any
    """Keyed hash over the text so far, to be copied where it goes on."""
    prompt_key: bytes | None = None
    """Hash of the tokens; None for an answer."""
    num_children: int = 0

    @property
    def text_key(self) -> tuple[int, bytes]:
        return self.num_bytes, self.hasher.digest()

    def chain(self) -> Iterator[_Text]:
        """This text and all before it, last first."""
        text: _Text | None = self
        while text is not None:
            yield text
            text = text.parent


class ConversationTokens:
    """Bounded by texts and tokens, least recently used first. In memory only, and without the text itself.

    Not safe for several threads: it belongs to the thread that renders. Nothing here takes longer than tokenising.
    """

    def __init__(self, *, max_texts: int = MAX_TEXTS, max_tokens: int = MAX_TOKENS) -> None:
        self._max_texts = max_texts
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._hash_key = secrets.token_bytes(32)
        # Parents come after their children: whatever uses a text uses all before it.
        self._by_recency: OrderedDict[_Text, None] = OrderedDict()
        self._prompts: dict[bytes, _Text] = {}
        self._answers: dict[tuple[int, bytes], _Text] = {}
        self._length_counts: Counter[int] = Counter()
        self._lengths: list[int] = []  # of answers, in bytes, ascending, each once

    def __len__(self) -> int:
        """Texts that are remembered."""
        return len(self._by_recency)

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def encode(self, text: str, encode: Encode) -> tuple[int, ...]:
        """The text in tokens, known ones where it begins with a known text. It is a prompt that may be answered.

        `encode` tokenises anything. Raises UnicodeEncodeError where the text holds half of a surrogate pair.
        """
        data = text.encode()
        known = self._find(data)
        tail = None if known is None else _encode_inside(data[known.num_bytes :].decode(), encode)
        if known is None or tail is None:
            known, tail = None, encode(text)
        token_ids = (*_token_ids(known), *tail)
        self._add_prompt(data, known, tail, token_ids)
        return token_ids

    def remember(self, prompt_ids: Sequence[int], pieces: Sequence[Piece], *, broken: bool = False) -> None:
        """An answer to a prompt, as it was sent. Nothing happens where the text behind `prompt_ids` is not known.

        `broken`: the reader left before the end, so it is not known which of the last pieces were read; a follow-up
        may end in any of them. An answer is also known without white space at its end, which many templates strip.
        """
        prompt = self._prompts.get(_hash_ids(array("I", prompt_ids)))
        if prompt is None:
            return
        known, start = prompt, 0
        for end in _ends(pieces, broken):
            known = self._add_answer(known, pieces[start:end])
            if known not in self._by_recency:  # too long to be remembered
                return
            start = end

    def discard(self, prompt_ids: Sequence[int]) -> None:
        """Drops a prompt whose answer is not to be remembered."""
        prompt = self._prompts.get(_hash_ids(array("I", prompt_ids)))
        if prompt is not None and not prompt.num_children:
            self._drop(prompt)

    def forget(self, token_ids: Sequence[int]) -> None:
        """Drops every conversation of which these tokens are a beginning, or that begins these tokens."""
        forgotten = tuple(token_ids)
        doomed: set[_Text] = set()
        for text in reversed(self._by_recency):  # parents first
            if text.parent is None:
                num_shared = min(text.num_tokens, len(forgotten))
                if tuple(text.token_ids[:num_shared]) == forgotten[:num_shared]:
                    doomed.add(text)
            elif text.parent in doomed:
                doomed.add(text)
        for text in [text for text in self._by_recency if text in doomed]:
            self._drop(text)

    def _find(self, data: bytes) -> _Text | None:
        """The longest known text that `data` begins with."""
        found, start, hasher, view = None, 0, self._new_hasher(), memoryview(data)
        for length in self._lengths[: bisect_right(self._lengths, len(data))]:
            hasher.update(view[start:length])
            found = self._answers.get((length, hasher.digest()), found)
            start = length
        return found

    def _add_prompt(self, data: bytes, parent: _Text | None, tail: Sequence[int], token_ids: Sequence[int]) -> None:
        key = _hash_ids(array("I", token_ids))
        known = self._prompts.get(key)
        hasher, start = (parent.hasher.copy(), parent.num_bytes) if parent else (self._new_hasher(), 0)
        hasher.update(memoryview(data)[start:])
        if known is not None and known.text_key == (len(data), hasher.digest()):
            self._touch(known)
            return
        self._add(
            _Text(
                parent=parent,
                token_ids=array("I", tail),
                num_tokens=len(token_ids),
                num_bytes=len(data),
                hasher=hasher,
                prompt_key=key,
            )
        )

    def _add_answer(self, parent: _Text, pieces: Sequence[Piece]) -> _Text:
        data = "".join(piece.text for piece in pieces).encode()
        token_ids = array("I", (token_id for piece in pieces for token_id in piece.token_ids))
        hasher = parent.hasher.copy()
        hasher.update(data)
        text = _Text(
            parent=parent,
            token_ids=token_ids,
            num_tokens=parent.num_tokens + len(token_ids),
            num_bytes=parent.num_bytes + len(data),
            hasher=hasher,
        )
        known = self._answers.get(text.text_key)
        if known is not None and known.parent is parent and known.token_ids == token_ids:
            self._touch(known)
            return known
        self._add(text)
        return text

    def _add(self, text: _Text) -> None:
        if text.prompt_key is not None:
            self._prompts[text.prompt_key] = text
        else:
            self._answers[text.text_key] = text
            self._length_counts[text.num_bytes] += 1
            if self._length_counts[text.num_bytes] == 1:
                insort(self._lengths, text.num_bytes)
        if text.parent is not None:
            text.parent.num_children += 1
        self._by_recency[text] = None
        self._num_tokens += len(text.token_ids)
        self._touch(text)
        while len(self._by_recency) > self._max_texts or self._num_tokens > self._max_tokens:
            self._drop(next(iter(self._by_recency)))

    def _touch(self, text: _Text) -> None:
        for each in text.chain():
            self._by_recency.move_to_end(each)

    def _drop(self, text: _Text) -> None:
        assert not text.num_children, "what goes on from a text goes before it"
        del self._by_recency[text]
        self._num_tokens -= len(text.token_ids)
        if text.parent is not None:
            text.parent.num_children -= 1
        if text.prompt_key is not None:
            if self._prompts.get(text.prompt_key) is text:
                del self._prompts[text.prompt_key]
            return
        if self._answers.get(text.text_key) is text:
            del self._answers[text.text_key]
        self._length_counts[text.num_bytes] -= 1
        if not self._length_counts[text.num_bytes]:
            del self._length_counts[text.num_bytes]
            self._lengths.pop(bisect_right(self._lengths, text.num_bytes) - 1)

    def _new_hasher(self) -> Any:
        return hashlib.blake2b(digest_size=16, key=self._hash_key)


def _ends(pieces: Sequence[Piece], broken: bool) -> list[int]:
    """After how many pieces a known text ends, ascending."""
    stripped = len(pieces)
    while stripped and not pieces[stripped - 1].text.strip():
        stripped -= 1
    if stripped and pieces[stripped - 1].text[-1].isspace():
        stripped -= 1  # a token of both: what it stands for is tokenised anew
    ends = {stripped, len(pieces)}
    if broken:
        ends.update(range(len(pieces) - NUM_BREAKS, len(pieces)))
    return sorted(end for end in ends if end > 0)


def _encode_inside(text: str, encode: Encode) -> list[int] | None:
    """A text that follows another, from a token's beginning. None: the tokenizer cannot tell."""
    if not text:
        return []
    for anchor in _ANCHORS:
        before, token_ids = encode(anchor), encode(anchor + text)
        if token_ids[: len(before)] == before:
            return token_ids[len(before) :]
    return None


def _token_ids(text: _Text | None) -> array[int]:
    token_ids = array("I")
    if text is not None:
        for each in reversed(list(text.chain())):
            token_ids.extend(each.token_ids)
    return token_ids


def _hash_ids(token_ids: array[int]) -> bytes:
    return hashlib.blake2b(token_ids.tobytes(), digest_size=16).digest()
