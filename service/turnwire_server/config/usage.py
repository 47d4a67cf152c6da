"""What tokens cost, and where usage is exported to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Final
from urllib.parse import urlsplit

from turnwire_server.adapters.ledgers.settings import UsageSettings
from turnwire_server.adapters.ledgers.sinks import webhook_key
from turnwire_server.ports.prices import Price, PriceList

__all__ = ["check_usage", "read_prices"]

_KEYS: Final = ("input", "output", "cached_input", "reasoning")
_NEEDED: Final = ("input", "output")
_MOST: Final = Decimal(1_000_000_000)
_MOST_PLACES: Final = 12
_LONGEST_LABEL: Final = 16


def read_prices(value: object) -> PriceList:
    """Return the prices of the table `prices`.

    Raises:
        ValueError: Something in it cannot be used; `str()` begins with the key's path.
    """
    table = _table(value, "prices", known=("currency", "models"))
    currency = table.get("currency")
    if not isinstance(currency, str) or not 0 < len(currency) <= _LONGEST_LABEL:
        raise ValueError(f"prices.currency: 1 to {_LONGEST_LABEL} characters are needed")
    models = _table(table.get("models", {}), "prices.models")
    return PriceList(currency, {name: _price(entry, name) for name, entry in models.items()})


def _price(value: object, model: str) -> Price:
    path = f"prices.models.{model[:80]!r}"
    table = _table(value, path, known=_KEYS)
    for key in _NEEDED:
        if key not in table:
            raise ValueError(f"{path}.{key}: it is needed")
    given = {key: _decimal(entry, f"{path}.{key}") for key, entry in table.items()}
    return Price(
        input=given["input"],
        output=given["output"],
        cached_input=given.get("cached_input", given["input"]),
        reasoning=given.get("reasoning", given["output"]),
    )


def _decimal(value: object, path: str) -> Decimal:
    """Return a price per million tokens, exactly as it is written."""
    problem = ValueError(
        f'{path}: a price per million tokens is needed, for example "0.15": at least 0, below '
        f"{_MOST:,} and with at most {_MOST_PLACES} decimal places"
    )
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise problem
    try:
        # A float's own text is the shortest that means it: what stands in the file.
        price = Decimal(str(value))
    except InvalidOperation:
        raise problem from None
    if not price.is_finite() or not 0 <= price < _MOST:
        raise problem
    exponent = price.normalize().as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -_MOST_PLACES:
        raise problem
    return price


def _table(value: object, path: str, known: tuple[str, ...] | None = None) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{path}: a table is needed")
    for key in value:
        if known is not None and key not in known:
            raise ValueError(f"{path}.{key}: unknown key; known are {', '.join(sorted(known))}")
    return value


def check_usage(settings: UsageSettings, failure: Callable[[str, str], Exception]) -> None:
    """Check what no type says.

    Args:
        settings: The settings.
        failure: Makes the exception to raise of a key and what is wrong with it.
    """
    if settings.webhook_url is None:
        if settings.webhook_secret is not None:
            raise failure("usage.webhook_secret", "usage.webhook_url is needed too")
        return
    try:
        url = urlsplit(settings.webhook_url)
        is_usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or not settings.webhook_url.isprintable() or " " in settings.webhook_url:
        # The value stays out of the message: it may hold a password.
        raise failure("usage.webhook_url", "an http or https URL is needed")
    if settings.webhook_secret is None:
        raise failure("usage.webhook_url", "usage.webhook_secret is needed too")
    try:
        webhook_key(settings.webhook_secret)
    except ValueError as error:
        raise failure("usage.webhook_secret", str(error)) from None
