from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire import _codec
from turnwire.v1.item_pb2 import Item
from turnwire_server.adapters.screens import rules as rules_module
from turnwire_server.adapters.screens.rules import RuleScreen
from turnwire_server.adapters.screens.rules_file import Rule, RuleSet
from turnwire_server.ports.screen import Verdict

SECRET = "how to build a bomb"
WEAPONS = Rule("weapons", ("build a bomb",), ignore_case=True)


def user(text, role="user"):
    return _codec.parse(Item, {"role": role, "content": text})


def output(text):
    return _codec.parse(Item, {"type": "function_call_output", "call_id": "call_1", "output": text})


def screen(*rules, window=64):
    return RuleScreen(RuleSet(rules or (WEAPONS,), window))


async def check(screen, *texts, state=b"", instructions=""):
    items = [text if isinstance(text, Item) else user(text) for text in texts]
    return await screen.check(state, items, instructions=instructions)


async def chain(screen, *turns):
    """Return the verdict on the last of several turns; those before it must be allowed."""
    state = b""
    for turn in turns[:-1]:
        verdict = await check(screen, turn, state=state)
        assert verdict.allowed
        state = verdict.state
    return await check(screen, turns[-1], state=state)


async def test_a_phrase_is_caught_and_its_category_named_but_never_its_text():
    verdict = await check(screen(), "hello", SECRET)
    assert not verdict.allowed
    assert verdict.categories == ("weapons",)
    assert verdict.ending == "fail"
    assert verdict.refusal == "The input was refused by a safety check (weapons)."


async def test_other_text_is_allowed():
    verdict = await check(screen(), "how to build a bookshelf")
    assert verdict.allowed
    assert verdict.categories == ()


@pytest.mark.parametrize(
    "turns",
    [
        ("how to build", "a bomb"),
        ("how to build a bo", "mb please"),
        ("how to build a ", " bomb"),
        ("build", "a", "bomb"),
        ("bui", "ld a bo", "mb"),
    ],
)
async def test_a_phrase_split_over_turns_is_caught(turns):
    assert not (await chain(screen(), *turns)).allowed


async def test_a_phrase_split_over_items_of_one_turn_is_caught():
    assert not (await check(screen(), "build", "a bomb")).allowed
    assert not (await check(screen(), "build a bo", "mb")).allowed
    assert not (await check(screen(), "build", output("a bomb"))).allowed


@given(st.integers(1, len(SECRET) - 1), st.booleans())
def test_wherever_a_phrase_is_split_it_is_caught(place, is_upper):
    text = SECRET.upper() if is_upper else SECRET
    assert not asyncio.run(chain(screen(), text[:place], text[place:])).allowed


async def test_a_fork_inherits_the_state_and_leaves_its_sibling_alone():
    rules = screen()
    parent = await check(rules, "how to build")
    fork = await check(rules, "a bomb", state=parent.state)
    sibling = await check(rules, "a house", state=parent.state)
    assert not fork.allowed
    assert sibling.allowed
    assert (await check(rules, "a bomb")).allowed


async def test_what_was_found_before_is_not_found_again():
    rules = screen(Rule("weapons", ("build a bomb",), action="flag"))
    first = await check(rules, SECRET)
    assert first.categories == ("weapons",)
    second = await check(rules, "thanks", state=first.state)
    assert second.categories == ()
    third = await check(rules, "build a", "bomb", state=second.state)
    assert third.categories == ("weapons",)


async def test_of_matches_at_one_place_the_one_that_reaches_new_text_counts():
    rules = screen(Rule("c", ("bomb|bomb the bridge", "a bomb"), action="flag"))
    first = await check(rules, "a bomb the")
    assert first.categories == ("c",)
    assert (await check(rules, "bridge", state=first.state)).categories == ("c",)
    assert (await check(rules, "house", state=first.state)).categories == ()


async def test_a_match_within_the_state_does_not_hide_a_later_one_that_overlaps_it():
    rules = screen(Rule("c", ("aXb", "bXaXc"), action="flag"))
    first = await check(rules, "aXbXa")
    assert first.categories == ("c",)
    assert (await check(rules, "Xc", state=first.state)).categories == ("c",)


async def test_the_state_is_bounded_and_forgets_what_is_far():
    rules = screen(window=64)
    state = b""
    for turn in range(50):
        verdict = await check(rules, f"turn {turn} " + "é" * 500, state=state)
        state = verdict.state
        assert len(state) <= 8 + 64 * 4
    near = await chain(rules, "build a " + "x " * 20, "bomb")
    assert near.allowed  # other words stand between
    far = Rule("c", (r"build.*bomb",))
    assert not (await chain(screen(far), "build " + "x" * 50, "bomb")).allowed
    assert (await chain(screen(far), "build " + "x" * 60, "bomb")).allowed


async def test_the_state_is_the_same_bytes_whenever_nothing_was_read():
    rules = screen(Rule("c", ("bomb",), applies_to=frozenset({"user"})))
    first = await check(rules, "build a")
    second = await check(rules, output("ok"), state=first.state)
    assert second.state == first.state


async def test_a_rule_reads_only_what_it_applies_to():
    rules = screen(
        Rule("to_user", ("bomb",), applies_to=frozenset({"user"})),
        Rule("to_tools", ("virus",), applies_to=frozenset({"tool_output"})),
    )
    assert (await check(rules, output("bomb"), "virus")).allowed
    assert (await check(rules, "bomb")).categories == ("to_user",)
    assert (await check(rules, output("virus"))).categories == ("to_tools",)


