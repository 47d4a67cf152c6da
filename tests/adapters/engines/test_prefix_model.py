from __future__ import annotations

from array import array

from turnwire_server.adapters.engines.prefix_model import PrefixModel, Sequence


def model(**changes) -> PrefixModel:
    return PrefixModel(**{"block_tokens": 4, "block_count": 100, "chunk": 8, **changes})


def run(cache: PrefixModel, tokens, *, decode: int = 0) -> Sequence:
    """Prefill `tokens` alone, as many steps as the model expects, then decode."""
    sequence = Sequence(array("I", tokens))
    cache.add(sequence)
    while sequence.cached + sequence.computed < sequence.prompt:
        cache.step([sequence])
    sequence.decoding = True
    for token in range(decode):
        sequence.tokens.append(1000 + token)
        cache.step([sequence])
    return sequence


def test_nothing_is_cached_at_first_and_whole_blocks_are_later():
    cache = model()
    assert run(cache, range(10)).cached == 0
    assert run(cache, range(10)).cached == 8
    assert run(cache, range(30)).cached == 8
    assert run(cache, range(30)).cached == 28


def test_the_last_token_of_a_prompt_is_always_computed():
    cache = model()
    run(cache, range(8))
    assert run(cache, range(8)).cached == 7


def test_a_block_counts_only_with_all_that_is_before_it():
    cache = model()
    run(cache, range(12))
    assert run(cache, [99, *range(1, 12)]).cached == 0
    assert run(cache, [*range(4), 99, *range(5, 12)]).cached == 4


def test_sampled_tokens_are_cached_but_for_the_last_one():
    cache = model()
    sequence = run(cache, range(6), decode=3)
    kept = list(sequence.tokens)
    assert run(cache, [*kept[:8], 1, 2]).cached == 8
    cache = model()
    sequence = run(cache, range(6), decode=1)
    sequence.tokens.append(7)  # sampled, and never computed
    assert run(cache, [*sequence.tokens, 1, 2]).cached == 4


def test_the_least_recently_used_block_is_overwritten_first():
    cache = model(block_count=2)
    run(cache, range(8))
    run(cache, range(100, 104))
    assert run(cache, range(8)).cached == 0


def test_without_blocks_nothing_is_cached():
    cache = model(block_count=0)
    run(cache, range(20))
    assert run(cache, range(20)).cached == 0


def test_a_token_that_comes_later_than_expected_lowers_the_count():
    cache = model()
    run(cache, range(40))
    sequence = Sequence(array("I", range(41)))
    cache.add(sequence)
    assert sequence.cached == 40
    cache.step([sequence])
    cache.step([sequence])  # one token was left, so the first step should have been the last
    assert sequence.cached == 41 - 16


def test_generations_come_first_and_prompts_share_what_is_left():
    cache = model()
    decoding = run(cache, [5])
    first, second = Sequence(array("I", range(10))), Sequence(array("I", range(50, 60)))
    cache.add(first)
    cache.add(second)
    cache.step([decoding, first, second])
    assert (first.computed, second.computed) == (7, 0)
    cache.step([decoding, first, second])
    assert (first.computed, second.computed) == (10, 4)
