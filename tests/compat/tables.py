"""The tables of clients, made from what came of them: `python tests/compat/tables.py`.

Writes them into README.md and docs/compat.md, between the marks that are there. `scripts/compat`
keeps what came of each client in results.json and runs this.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["PAGES", "RESULTS", "page_with", "printed", "record"]

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests/compat/results.json"
BEGIN, END = "<!-- clients -->\n", "<!-- end of clients -->"

Results = Sequence[dict[str, Any]]

# The ones that people ask for first; the others are in docs/compat.md.
NAMED = ("openai", "@openai/agents", "Codex", "Open Responses")
COLUMNS = {"HTTP": "http", "WebSocket": "websocket", "lanes": "lanes", "gRPC": "grpc"}
SIMULATED = "simulated"


def read() -> Results:
    """Return what is kept."""
    results: Results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    return results


def record(results: Results) -> None:
    """Keep results; those of the same client, transport and model are replaced."""
    kept = {_key(result): result for result in [*read(), *results]}
    ordered = [kept[key] for key in sorted(kept)]
    text = json.dumps(ordered, indent=1, ensure_ascii=False)
    RESULTS.write_text(text + "\n", encoding="utf-8")


def printed(results: Results) -> list[str]:
    """Return a table for a terminal: client, version, transport, model, result."""
    members = ("client", "version", "transport", "model", "result")
    cells = [[str(result[member]) for member in members] for result in sorted(results, key=_key)]
    return _aligned([list(members), *cells])


def summary(results: Results) -> list[str]:
    """Return the table of the README: a line per client, a column per transport."""
    lines = [["client", "version", *COLUMNS, "on a small model"]]
    for client in dict.fromkeys(result["client"] for result in results):
        if not client.startswith(NAMED):
            continue
        own = [result for result in results if result["client"] == client]
        cells = [_outcome(own, SIMULATED, transport) for transport in COLUMNS.values()]
        small = {result["model"] for result in own} - {SIMULATED}
        passed = [
            name
            for name, transport in COLUMNS.items()
            if any(_outcome(own, model, transport) == "pass" for model in small)
        ]
        lines.append([client, own[0]["version"], *cells, ", ".join(passed)])
    return _markdown(lines)


def whole(results: Results) -> list[str]:
    """Return the table of docs/compat.md: a line per run, with what was done."""
    lines = [["client", "version", "transport", "model", "result", "what it does"]]
    names = {transport: name for name, transport in COLUMNS.items()}
    for result in results:
        did = "; ".join(dict.fromkeys(result["did"]))
        transport = ", ".join(names.get(one, one) for one in result["transport"].split(", "))
        facts = [result["client"], result["version"], transport, result["model"]]
        lines.append([*facts, result["result"], did])
    return _markdown(lines)


PAGES = {ROOT / "README.md": summary, ROOT / "docs/compat.md": whole}


def page_with(page: str, lines: Iterable[str]) -> str:
    """Return a page with another table between the marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, "the page has no place for the table"
    return before + begin + "".join(f"{line}\n" for line in lines) + end + after


def _key(result: dict[str, Any]) -> tuple[bool, str, str, str]:
    client = str(result["client"])
    return not client.startswith(NAMED), client, str(result["model"]), str(result["transport"])


def _outcome(results: Results, model: str, transport: str) -> str:
    found = [
        result["result"]
        for result in results
        if result["model"] == model and transport in result["transport"].split(", ")
    ]
    return str(found[0]) if found else ""


def _markdown(lines: Sequence[Sequence[str]]) -> list[str]:
    head, *rest = (f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)
    return [head, f"|{'---|' * len(lines[0])}", *(line.replace("|  |", "| |") for line in rest)]


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |"
        for line in lines
    ]
    return [padded[0], f"|{'|'.join('-' * (width + 2) for width in widths)}|", *padded[1:]]


def main() -> None:
    for path, table in PAGES.items():
        page = path.read_text(encoding="utf-8")
        path.write_text(page_with(page, table(read())), encoding="utf-8")


if __name__ == "__main__":
    main()
