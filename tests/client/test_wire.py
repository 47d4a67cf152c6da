from __future__ import annotations

import pytest

from turnwire._wire import WireSettings, parse_target


@pytest.mark.parametrize(
    ("url", "kind", "secure", "authority", "http_base"),
    [
        ("grpc://h:1", "grpc", False, "h:1", None),
        ("grpc://h", "grpc", False, "h:50051", None),
        ("grpcs://h", "grpc", True, "h:443", None),
        ("grpc://[::1]:9", "grpc", False, "[::1]:9", None),
        ("ws://h:1", "websocket", False, "h:1", "http://h:1/v1"),
        ("ws://h:1/", "websocket", False, "h:1", "http://h:1/v1"),
        ("ws://h:1/v1/responses", "websocket", False, "h:1", "http://h:1/v1"),
        ("wss://h/api/v2", "websocket", True, "h", "https://h/api/v2"),
        ("wss://h/responses", "websocket", True, "h", "https://h"),
        ("http://h:1", "http", False, "h:1", "http://h:1/v1"),
        ("https://h/v1/", "http", True, "h", "https://h/v1"),
    ],
)
def test_a_target_is_read_from_its_url(
    url: str, kind: str, secure: bool, authority: str, http_base: str | None
) -> None:
    target = parse_target(url)
    assert (target.kind, target.secure, target.authority) == (kind, secure, authority)
    if http_base is not None:
        assert target.http_base == http_base


@pytest.mark.parametrize(
    "url", ["h:1", "ftp://h", "grpc://", "grpc://h/x", "ws://u:p@h", "http://h/v1?key=1"]
)
def test_what_is_no_target_is_a_value_error(url: str) -> None:
    with pytest.raises(ValueError):
        parse_target(url)


def test_the_key_is_a_bearer_token_and_never_in_a_repr() -> None:
    settings = WireSettings(api_key="sesame", headers={"X-Trace": "1"})
    assert settings.all_headers() == {"x-trace": "1", "authorization": "Bearer sesame"}
    assert "sesame" not in repr(settings)
