"""The report is whole, and needs nothing from outside."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from turnwire_bench.html_report import html_report
from turnwire_bench.plots import bar_plot, line_plot, stacked_plot

ROW = {
    "scenario": "s",
    "profile": "loopback",
    "rate": 1000.0,
    "transport": "ws",
    "turns": 2,
    "e2e_s": 1.5,
    "ttft_ms_p50": 2.5,
    "overhead_ms_p50": 1.25,
    "overhead_ms_p99": 3.0,
    "delivered_tps": None,
    "server_cpu_ms_per_turn": 0.5,
    "client_cpu_ms_per_turn": 0.7,
    "bytes_up": 1000,
    "bytes_down": 20_000,
    "memory_kb_per_session": None,
    "stages_ms": {"render": 0.25, "decode": 99.0},
    "overhead_ms_by_turn": [5.0, 1.25],
}
RESULT = {
    "meta": {
        "machine": {"cpus": 2, "model": "<CPU>", "system": "Linux", "load": [0.5]},
        "versions": {"python": "3.11"},
        "commit": "abc",
        "notes": ["A <note>."],
        "settings": {"scenarios": [{"name": "s", "about": "A run."}]},
    },
    "rows": [ROW, {**ROW, "transport": "grpc"}],
    "beside": [{**ROW, "transport": "echo_grpc", "bytes_up": None}],
}


class Balance(HTMLParser):
    """Notes elements that were not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_report_is_whole_and_has_every_row_and_plot():
    page = html_report(RESULT)
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    assert page.count("<svg") == 4
    for name in ("ws", "grpc", "echo_grpc", "wire and client", "render"):
        assert f">{name}<" in page
    assert "decode" not in page  # the engine's time is no overhead


def test_the_report_refers_to_nothing_outside_and_escapes_what_it_is_given():
    page = html_report(RESULT)
    assert not re.search(r"""(src|href)=|url\(|@import|://""", page)
    assert "<note>" not in page and "&lt;note&gt;" in page
    assert "&lt;CPU&gt;" in page


@pytest.mark.parametrize("values", [[], [0.0, -1.0]])
def test_a_plot_of_nothing_is_nothing(values):
    assert line_plot({"a": values}, x_name="x", y_name="y") == ""
    assert stacked_plot({"a": {"b": 0.0}}, unit="ms") == ""
    assert bar_plot({"a": {"b": 0.0}}, unit="ms") == ""


def test_a_line_of_larger_values_is_higher():
    plot = line_plot({"low": [1.0], "high": [50.0]}, x_name="x", y_name="y")
    heights = [float(y) for y in re.findall(r'cy="([0-9.]+)"', plot)]
    assert heights[1] < heights[0]


def test_a_stacked_bar_is_as_long_as_its_parts():
    plot = stacked_plot({"a": {"x": 1.0, "y": 3.0}, "b": {"x": 2.0}}, unit="ms")
    widths = [float(width) for width in re.findall(r'width="([0-9.]+)" height="16"', plot)]
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.01)
    assert widths[2] == pytest.approx(2 * widths[0], rel=0.01)
