from __future__ import annotations

import dataclasses

import pytest

from turnwire_server.adapters.screens.canonical import SOURCES
from turnwire_server.adapters.screens.rules import RuleScreen
from turnwire_server.adapters.screens.rules_file import (
    Rule,
    RuleSet,
    RulesFailure,
    parse_rules,
    read_rules,
)

WHOLE = """
window = 256

[[rules]]
category = "weapons"
action = "refuse"
applies_to = ["user", "tool_output"]
ignore_case = true
message = "Not that."
patterns = ['build a bomb', "ricin"]

[[rules]]
category = "privacy/cards"
patterns = ['\\b\\d{16}\\b']
"""


def parse(text):
    return parse_rules(text, origin="rules.toml")


def test_a_file_holds_rules_with_defaults():
    assert parse(WHOLE) == RuleSet(
        rules=(
            Rule(
                category="weapons",
                patterns=("build a bomb", "ricin"),
                action="refuse",
                applies_to=frozenset({"user", "tool_output"}),
                ignore_case=True,
                message="Not that.",
            ),
            Rule(
                category="privacy/cards", patterns=(r"\b\d{16}\b",), applies_to=frozenset(SOURCES)
            ),
        ),
        window=256,
    )


def rule(line):
    return f'[[rules]]\ncategory = "c"\npatterns = ["x"]\n{line}'


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", "rules"),
        ("rules = []", "rules"),
        ("rules = [1]", r"rules\[0\]"),
        ("window = 1\n" + rule(""), "window"),
        ("window = true\n" + rule(""), "window"),
        ("windows = 100\n" + rule(""), "windows: unknown key"),
        (rule("pattern = 'x'"), r"rules\[0\]\.pattern: unknown key"),
        ("[[rules]]\npatterns = ['x']", r"rules\[0\]\.category"),
        ("[[rules]]\ncategory = 'a b'\npatterns = ['x']", r"rules\[0\]\.category"),
        ("[[rules]]\ncategory = 'c'", r"rules\[0\]\.patterns"),
        ("[[rules]]\ncategory = 'c'\npatterns = 'x'", r"rules\[0\]\.patterns"),
        ("[[rules]]\ncategory = 'c'\npatterns = ['x', '']", r"rules\[0\]\.patterns\[1\]"),
        ("[[rules]]\ncategory = 'c'\npatterns = ['^x']", r"rules\[0\]\.patterns\[0\]"),
        ("[[rules]]\ncategory = 'c'\npatterns = ['x$']", r"rules\[0\]\.patterns\[0\]"),
        ("[[rules]]\ncategory = 'c'\npatterns = ['x\\z']", r"rules\[0\]\.patterns\[0\]"),
        (rule("action = 'deny'"), r"rules\[0\]\.action: block or refuse or flag"),
        (rule("applies_to = []"), r"rules\[0\]\.applies_to"),
        (rule("applies_to = ['users']"), r"rules\[0\]\.applies_to"),
        (rule("applies_to = [['user']]"), r"rules\[0\]\.applies_to"),
        (rule("ignore_case = 1"), r"rules\[0\]\.ignore_case"),
        (rule(f"message = '{'x' * 401}'"), r"rules\[0\]\.message"),
        ("rules = ", "is not TOML"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_path(text, path):
    with pytest.raises(RulesFailure, match=rf"^rules\.toml: {path}.*\.$"):
        parse(text)


@pytest.mark.parametrize(
    ("pattern", "is_usable"), [(r"5\$", True), (r"a\\\$", True), (r"a\\$", False), (r"\\z", True)]
)
def test_only_an_anchor_that_is_meant_as_one_is_refused(pattern, is_usable):
    text = f"[[rules]]\ncategory = 'c'\npatterns = ['{pattern}']"
    if is_usable:
        assert parse(text).rules[0].patterns == (pattern,)
    else:
        with pytest.raises(RulesFailure, match="tied to"):
            parse(text)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("(", r"rules\[0\]\.patterns\[0\]: not a pattern"),
        ("a)|(b", r"rules\[0\]\.patterns\[0\]: not a pattern"),
        ("(?=x)", r"rules\[0\]\.patterns\[0\]: not a pattern"),
        (r"(x)\1", r"rules\[0\]\.patterns\[0\]: not a pattern"),
        ("((x{50}){50}){50}", r"rules\[0\]\.patterns\[0\]: not a pattern"),
        ("x*", r"rules\[0\]\.patterns\[0\]: it matches where there is nothing"),
        (r"\b", r"rules\[0\]\.patterns\[0\]: it matches where there is nothing"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused_before_the_first_text(pattern, path):
    with pytest.raises(RulesFailure, match=path):
        RuleScreen(RuleSet((Rule("c", (pattern,)),)))


def test_without_re2_the_operator_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "re2", None)
    with pytest.raises(RulesFailure, match=r"pip install 'turnwire\[screen\]'"):
        RuleScreen(parse(WHOLE))


def test_a_file_is_read(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(WHOLE, encoding="utf-8")
    assert read_rules(path) == parse(WHOLE)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"\xff", "not UTF-8"), (b"#" * (2**20 + 1), "longer than"), (None, "cannot be read")],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_name(tmp_path, content, problem):
    path = tmp_path / "rules.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RulesFailure, match=rf"rules\.toml: .*{problem}"):
        read_rules(path)


def test_the_fingerprint_changes_with_what_a_state_depends_on_and_no_more():
    rules = parse(WHOLE)
    first, second = rules.rules
    other_words = dataclasses.replace(
        rules, rules=(dataclasses.replace(first, patterns=("z",)), second)
    )
    other_window = dataclasses.replace(rules, window=257)
    other_order = dataclasses.replace(rules, rules=(second, first))
    assert other_words.fingerprint == rules.fingerprint
    assert len({rules.fingerprint, other_window.fingerprint, other_order.fingerprint}) == 3
