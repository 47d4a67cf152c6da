"""`turnwire usage` and its configuration: prices are exact, secrets stay secret."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from harness.usage import usage_record
from turnwire_server.adapters.database.engine import Database
from turnwire_server.adapters.database.settings import DatabaseSettings
from turnwire_server.adapters.ledgers.journal_lines import settled_line
from turnwire_server.adapters.ledgers.report import UsageSums, grouped
from turnwire_server.adapters.ledgers.sql import SqlUsage
from turnwire_server.app import StartFailure, make_services
from turnwire_server.cli import main
from turnwire_server.cli.failure import CommandFailure
from turnwire_server.cli.usage import parse_since
from turnwire_server.config import Config, ConfigFailure, load_config
from turnwire_server.ports.ledger import UsageRecord
from turnwire_server.ports.prices import Price, PriceList

SECRET = "a secret of more than 24 characters"
DAY = 86_400
MIDNIGHT = 1_799_971_200  # 2027-01-15T00:00:00Z
PRICES = """
[prices]
currency = "EUR"
[prices.models.sim]
input = "0.1"
cached_input = 0.01
output = 3
"""


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TURNWIRE_CONFIG", raising=False)
    monkeypatch.delenv("TURNWIRE_DATABASE_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def configured(tmp_path: Path, text: str, **environment: str) -> Config:
    path = tmp_path / "turnwire.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, environment=environment)


def refusal(tmp_path: Path, text: str, **environment: str) -> str:
    with pytest.raises(ConfigFailure) as refused:
        configured(tmp_path, text, **environment)
    return str(refused.value)


# Prices.


def test_prices_are_the_decimals_that_are_written(tmp_path):
    prices = configured(tmp_path, PRICES).prices
    assert prices.currency == "EUR"
    assert prices.price("sim") == Price(
        Decimal("0.1"), output=Decimal(3), cached_input=Decimal("0.01"), reasoning=Decimal(3)
    )
    assert prices.price("other") is None


def test_a_cost_is_exact_where_a_float_is_not():
    price = Price(*map(Decimal, ("0.1", "0.3", "0.1", "0.3")))
    cost = price.cost(input_tokens=3, cached_tokens=0, output_tokens=0, reasoning_tokens=0)
    assert cost == Decimal("0.0000003")
    assert 0.1 * 3 / 1_000_000 != float(cost)
    many = price.cost(input_tokens=2**53 + 1, cached_tokens=1, output_tokens=7, reasoning_tokens=7)
    assert many == Decimal((2**53 + 1) * 1 + 7 * 3) / 10 / 1_000_000


def test_every_other_model_may_have_a_price(tmp_path):
    text = PRICES + '[prices.models."*"]\ninput = 1\noutput = 2\n'
    prices = configured(tmp_path, text).prices
    assert prices.price("anything") == Price(*map(Decimal, (1, 2, 1, 2)))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("prices = 3", "prices: a table is needed"),
        ("[prices]\n", "prices.currency: 1 to 16 characters are needed"),
        ("[prices]\ncurrency = 'EUR'\nmodel = 1", "prices.model: unknown key"),
        ("[prices]\ncurrency = 'EUR'\nmodels = []", "prices.models: a table is needed"),
        ("[prices]\ncurrency='EUR'\n[prices.models.m]\ninput = 1", "'m'.output: it is needed"),
        *(
            (
                f"[prices]\ncurrency='EUR'\n[prices.models.m]\noutput = 1\ninput = {value}",
                "prices.models.'m'.input: a price per million tokens is needed",
            )
            for value in ('"1,5"', "-1", "true", "inf", "nan", '"NaN"', "1e9", "1e-13", "[]")
        ),
    ],
)
def test_prices_that_cannot_be_used_are_refused_by_name(tmp_path, text, problem):
    assert problem in refusal(tmp_path, text)


# Exports.


def test_exports_are_configured_by_file_and_environment(tmp_path):
    config = configured(
        tmp_path,
        "[usage]\nexport_file = 'usage.jsonl'\nwebhook_url = 'https://billing.example/usage'\n",
        TURNWIRE_USAGE_WEBHOOK_SECRET=SECRET,
    )
    assert config.usage.export_file == tmp_path / "usage.jsonl"
    assert config.usage.webhook_secret == SECRET
    assert SECRET not in repr(config)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["webhook_url = 'https://h/'"], "usage.webhook_url: usage.webhook_secret is needed too"),
        (["webhook_secret = 'x'"], "usage.webhook_secret: usage.webhook_url is needed too"),
        (["webhook_url = 'https://h/'", "webhook_secret = 'short'"], "at least 24 characters"),
        (["webhook_url = 'https://h/'", "webhook_secret = 'whsec_!'"], "base64 is needed"),
        *(
            ([f"webhook_url = '{url}'", f"webhook_secret = '{SECRET}'"], "http or https URL")
            for url in ("ftp://h/", "h/usage", "https://", "https://h:99999/", "https://h/a b")
        ),
    ],
)
def test_an_export_that_cannot_work_is_refused_without_its_secrets(tmp_path, lines, problem):
    said = refusal(tmp_path, "[usage]\n" + "\n".join(lines))
    assert problem in said
    assert "short" not in said and SECRET not in said


# The report.


def test_groups_add_up_over_models_and_statuses():
    prices = PriceList("EUR", {"a": Price(*map(Decimal, (1, 10, 1, 10)))})
    sums = [
        UsageSums("key_1", "a", "completed", 2, 100, 40, 10, 5),
        UsageSums("key_1", "a", "failed", 1, 50, 0, 0, 0),
        UsageSums("key_1", "b", "completed", 4, 7, 0, 7, 0),
        UsageSums("key_2", "b", "completed", 1, 1, 0, 1, 0),
    ]
    (first, second), total = grouped(sums, prices)
    assert (first.group, second.group) == ("key_1", "key_2")
    assert first.statuses == {"completed": 6, "failed": 1}
    assert (first.responses, first.unpriced, second.unpriced) == (7, 4, 1)
    assert first.cost == Decimal(150 + 100) / 1_000_000
    assert second.cost == 0
    assert (total.responses, total.input_tokens, total.output_tokens) == (8, 158, 18)
    assert total.cost == first.cost


# The command.


def with_records(tmp_path: Path, *records: UsageRecord) -> None:
    async def put() -> None:
        path = tmp_path / "turnwire/turnwire.db"
        database = Database(DatabaseSettings(url=f"sqlite:///{path}"))
        await database.start()
        await SqlUsage(database).put(records)
        await database.close()

    asyncio.run(put())


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["usage", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


RECORDS = (
    usage_record("a", created_at=MIDNIGHT, tenant="key_1"),
    usage_record("b", created_at=MIDNIGHT + DAY - 1, tenant="key_1", status="cancelled"),
    usage_record("c", created_at=MIDNIGHT + DAY, tenant="default", model="other"),
)


def test_the_command_prints_one_json_object(tmp_path, capsys):
    with_records(tmp_path, *RECORDS)
    path = tmp_path / "turnwire.toml"
    path.write_text(PRICES, encoding="utf-8")
    report = shown(capsys, "--config", str(path), "--json", "--by", "day")
    used = {
        "input_tokens": 200,
        "cached_tokens": 80,
        "output_tokens": 40,
        "reasoning_tokens": 10,
    }
    # (120 * 0.1 + 80 * 0.01 + 40 * 3) / 1,000,000
    assert report["groups"][0] == {
        "group": "2027-01-15",
        "responses": 2,
        "statuses": {"cancelled": 1, "completed": 1},
        **used,
        "cost": "0.0001328",
        "unpriced_responses": 0,
    }
    assert [group["group"] for group in report["groups"]] == ["2027-01-15", "2027-01-16"]
    assert (report["by"], report["since"], report["currency"]) == ("day", None, "EUR")
    assert (report["total"]["responses"], report["total"]["unpriced_responses"]) == (3, 1)


def test_the_command_counts_what_began_since_and_groups_by_key(tmp_path, capsys):
    with_records(tmp_path, *RECORDS)
    report = shown(capsys, "--json", "--by", "key", "--since", "2027-01-16")
    assert report["since"] == "2027-01-16T00:00:00Z"
    assert [group["group"] for group in report["groups"]] == ["default"]
    assert report["groups"][0]["cost"] is None
    everything = shown(capsys, "--json", "--by", "key")
    assert [group["group"] for group in everything["groups"]] == ["default", "key_1"]


def test_the_command_shows_a_table_for_people(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    with_records(tmp_path, *RECORDS)
    path = tmp_path / "turnwire.toml"
    path.write_text(PRICES, encoding="utf-8")
    assert main(["usage", "--config", str(path)]) == 0
    said = capsys.readouterr().out
    assert "cost (EUR)" in said and "0.000133" in said
    assert "1 cancelled, 1 completed" in said and "total" in said


def test_a_model_s_name_cannot_play_with_the_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    with_records(tmp_path, usage_record("a", model="[bold]\x1b[31mred"))
    assert main(["usage"]) == 0
    assert "[bold]\\u001b[31mred" in capsys.readouterr().out


def test_without_a_database_the_command_says_so_and_makes_none(tmp_path, capsys, monkeypatch):
    assert main(["usage"]) == 1
    assert "There is no usage yet" in capsys.readouterr().err
    assert not (tmp_path / "turnwire").exists()
    monkeypatch.setenv("TURNWIRE_DATABASE_URL", "memory")
    assert main(["usage"]) == 1
    assert "usage is not kept" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12h", MIDNIGHT - 12 * 3600),
        ("7d", MIDNIGHT - 7 * DAY),
        ("4w", MIDNIGHT - 28 * DAY),
        ("999999d", 0),
        ("2027-01-15", MIDNIGHT),
        ("2027-01-15T01:00:00+01:00", MIDNIGHT),
        ("2027-01-15T00:00:10Z", MIDNIGHT + 10),
        ("0001-01-01", 0),
    ],
)
def test_since_is_an_age_or_a_date(text, seconds):
    assert parse_since(text, MIDNIGHT) == seconds


@pytest.mark.parametrize("text", ["", "7", "7x", "-7d", "yesterday", "2027-13-01", "1.5d"])
def test_any_other_since_is_refused(text):
    with pytest.raises(CommandFailure, match="--since: an age such as"):
        parse_since(text, MIDNIGHT)


# The server.


def served(tmp_path: Path, **options: object) -> Config:
    given: dict[str, object] = {
        "http.address": "127.0.0.1:0",
        "grpc.address": "127.0.0.1:0",
        "models": [{"engine": "sim"}],
        "sealing.keys": ["A" * 43],
        "database.url": f"sqlite:///{tmp_path / 'turnwire.db'}",
        **options,
    }
    return load_config(environment={}, options=given)


def test_a_server_whose_journal_cannot_be_made_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartFailure, match="the ledger's journal cannot be made"):
        make_services(served(tmp_path, data_dir=str(tmp_path / "file")))


def test_an_export_without_a_database_is_refused(tmp_path):
    options = {"database.url": "memory", "usage.export_file": str(tmp_path / "usage.jsonl")}
    with pytest.raises(StartFailure, match="needs a database"):
        make_services(served(tmp_path, **options))


async def test_a_server_closes_what_a_dead_one_left_before_it_takes_work(tmp_path):
    data = str(tmp_path / "data")
    services = make_services(served(tmp_path, data_dir=data))
    journal = next((tmp_path / "data/instances").iterdir())
    left = journal.read_bytes() + settled_line(usage_record("left"))
    journal.with_name("dead.journal").write_bytes(left)
    owners: list[str] = []

    async def note(dead: Sequence[str]) -> None:
        assert not services.accepting
        owners.extend(dead)

    services.store.fail_orphans = note  # type: ignore[method-assign, assignment]
    try:
        await services.start()
        assert services.accepting and owners == ["dead"]
        assert [path.name for path in (tmp_path / "data/instances").iterdir()] == [journal.name]
        levels = services.levels().usage
        assert levels is not None and levels.closed == {"completed": 1}
    finally:
        async with asyncio.timeout(20):
            await services.close()
    assert list((tmp_path / "data/instances").iterdir()) == []
