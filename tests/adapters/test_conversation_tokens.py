"""Which tokens a text gets once an answer was sent. Here a token is a character, unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exllamav3_adapters.conversation_tokens import NUM_BREAKS, ConversationTokens, Piece

PROMPT = "<user>hi\n<assistant>"


def usual(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def pairs(text: str) -> list[int]:
    """A tokenizer that joins two letters of a kind."""
    token_ids: list[int] = []
    for letter in text:
        if token_ids and token_ids[-1] == ord(letter):
            token_ids[-1] = 1_000_000 + ord(letter)
        else:
            token_ids.append(ord(letter))
    return token_ids


def spaced(text: str) -> list[int]:
    """A tokenizer that puts a space before each text, as Llama's and T5's do."""
    return usual(f" {text}")


def generated(text: str, base: int = 2_000_000) -> list[Piece]:
    """An answer in tokens that no tokenizer gives."""
    return [Piece((base + ord(letter),), letter) for letter in text]


def ids_of(pieces: Sequence[Piece]) -> tuple[int, ...]:
    return tuple(token for piece in pieces for token in piece.token_ids)


def answered(known: ConversationTokens, prompt: str, pieces: Sequence[Piece], **options: bool) -> tuple[int, ...]:
    """Renders a prompt and answers it. The tokens of both."""
    token_ids = known.encode(prompt, usual)
    known.remember(token_ids, pieces, **options)
    return (*token_ids, *ids_of(pieces))


def test_text_that_nothing_is_known_of_is_tokenised_as_usual() -> None:
    assert ConversationTokens().encode(PROMPT, usual) == tuple(usual(PROMPT))


def test_a_follow_up_keeps_the_tokens_of_prompt_and_answer() -> None:
    known = ConversationTokens()
    token_ids = answered(known, PROMPT, generated("hello"))
    assert known.encode(f"{PROMPT}hello\n<user>", usual) == (*token_ids, *usual("\n<user>"))


def test_the_deepest_of_many_turns_is_found() -> None:
    known, text, token_ids = ConversationTokens(), "", ()
    for turn in range(20):
        text += f"<user>{turn}<assistant>"
        token_ids = answered(known, text, generated(f"answer {turn}"))
        text += f"answer {turn}"
    assert known.encode(f"{text}!", usual) == (*token_ids, ord("!"))
    assert known.num_tokens == len(token_ids) + 1, "what turns share counts once"


def test_a_prompt_alone_is_not_known() -> None:
    known = ConversationTokens()
    known.encode("aa", pairs)
    assert known.encode("aaa", pairs) == (1_000_000 + ord("a"), ord("a"))
    token_ids = known.encode("ba", pairs)
    known.remember(token_ids, [])
    assert known.encode("baa", pairs) == (ord("b"), 1_000_000 + ord("a"))


def test_a_branch_keeps_what_it_shares() -> None:
    known = ConversationTokens()
    first = answered(known, PROMPT, generated("one"))
    text = f"{PROMPT}one<user>go on<assistant>"
    answered(known, text, generated("two"))
    assert known.encode(f"{PROMPT}one<user>stop<assistant>", usual) == (*first, *usual("<user>stop<assistant>"))
    assert known.encode(f"{text}three", usual) == (*first, *usual("<user>go on<assistant>three"))


def test_several_answers_to_one_prompt_are_known_side_by_side() -> None:
    known = ConversationTokens()
    one = answered(known, PROMPT, generated("one"))
    two = answered(known, PROMPT, generated("two"))
    assert known.encode(f"{PROMPT}one.", usual)[:-1] == one
    assert known.encode(f"{PROMPT}two.", usual)[:-1] == two


def test_the_same_text_in_other_tokens_keeps_the_latest() -> None:
    known = ConversationTokens()
    answered(known, PROMPT, generated("one"))
    later = answered(known, PROMPT, generated("one", base=3_000_000))
    assert known.encode(f"{PROMPT}one.", usual)[:-1] == later


def test_an_answer_whose_prompt_has_no_known_text_is_not_remembered() -> None:
    known = ConversationTokens()
    known.remember(usual(PROMPT), generated("hello"))
    assert len(known) == 0
    assert known.encode(f"{PROMPT}hello", usual) == tuple(usual(f"{PROMPT}hello"))


def test_text_in_many_scripts_is_found_by_its_bytes() -> None:
    known = ConversationTokens()
    token_ids = answered(known, "世界?", [Piece((1, 2, 3), "🦙"), Piece((4,), "é")])
    assert known.encode("世界?🦙é, и", usual) == (*token_ids, *usual(", и"))


# What follows a known text


def test_what_follows_is_not_joined_with_the_answer() -> None:
    known = ConversationTokens()
    token_ids = known.encode("a", pairs)
    known.remember(token_ids, [Piece((7,), "b")])
    assert known.encode("abba", pairs) == (*token_ids, 7, ord("b"), ord("a"))


@pytest.mark.parametrize("rest", ["\n\n.", "aab", "x", " x"])
def test_what_follows_is_tokenised_as_the_middle_of_a_text(rest: str) -> None:
    known = ConversationTokens()
    token_ids = known.encode(PROMPT, spaced)
    known.remember(token_ids, generated("hello"))
    assert known.encode(f"{PROMPT}hello{rest}", spaced) == (*token_ids, *ids_of(generated("hello")), *usual(rest))


def test_where_the_tokenizer_leaves_that_open_the_whole_is_tokenised_as_usual() -> None:
    known = ConversationTokens()
    token_ids = known.encode(PROMPT, usual)
    known.remember(token_ids, generated("hello"))

    def backwards(text: str) -> list[int]:
        return usual(text[::-1])

    text = f"{PROMPT}hello."
    assert known.encode(text, backwards) == tuple(backwards(text))


def test_nothing_follows() -> None:
    known = ConversationTokens()
    token_ids = answered(known, PROMPT, generated("hello"))
    assert known.encode(f"{PROMPT}hello", usual) == token_ids


# What templates and readers take away


def test_an_answer_is_known_without_white_space_at_its_end() -> None:
    known = ConversationTokens()
    token_ids = answered(known, PROMPT, generated("hello \n"))
    assert known.encode(f"{PROMPT}hello<end>", usual) == (*token_ids[:-2], *usual("<end>"))
    assert known.encode(f"{PROMPT}hello \n<end>", usual) == (*token_ids, *usual("<end>"))


def test_a_last_token_of_which_white_space_was_stripped_is_tokenised_anew() -> None:
    known = ConversationTokens()
    token_ids = known.encode(PROMPT, usual)
    known.remember(token_ids, [*generated("hello"), Piece((9,), ".\n\n"), Piece((8,), "\n")])
    assert known.encode(f"{PROMPT}hello.<end>", usual) == (*token_ids, *ids_of(generated("hello")), *usual(".<end>"))


def test_an_answer_of_white_space_is_known_whole() -> None:
    known = ConversationTokens()
    token_ids = answered(known, PROMPT, generated(" \n"))
    assert known.encode(f"{PROMPT} \n<end>", usual) == (*token_ids, *usual("<end>"))
    assert known.encode(f"{PROMPT}<end>", usual) == tuple(usual(f"{PROMPT}<end>"))


@pytest.mark.parametrize("num_missed", [0, 1, NUM_BREAKS])
def test_a_broken_answer_may_end_in_any_of_its_last_pieces(num_missed: int) -> None:
    known = ConversationTokens()
    text = "a long answer that somebody has stopped"
    read = text[: len(text) - num_missed]
    token_ids = answered(known, PROMPT, generated(text), broken=True)
    kept = token_ids[: len(token_ids) - num_missed]
    assert known.encode(f"{PROMPT}{read}<end>", usual) == (*kept, *usual("<end>"))


def test_a_whole_answer_ends_at_its_end() -> None:
    known = ConversationTokens()
    answered(known, PROMPT, generated("hello"))
    assert known.encode(f"{PROMPT}hell<end>", usual) == tuple(usual(f"{PROMPT}hell<end>"))


# Dropping


def test_an_answer_that_is_not_to_be_kept_takes_its_prompt_along() -> None:
    known = ConversationTokens()
    known.discard(known.encode(PROMPT, usual))
    known.discard(usual("never seen"))
    assert (len(known), known.num_tokens) == (0, 0)


def test_a_prompt_that_another_answer_needs_stays() -> None:
    known = ConversationTokens()
    token_ids = answered(known, PROMPT, generated("hello"))
    known.discard(known.encode(PROMPT, usual))
    assert known.encode(f"{PROMPT}hello", usual) == token_ids


@pytest.mark.parametrize("forgotten", ["<user>", PROMPT, f"{PROMPT}more"])
def test_conversations_that_begin_with_forgotten_tokens_are_dropped(forgotten: str) -> None:
    known = ConversationTokens()
    answered(known, PROMPT, generated("one"))
    answered(known, f"{PROMPT}one, two", generated("three"))
    other = answered(known, "<system>x", generated("one"))
    known.forget(usual(forgotten))
    assert known.encode(f"{PROMPT}one, two", usual) == tuple(usual(f"{PROMPT}one, two"))
    assert known.encode("<system>xone", usual) == other


def test_an_answer_to_a_forgotten_prompt_is_not_remembered() -> None:
    known = ConversationTokens()
    token_ids = known.encode(PROMPT, usual)
    known.forget(token_ids)
    known.remember(token_ids, generated("hello"))
    assert len(known) == 0


def test_the_conversation_that_was_used_least_recently_goes_first() -> None:
    known = ConversationTokens(max_texts=4)
    first = answered(known, "1", generated("one"))
    answered(known, "2", generated("two"))
    known.encode("1one", usual)  # a prompt of its own, for which the answer to "2" goes
    assert known.encode("1one", usual) == first
    assert known.encode("2two", usual) == tuple(usual("2two"))


def test_a_text_that_is_too_long_is_not_remembered() -> None:
    known = ConversationTokens(max_tokens=4)
    answered(known, "123", generated("one \n"))
    answered(known, "1234567", generated("one"))
    assert known.num_tokens <= 4


conversations = st.lists(
    st.tuples(st.sampled_from(["", "aone", "aonea", "b"]), st.text("ab<", max_size=3), st.text("one \n", max_size=4)),
    max_size=30,
)


@given(conversations, st.integers(1, 12), st.integers(1, 60), st.sampled_from(["a", "", "b<"]))
def test_tokens_always_spell_the_text_within_the_bounds(
    turns: list[tuple[str, str, str]], max_texts: int, max_tokens: int, forgotten: str
) -> None:
    known = ConversationTokens(max_texts=max_texts, max_tokens=max_tokens)
    for number, (start, words, said) in enumerate(turns):
        text = start + words
        token_ids = known.encode(text, usual)
        assert "".join(chr(token % 1_000_000) for token in token_ids) == text
        if number % 5 == 4:
            known.forget(usual(forgotten))
        elif number % 5 == 3:
            known.discard(token_ids)
        else:
            known.remember(token_ids, generated(said, base=1_000_000 * (number + 1)), broken=number % 2 == 0)
        assert len(known) <= max_texts
        assert known.num_tokens <= max_tokens
    known.forget([])
    assert (len(known), known.num_tokens, known._lengths, known._answers, known._prompts) == (0, 0, [], {}, {})