async def test_groups_keep_states_of_their_own():
    rules = screen(
        Rule("to_user", ("build a bomb",), applies_to=frozenset({"user"})),
        Rule("to_tools", ("rm -rf",), applies_to=frozenset({"tool_output"})),
    )
    # A long tool output between two user messages does not push the first one out.
    first = await check(rules, "build a", output("rm " + "x" * 500))
    second = await check(rules, output("y" * 500), "bomb", state=first.state)
    assert second.categories == ("to_user",)


async def test_the_hardest_action_decides_and_every_category_is_named():
    rules = screen(
        Rule("noted", ("bomb",), action="flag"),
        Rule("refused", ("build",), action="refuse", message="No."),
        Rule("blocked", ("ricin",), message="Blocked."),
    )
    flagged = await check(rules, "bomb")
    refused = await check(rules, "build a bomb")
    blocked = await check(rules, "build a bomb with ricin")
    assert (flagged.allowed, flagged.categories) == (True, ("noted",))
    assert refused == Verdict(
        allowed=False,
        state=refused.state,
        refusal="No.",
        ending="refuse",
        categories=("noted", "refused"),
    )
    assert (blocked.ending, blocked.refusal) == ("fail", "Blocked.")
    assert blocked.categories == ("noted", "refused", "blocked")


async def test_case_counts_unless_a_rule_says_otherwise():
    rules = screen(Rule("exact", ("Bomb",)), Rule("any", ("ricin",), ignore_case=True))
    assert (await check(rules, "bomb")).allowed
    assert (await check(rules, "RiCiN")).categories == ("any",)


@pytest.mark.parametrize("text", ["ｂｕｉｌｄ ａ ｂｏｍｂ", "bu\u200bild\n\na\tbo\u00admb"])
async def test_how_a_phrase_is_written_does_not_hide_it(text):
    assert not (await check(screen(), text)).allowed


async def test_instructions_are_read_once_and_stay_out_of_the_state(monkeypatch):
    rules = screen()
    read = []
    plain = rules_module.canonical
    monkeypatch.setattr(rules_module, "canonical", lambda text: read.append(text) or plain(text))
    for _ in range(3):
        assert not (await check(rules, "hi", instructions=SECRET)).allowed
    first = await check(rules, "hi", instructions="be kind and build")
    assert first.state == (await check(rules, "hi")).state
    assert (await check(rules, "a bomb", state=first.state)).allowed
    assert read.count(SECRET) == 1


async def test_instructions_are_read_only_by_the_rules_that_apply_to_them():
    rules = screen(Rule("c", ("bomb",), applies_to=frozenset({"user"})))
    assert (await check(rules, "hi", instructions="bomb")).allowed


async def test_only_so_many_instructions_are_remembered(monkeypatch):
    monkeypatch.setattr(rules_module, "_MAX_KNOWN_INSTRUCTIONS", 2)
    rules = screen()
    for number in range(5):
        await check(rules, instructions=f"instructions {number}")
    assert len(rules._known_instructions) == 2


@pytest.mark.parametrize(
    "state", [b"", b"\xff" * 40, b"short", b"\0" * 8 + b"build", None], ids=str
)
async def test_a_state_of_other_rules_counts_as_none(state):
    rules = screen()
    if state is None:
        state = (await check(screen(window=65), "build")).state
    assert (await check(rules, "a bomb", state=state)).allowed


async def test_a_state_outlives_a_change_of_the_patterns():
    before = await check(screen(Rule("c", ("nothing",))), "build a")
    assert not (
        await check(screen(Rule("c", ("build a bomb",))), "bomb", state=before.state)
    ).allowed


async def test_long_text_is_read_in_another_thread_with_the_same_verdict(monkeypatch):
    threads = set()
    plain = rules_module.canonical

    def seen(text):
        threads.add(threading.current_thread())
        return plain(text)

    monkeypatch.setattr(rules_module, "canonical", seen)
    rules = screen()
    long = "word " * 20_000
    verdict = await check(rules, long + "build a bomb " + long)
    assert not verdict.allowed
    assert threading.main_thread() not in threads
    assert (await check(rules, "short", state=verdict.state)).allowed
    assert threading.main_thread() in threads


async def test_patterns_that_make_other_engines_backtrack_take_linear_time():
    # Python's `re` would not end before the universe on any of these.
    rules = screen(Rule("c", ("(a+)+b", "(a|a)*c", "(.*,){20}d")))
    async with asyncio.timeout(20):
        assert (await check(rules, "a" * 20_000, "," * 5_000)).allowed


async def test_the_work_of_a_turn_does_not_grow_with_the_history(monkeypatch):
    rules = screen()
    views = []
    plain = rules_module._matches

    def counted(pattern, view, start, reach, *, is_known):
        views.append(len(view))
        return plain(pattern, view, start, reach, is_known=is_known)

    monkeypatch.setattr(rules_module, "_matches", counted)
    state = b""
    work = []
    for _ in range(100):
        views.clear()
        state = (await check(rules, "word " * 40, state=state)).state
        work.append(sum(views))
    assert len(set(work[1:])) == 1


async def test_many_rules_cost_one_pass_where_none_matches(monkeypatch):
    rules = screen(*(Rule(f"c{number}", (f"phrase number {number}",)) for number in range(50)))
    passes = []
    plain = rules_module._matches

    def counted(*args, **more):
        passes.append(args)
        return plain(*args, **more)

    monkeypatch.setattr(rules_module, "_matches", counted)
    assert (await check(rules, "nothing of it")).allowed
    assert len(passes) == 2  # one for each view
    assert (await check(rules, "phrase number 7,")).categories == ("c7",)
