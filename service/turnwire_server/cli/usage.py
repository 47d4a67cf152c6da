"""`turnwire usage`: what was used, and what it cost."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnwire_server.adapters.database.failure import DatabaseFailure
from turnwire_server.adapters.ledgers.report import (
    GROUPINGS,
    Grouping,
    GroupUsage,
    UsageSums,
    grouped,
)
from turnwire_server.cli.failure import CommandFailure
from turnwire_server.config import Config, ConfigFailure, load_config
from turnwire_server.ports.ledger import LedgerFailure

if TYPE_CHECKING:
    from turnwire_server.adapters.database.engine import Database

__all__ = ["add_parser", "parse_since"]

_AGE: Final = re.compile(r"([0-9]{1,6})([hdw])", re.ASCII)
_SECONDS: Final = {"h": 3600, "d": 86_400, "w": 7 * 86_400}
_COST_PLACES: Final = Decimal("0.000001")


def add_parser(commands: Any) -> None:
    """Add the command to `commands`, which argparse's `add_subparsers` returned."""
    parser = commands.add_parser(
        "usage",
        help="show what was used",
        description="Sum up the usage records of the database: tokens, responses, cost.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a turnwire.toml")
    parser.add_argument(
        "--since",
        metavar="WHEN",
        help="what began then or later: an age (12h, 7d, 4w) or a date (2026-01-01, UTC)",
    )
    parser.add_argument(
        "--by", choices=GROUPINGS, default="model", help="what to group by (default: model)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def parse_since(text: str, now: int) -> int:
    """Return the Unix seconds that `text` means.

    Args:
        text: An age, or a date or a time in ISO 8601; without an offset it is UTC.
        now: Unix seconds.

    Raises:
        CommandFailure: It is something else.
    """
    age = _AGE.fullmatch(text)
    if age is not None:
        return max(now - int(age[1]) * _SECONDS[age[2]], 0)
    try:
        when = datetime.fromisoformat(text)
        return max(int(when.replace(tzinfo=when.tzinfo or UTC).timestamp()), 0)
    except (ValueError, OverflowError):
        raise CommandFailure(
            f"--since: an age such as 12h, 7d or 4w, or a date such as 2026-01-01 is needed, "
            f"not {text[:80]!r}."
        ) from None


def _run(options: argparse.Namespace) -> int:
    since = None if options.since is None else parse_since(options.since, int(time.time()))
    try:
        config = load_config(options.config)
    except ConfigFailure as failure:
        raise CommandFailure(str(failure)) from None
    sums = asyncio.run(_sums(config, options.by, since or 0))
    groups, total = grouped(sums, config.prices)
    if options.json:
        shown = {
            "since": None if since is None else _iso(since),
            "by": options.by,
            "currency": config.prices.currency or None,
            "groups": [
                {"group": _name(group, options.by), **_facts(group, config)} for group in groups
            ],
            "total": _facts(total, config),
        }
        sys.stdout.write(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        Console().print(_table(groups, total, options.by, config))
    return 0


async def _sums(config: Config, by: Grouping, since: int) -> Sequence[UsageSums]:
    if config.database.is_memory:
        raise CommandFailure(
            "The configuration has no database (database.url), so usage is not kept."
        )
    # Imported here, because most commands need no database.
    from turnwire_server.adapters.database.engine import Database
    from turnwire_server.adapters.ledgers.sql import SqlUsage

    try:
        database = Database(config.database)
        _check_exists(database)
        await database.start()
        try:
            return await SqlUsage(database).sums(by, since=since)
        finally:
            await database.close()
    except (DatabaseFailure, LedgerFailure) as failure:
        raise CommandFailure(str(failure)) from None


def _check_exists(database: Database) -> None:
    """Refuse to make a database only to say that it is empty."""
    path = database.engine.url.database
    if database.is_sqlite and not Path(path or "").exists():
        raise CommandFailure(f"There is no usage yet: there is no database at {path}.")


def _name(group: GroupUsage, by: Grouping) -> str:
    if by != "day":
        return str(group.group)
    return datetime.fromtimestamp(int(group.group), UTC).date().isoformat()


def _printable(text: str) -> str:
    """Return a client's text as a terminal may show it."""
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in text)


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _facts(group: GroupUsage, config: Config) -> dict[str, object]:
    return {
        "responses": group.responses,
        "statuses": dict(sorted(group.statuses.items())),
        "input_tokens": group.input_tokens,
        "cached_tokens": group.cached_tokens,
        "output_tokens": group.output_tokens,
        "reasoning_tokens": group.reasoning_tokens,
        # Text, because JSON's numbers are read as floats.
        "cost": f"{group.cost:f}" if config.prices.currency else None,
        "unpriced_responses": group.unpriced,
    }


def _table(groups: Sequence[GroupUsage], total: GroupUsage, by: Grouping, config: Config) -> Table:
    table = Table(show_footer=bool(groups))
    has_prices = bool(config.prices.currency)

    def column(header: str, footer: str, *, is_number: bool = True) -> None:
        table.add_column(header, footer, justify="right" if is_number else "left")

    column(by, "total", is_number=False)
    column("responses", f"{total.responses:,}")
    column("by status", _statuses(total), is_number=False)
    column("input", f"{total.input_tokens:,}")
    column("cached", f"{total.cached_tokens:,}")
    column("output", f"{total.output_tokens:,}")
    column("reasoning", f"{total.reasoning_tokens:,}")
    if has_prices:
        column(f"cost ({config.prices.currency})", _cost(total))
    for group in groups:
        table.add_row(
            Text(_printable(_name(group, by))),
            f"{group.responses:,}",
            _statuses(group),
            f"{group.input_tokens:,}",
            f"{group.cached_tokens:,}",
            f"{group.output_tokens:,}",
            f"{group.reasoning_tokens:,}",
            *([_cost(group)] if has_prices else []),
        )
    return table


def _statuses(group: GroupUsage) -> str:
    return ", ".join(f"{count:,} {status}" for status, count in sorted(group.statuses.items()))


def _cost(group: GroupUsage) -> str:
    if group.unpriced == group.responses:
        return "-"
    shown = f"{group.cost.quantize(_COST_PLACES):f}"
    return shown if not group.unpriced else f"{shown} + {group.unpriced:,} without a price"
