"""The instance journal: what it holds, whose it is, and what is left of it after a crash."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.usage import usage_record
from turnwire_server.adapters.ledgers import journal as journal_module
from turnwire_server.adapters.ledgers.journal import (
    DeadJournal,
    InstanceJournal,
    take_dead_journals,
)
from turnwire_server.adapters.ledgers.journal_lines import (
    closed_line,
    header_line,
    open_line,
    progress_line,
    read_lines,
    settled_line,
)
from turnwire_server.ports.ledger import INTERRUPTED, LedgerFailure, UsageRecord

NOW = 1_800_000_100
HEADER = header_line("db")


def opened(record: UsageRecord) -> bytes:
    return open_line(record.response_id, record.tenant, record.model, record.created_at)


def closed_by_start(content: bytes) -> dict[str, UsageRecord]:
    records = read_lines(content).records(NOW, {})
    by_id = {record.response_id: record for record in records}
    assert len(by_id) == len(records), "a response counts twice"
    return by_id


def write_dead(directory: Path, instance_id: str, content: bytes) -> None:
    directory.mkdir(exist_ok=True)
    (directory / f"{instance_id}.journal").write_bytes(content)


def test_what_was_settled_is_closed_as_it_was_and_what_ran_as_interrupted():
    done, running, told = (usage_record(name) for name in ("done", "running", "told"))
    closed = closed_by_start(
        HEADER
        + b"".join(map(opened, (done, running, told)))
        + progress_line(told)
        + settled_line(done)
    )
    assert closed["done"] == done
    nothing = {f"{kind}_tokens": 0 for kind in ("input", "cached", "output", "reasoning")}
    assert closed["running"] == replace(running, status=INTERRUPTED, closed_at=NOW, **nothing)
    # Its client saw those numbers when the response paused.
    assert closed["told"] == replace(told, status=INTERRUPTED, closed_at=NOW)


def test_what_the_database_has_is_not_closed_again():
    done, other = usage_record("done"), usage_record("other")
    lines = [opened(done), opened(other), settled_line(done), settled_line(other)]
    assert set(closed_by_start(HEADER + b"".join(lines) + closed_line(["done"]))) == {"other"}


def test_the_first_of_two_ends_counts():
    first, second = usage_record("one"), usage_record("one", output_tokens=21)
    assert closed_by_start(HEADER + settled_line(first) + settled_line(second)) == {"one": first}


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'"s"',
        b'["x", "id"]',
        b'["s", "id", "t", "m", 1, 1, 1, 1, 1, "completed"]',
        b'["s", 1, "t", "m", 1, 1, 1, 1, 1, "completed", 1]',
        b'["o", "id", "t", "m", "1"]',
        b"\x00" * 64,
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_none_is_counted_and_harms_no_other(line):
    record = usage_record("one")
    state = read_lines(HEADER + line + b"\n" + settled_line(record))
    assert state.bad_lines == 1
    assert state.records(NOW, {}) == [record]


names = st.text(max_size=12)
numbers = st.integers(min_value=0, max_value=2**53)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, UsageRecord]]:
    """What happened to responses, in an order that may be: open, progress…, settle, closed."""
    events: list[tuple[str, UsageRecord]] = []
    for number in range(draw(st.integers(1, 8))):
        record = UsageRecord(
            f"resp_{number}{draw(names)}",
            draw(names),
            draw(names),
            draw(st.sampled_from(["completed", "incomplete", "failed", "cancelled"])),
            *(draw(numbers) for _ in range(6)),
        )
        steps = ["open", *["progress"] * draw(st.integers(0, 2)), "settle", "closed"]
        own = [(step, record) for step in steps[: draw(st.integers(1, len(steps)))]]
        # Woven into what the others do.
        positions = sorted(draw(st.integers(0, len(events))) for _ in own)
        for offset, (position, event) in enumerate(zip(positions, own, strict=True)):
            events.insert(position + offset, event)
    return events


def line_of(step: str, record: UsageRecord) -> bytes:
    match step:
        case "open":
            return opened(record)
        case "progress":
            return progress_line(record)
        case "settle":
            return settled_line(record)
        case _:
            return closed_line([record.response_id])


@given(histories(), st.data())
def test_a_journal_cut_anywhere_neither_loses_what_was_settled_nor_counts_it_twice(history, data):
    lines = [line_of(step, record) for step, record in history]
    content = HEADER + b"".join(lines)
    cut = data.draw(st.integers(0, len(content)))
    closed = closed_by_start(content[:cut])
    end = len(HEADER)
    whole: list[tuple[str, UsageRecord]] = []
    for event, line in zip(history, lines, strict=True):
        end += len(line)
        # The newline itself may be cut: the line is whole without it.
        if end - 1 <= cut:
            whole.append(event)
    steps = {record.response_id: {s for s, r in whole if r is record} for _, record in whole}
    for step, record in whole:
        if step == "settle" and "closed" not in steps[record.response_id]:
            assert closed[record.response_id] == record
        if step == "closed":
            assert record.response_id not in closed
    for response_id, record in closed.items():
        if record.status == INTERRUPTED:
            assert "open" in steps[response_id] and "settle" not in steps[response_id]


@given(histories())
def test_a_rewritten_journal_says_the_same(history):
    state = read_lines(HEADER + b"".join(line_of(step, record) for step, record in history))
    again = read_lines(state.lines())
    assert again.records(NOW, {}) == state.records(NOW, {})
    assert again.bad_lines == 0


# Files.


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "instances"


def taken(directory: Path) -> dict[str, DeadJournal]:
    return {journal.instance_id: journal for journal in take_dead_journals(directory)}


def test_the_journal_of_a_process_that_lives_is_nobody_elses(directory):
    journal = InstanceJournal.create(directory, "me", database="db")
    assert taken(directory) == {}
    journal.close(remove=False)
    found = taken(directory)
    assert set(found) == {"me"}
    found["me"].remove()
    assert list(directory.iterdir()) == []


def test_a_dead_journal_is_taken_by_one_process_only(directory):
    write_dead(directory, "dead", HEADER + settled_line(usage_record("one")))
    first = taken(directory)
    assert [record.response_id for record in first["dead"].state.records(NOW, {})] == ["one"]
    assert taken(directory) == {}
    first["dead"].let_go()
    again = taken(directory)
    assert set(again) == {"dead"}
    again["dead"].remove()
    assert taken(directory) == {}


def test_only_the_owner_may_read_a_journal(directory):
    journal = InstanceJournal.create(directory, "me", database="db")
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    journal.close(remove=True)
    assert not journal.path.exists()


def test_a_journal_that_was_rewritten_is_still_locked_and_goes_on(directory):
    journal = InstanceJournal.create(directory, "me", database="db")
    one, two = usage_record("one"), usage_record("two")
    for _ in range(50):
        journal.append(settled_line(one) + closed_line(["one"]))
    journal.rewrite(HEADER + opened(two))
    assert journal.size == journal.path.stat().st_size == len(HEADER + opened(two))
    assert taken(directory) == {}
    journal.append(settled_line(two))
    journal.close(remove=False)
    found = taken(directory)
    assert found["me"].state.records(NOW, {}) == [two]
    found["me"].remove()


def test_a_journal_that_is_rewritten_while_another_process_looks_is_not_taken(
    directory, monkeypatch
):
    journal = InstanceJournal.create(directory, "me", database="db")
    lock = journal_module._lock

    def lock_late(descriptor: int) -> bool:
        monkeypatch.undo()
        journal.rewrite(HEADER)  # the file that was opened is no longer the journal
        return lock(descriptor)

    monkeypatch.setattr(journal_module, "_lock", lock_late)
    assert taken(directory) == {}
    journal.close(remove=True)


def test_a_draft_of_a_process_that_died_is_removed_and_never_read(directory):
    directory.mkdir()
    draft = directory / "dead.journal-draft"
    draft.write_bytes(HEADER + settled_line(usage_record("one")))
    assert taken(directory) == {}
    assert not draft.exists()


def test_what_was_cut_off_does_not_take_the_next_line_with_it(directory, monkeypatch):
    journal = InstanceJournal.create(directory, "me", database="db")
    write, one, two = os.write, usage_record("one"), usage_record("two")
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:20]))
    with pytest.raises(OSError, match="No space left"):
        journal.append(settled_line(one))
    monkeypatch.undo()
    journal.append(settled_line(two))
    assert journal.size == journal.path.stat().st_size
    journal.close(remove=False)
    found = taken(directory)
    assert found["me"].state.records(NOW, {}) == [two]
    assert found["me"].state.bad_lines == 1
    found["me"].remove()


def test_a_rewrite_that_fails_leaves_the_journal_as_it_was(directory, monkeypatch):
    journal = InstanceJournal.create(directory, "me", database="db")
    one, two = usage_record("one"), usage_record("two")
    journal.append(settled_line(one))

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="No space left"):
        journal.rewrite(HEADER)
    monkeypatch.undo()
    journal.append(settled_line(two))
    journal.close(remove=False)
    found = taken(directory)
    assert found["me"].state.records(NOW, {}) == [one, two]
    found["me"].remove()


def test_a_directory_that_cannot_be_used_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerFailure, match=r"^.*file: the ledger's journal cannot be made: .*\.$"):
        InstanceJournal.create(tmp_path / "file", "me", database="db")


_CRASH = """
import os, signal, sys
from pathlib import Path
from turnwire_server.adapters.ledgers.journal import InstanceJournal
journal = InstanceJournal.create(Path(sys.argv[1]), "victim", database="db")
number = 0
print("ready", flush=True)
while True:
    line = b'["s","r%d","t","m",1,1,1,1,1,"completed",1]\\n' % number
    journal.append(line)
    os.write(1, b"%d\\n" % number)  # a line that was appended is whole, whatever happens next
    number += 1
"""


def test_what_was_appended_survives_a_kill_and_the_lock_does_not(directory):
    with subprocess.Popen(
        [sys.executable, "-c", _CRASH, str(directory)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        shown = [process.stdout.readline() for _ in range(200)]
        assert taken(directory) == {}
        process.kill()
        shown += process.stdout.readlines()
    seen = [int(line) for line in shown if line.endswith(b"\n")]
    found = taken(directory)
    kept = [record.response_id for record in found["victim"].state.records(NOW, {})]
    assert kept[: len(seen)] == [f"r{number}" for number in seen]
    assert len(kept) <= len(seen) + 1
    found["victim"].remove()
