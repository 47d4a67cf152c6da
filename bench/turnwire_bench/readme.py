"""The figures of the README, out of a results file: `python -m turnwire_bench.readme` writes them.

A block begins with `<!-- bench: bench/results/FILE -->` and ends with `<!-- /bench -->`. A test
holds each to what the file says.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import orjson

__all__ = ["filled_in", "main", "markdown_of"]

_ROOT: Final = Path(__file__).parents[2]
_BLOCK: Final = re.compile(r"(<!-- bench: (\S+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
_NAMES: Final = {
    "http_stateless": "HTTP, fresh TLS connection, whole history",
    "http_full": "HTTP, kept alive, whole history",
    "http_chain": "HTTP, `previous_response_id`",
    "ws": "WebSocket session",
    "grpc": "gRPC session",
    "ws_rollout": "WebSocket rollout",
    "grpc_rollout": "gRPC rollout",
    "sdk_dropin": "official SDK over `turnwire.openai`",
}


def filled_in(text: str, root: Path) -> str:
    """Return a page with every block as its results file has it; `root` has the files."""

    def block(found: re.Match[str]) -> str:
        result = orjson.loads((root / found[2]).read_bytes())
        return f"{found[1]}{markdown_of(result)}{found[3]}"

    return _BLOCK.sub(block, text)


def markdown_of(result: Mapping[str, Any]) -> str:
    """Return a table for each scenario, profile and rate of a transports' run."""
    about = {each["name"]: each["about"] for each in result["meta"]["settings"]["scenarios"]}
    parts = []
    for (scenario, profile, rate), rows in groupby(result["rows"], key=_place):
        parts.append(f"{about[scenario]} Network: {profile}, {rate:,.0f} tokens/s.\n")
        parts.append(
            "| | end to end, s | first token, ms | overhead per turn, ms | sent, kB |\n"
            "|---|---|---|---|---|"
        )
        parts += [
            f"| {_NAMES.get(row['transport'], row['transport'])} | {row['e2e_s']:.2f} | "
            f"{row['ttft_ms_p50']:.1f} | {row['overhead_ms_p50']:.1f} | {_kb(row['bytes_up'])} |"
            for row in rows
        ]
        parts.append("")
    return "\n".join(parts)


def main() -> int:
    """Rewrite the README's blocks; return the exit code."""
    path = _ROOT / "README.md"
    path.write_text(filled_in(path.read_text(encoding="utf-8"), _ROOT), encoding="utf-8")
    return 0


def _place(row: Mapping[str, Any]) -> tuple[str, str, float]:
    return row["scenario"], row["profile"], row["rate"]


def _kb(size: int | None) -> str:
    return "" if size is None else f"{size / 1000:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
