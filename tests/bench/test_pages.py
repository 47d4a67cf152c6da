"""The tables of the pages are what the results files say."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from turnwire_bench.pages import PAGES, filled_in, markdown_of

ROOT = Path(__file__).parents[2]
ROW = {
    "scenario": "s",
    "profile": "loopback",
    "rate": 1000.0,
    "transport": "ws",
    "e2e_s": 1.5,
    "ttft_ms_p50": 2.5,
    "overhead_ms_p50": 1.25,
    "overhead_ms_p99": 3.0,
    "bytes_up": 1000,
}
SETTINGS = {"scenarios": [{"name": "s", "about": "A run."}]}
RESULT = {
    "meta": {"command": "transports", "settings": SETTINGS},
    "rows": [ROW, {**ROW, "transport": "grpc", "bytes_up": None}],
}
CARRIED = {
    "transport": "grpc",
    "rate": 65.0,
    "sessions": 200,
    "server_cores": 0.98,
    "client_cores": 0.41,
}


def lines_of(command, **result):
    meta = {"command": command, "settings": result.pop("settings", {})}
    return markdown_of({"meta": meta, **result}).splitlines()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_its_results_say(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "<!-- bench: " in text
    assert filled_in(text, ROOT) == text


def test_a_block_is_what_the_file_says(tmp_path):
    (tmp_path / "r.json").write_bytes(orjson.dumps(RESULT))
    page = "before\n<!-- bench: r.json -->\nold\n<!-- /bench -->\nafter"
    filled = filled_in(page, tmp_path)
    assert "old" not in filled
    assert "| WebSocket session | 1.50 | 2.5 | 1.2 | 1 |\n| gRPC session |" in filled
    assert filled.startswith("before\n") and filled.endswith("<!-- /bench -->\nafter")
    assert filled_in(filled, tmp_path) == filled


def test_a_table_comes_for_each_place():
    rows = [ROW, {**ROW, "profile": "internet"}]
    lines = lines_of("transports", settings=SETTINGS, rows=rows)
    assert sum("Network: " in line for line in lines) == 2
    assert sum(line == "|---|---|---|---|---|" for line in lines) == 2


def test_a_bar_says_whether_it_is_met():
    bar = {
        "what": "refused",
        "direction": "at most",
        "limit": 0.0,
        "unit": "",
        "measured": 0.0,
        "spread": [0.0, 0.0],
        "met": True,
    }
    high = {**bar, "direction": "at least", "limit": 1.7, "unit": "×", "met": False}
    high |= {"measured": 1.6123, "spread": [1.5, 1.66666]}
    assert lines_of("bars", bars=[bar, high])[2:] == [
        "| refused | ≤ 0 | 0 (0 to 0) | yes |",
        "| refused | ≥ 1.7 × | 1.61 (1.5 to 1.67) × | no |",
    ]


def test_bars_of_several_repetitions_say_how_many_and_what_a_ratio_is_of():
    bar = {"what": "a ratio", "direction": "at most", "limit": 1.1, "unit": "×", "met": False}
    bar |= {"measured": 1.21, "spread": [1.0, 1.5], "repetitions": 3}
    about, _, head, _, line = lines_of("bars", bars=[{**bar, "by_repetition": [1.0, 1.5, 1.21]}])
    assert "A ratio is one of two figures of the same repetition" in about
    assert head == "| bar | limit | measured (lowest to highest) | repetitions | met |"
    assert line == "| a ratio | ≤ 1.1 × | 1.21 (1 to 1.5) × | 3 | no |"


def test_a_search_says_what_a_core_carries_and_what_idle_sessions_hold():
    row = {**CARRIED, "sessions_per_core": 200.0, "idle_kb_per_session": 98.4}
    row |= {"delay_ms_p50": 1.26, "delay_ms_p99": 48.0}
    idle = {"transport": "ws", "count": 5000, "connects_per_second": 1234.5}
    idle |= {"kb_per_session": 101.5, "kb_at_rest": None, "kb_kept_after_close": 9.6}
    nothing = {**row, "sessions": 0}
    lines = lines_of("scale", rows=[row, nothing], idle=[idle])
    assert "| gRPC session | 65 | 200 | 1.3 | 48.0 | 0.98 | 0.41 | 98 |" in lines
    assert "| WebSocket session | 5,000 | 1,234 | 102 | | 10 |" in lines
    assert sum("gRPC session" in line for line in lines) == 1


def test_more_workers_are_compared_with_fewer():
    row = {**CARRIED, "workers": 2, "sessions_accounted": 371.4}
    ratio = {"transport": "grpc", "rate": 65.0, "workers": [1, 2]}
    ratio |= {"ratio": 1.853, "spread": [1.8, 1.91], "ratio_measured": 1.402}
    unknown = {**ratio, "ratio": None, "spread": None, "ratio_measured": None}
    lines = lines_of("scale", rows=[row], ratios=[ratio, unknown])
    assert "| gRPC session | 65 | 2 | 200 | 371 | 0.98 | 0.41 |" in lines
    assert "| gRPC session | 65 | 1 to 2 | 1.85 (1.80 to 1.91) | 1.40 |" in lines
    assert len(lines) == 7


def test_a_server_that_refused_has_no_line_among_its_peers():
    settings = {"scenario": {"about": "A run."}, "repeats": 5}
    rows = [{**ROW, "server": "turnwire"}, {**ROW, "server": "other", "failure": "no such path"}]
    lines = lines_of("peers", settings=settings, rows=rows)
    assert lines[0] == "A run. 5 repetitions."
    assert lines[4:] == ["| WebSocket session | turnwire | 1.50 | 2.5 | 1.2 | 3.0 |"]
