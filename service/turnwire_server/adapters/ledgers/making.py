"""Puts the ledger of a server with a database together."""

from __future__ import annotations

from pathlib import Path

from turnwire_server.adapters.database.engine import Database
from turnwire_server.adapters.ledgers.exporting import Exporter, UsageSink
from turnwire_server.adapters.ledgers.journal import InstanceJournal
from turnwire_server.adapters.ledgers.journaled import JournaledLedger
from turnwire_server.adapters.ledgers.settings import UsageSettings
from turnwire_server.adapters.ledgers.sinks import FileSink, WebhookSink, webhook_key
from turnwire_server.adapters.ledgers.sql import SqlUsage, database_key
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.prices import PriceList

__all__ = ["make_ledger"]


def make_ledger(
    database: Database,
    *,
    directory: Path,
    instance_id: str,
    clock: Clock,
    settings: UsageSettings,
    prices: PriceList,
) -> JournaledLedger:
    """Make the ledger of this process; its journal is there when this returns; blocks briefly.

    Args:
        database: Where closed records go; started before the ledger is.
        directory: Where the journals of this machine's processes are.
        instance_id: What this process is called.
        clock: Time.
        settings: Bounds, and where to export to.
        prices: What exported records cost.

    Raises:
        LedgerFailure: The journal cannot be made.
    """
    sinks = _sinks(settings, prices, clock)
    usage = SqlUsage(database, sinks=[sink.name for sink in sinks])
    return JournaledLedger(
        InstanceJournal.create(directory, instance_id, database=database_key(database)),
        usage,
        clock=clock,
        settings=settings,
        exporters=[Exporter(sink, usage, clock=clock, settings=settings) for sink in sinks],
    )


def _sinks(settings: UsageSettings, prices: PriceList, clock: Clock) -> list[UsageSink]:
    sinks: list[UsageSink] = []
    if settings.export_file is not None:
        sinks.append(FileSink(settings.export_file, prices))
    if settings.webhook_url is not None:
        assert settings.webhook_secret is not None  # the configuration checks it
        sinks.append(
            WebhookSink(
                settings.webhook_url,
                webhook_key(settings.webhook_secret),
                prices,
                clock=clock,
                timeout_s=settings.webhook_timeout_s,
            )
        )
    return sinks
