"""Three sources, one configuration, and errors that name the key."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from turnwire_server import config
from turnwire_server.adapters.engines.openvino import OpenVinoSettings
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.config import Address, Config, ConfigFailure, load_config

DOCS = Path(__file__).parents[1] / "docs/configuration.md"


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "turnwire.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refusal(path: Path | None = None, **sources) -> str:
    sources.setdefault("environment", {})
    with pytest.raises(ConfigFailure) as refused:
        load_config(path, **sources)
    return str(refused.value)


def test_without_any_source_everything_is_the_layers_own_default():
    loaded = load_config(environment={"XDG_CACHE_HOME": "/cache"})
    expected = Config(models_directory=Path("/cache/turnwire/models"))
    assert loaded == expected
    assert str(loaded.http_address) == "127.0.0.1:8080"
    assert str(loaded.grpc_address) == "127.0.0.1:50051"
    assert [model.engine for model in loaded.models] == ["openvino"]


def test_a_file_reaches_every_layer(written):
    path = written(
        """
        any_model = true
        models_directory = "/models"
        [http]
        address = "127.0.0.1:0"
        idle_timeout_s = 5
        [websocket]
        silence_limit_s = 90.5
        [grpc]
        address = "[::1]:0"
        max_concurrent_streams = 7
        [auth]
        keys = ["one", "two"]
        [runtime]
        max_message_bytes = 1000
        keepalive = "in_progress"
        [session]
        max_in_flight = 3
        [outbox]
        outbox_bytes = 4096
        [store]
        max_bytes = 8_000_000_000
        """
    )
    loaded = load_config(path, environment={})
    assert loaded.any_model
    assert loaded.models_directory == Path("/models")
    assert loaded.http_address == Address("127.0.0.1", 0)
    assert loaded.http.idle_timeout_s == 5.0
    assert loaded.http.websocket is not None
    assert loaded.http.websocket.silence_limit_s == 90.5
    assert loaded.grpc_address == Address("::1", 0)
    assert loaded.grpc.max_concurrent_streams == 7
    assert loaded.runtime.auth_keys == ("one", "two")
    assert loaded.runtime.max_message_bytes == 1000
    assert loaded.runtime.keepalive == "in_progress"
    assert loaded.runtime.session.max_in_flight == 3
    assert loaded.runtime.outbox.outbox_bytes == 4096
    assert loaded.store.max_bytes == 8_000_000_000


def test_models_take_the_settings_of_their_engine(written):
    path = written(
        """
        [[models]]
        name = "fast"
        engine = "sim"
        tokens_per_second = 1000
        tool_rounds = 25
        [[models]]
        path = "weights/some.gguf"
        """
    )
    fast, real = load_config(path, environment={}).models
    assert isinstance(fast.settings, SimSettings)
    assert (fast.name, fast.settings.tokens_per_second) == ("fast", 1000.0)
    assert fast.settings.agent.tool_rounds == 25
    assert isinstance(real.settings, OpenVinoSettings)
    assert (real.name, real.engine) == ("some", "openvino")
    # A relative path means the file's folder, wherever the server is started.
    assert real.path == str(path.parent / "weights/some.gguf")


def test_the_environment_wins_over_the_file_and_options_over_both(written):
    path = written("[session]\nmax_in_flight = 1\nmax_queued = 1\nmax_warm_ups = 1\n")
    environment = {
        "TURNWIRE_CONFIG": str(path),
        "TURNWIRE_SESSION_MAX_QUEUED": "2",
        "TURNWIRE_SESSION_MAX_WARM_UPS": "2",
        "TURNWIRE_AUTH_KEYS": "a, b",
        "TURNWIRE_WEBSOCKET_ENABLED": "false",
        "UNRELATED": "x",
    }
    loaded = load_config(environment=environment, options={"session.max_warm_ups": 3})
    session = loaded.runtime.session
    assert (session.max_in_flight, session.max_queued, session.max_warm_ups) == (1, 2, 3)
    assert loaded.runtime.auth_keys == ("a", "b")
    assert loaded.http.websocket is None


@pytest.mark.parametrize(
    ("text", "key", "needed"),
    [
        ("[session]\nmax_in_flight = 'many'", "session.max_in_flight", "a whole number"),
        ("[session]\nmax_in_flight = true", "session.max_in_flight", "a whole number"),
        ("[session]\nmax_in_flight = 1.5", "session.max_in_flight", "a whole number"),
        ("[session]\nmax_in_flight = 0", "session.max_in_flight", "at least 1"),
        ("[session]\nmax_in_fligth = 1", "session.max_in_fligth", "unknown key"),
        ("[runtime]\nkeepalive_s = inf", "runtime.keepalive_s", "a number above 0"),
        ("[runtime]\nkeepalive_s = 0", "runtime.keepalive_s", "a number above 0"),
        ("[runtime]\nkeepalive = 'often'", "runtime.keepalive", '"in_progress"'),
        ("[runtime]\nauth_keys = ['x']", "runtime.auth_keys", "unknown key"),
        ("[auth]\nkeys = 'x'", "auth.keys", "an array of strings"),
        ("[auth]\nkeys = ['ok', 'not ok']", "auth.keys[1]", "visible ASCII"),
        ("[auth]\nkeys = ['']", "auth.keys[0]", "visible ASCII"),
        ("[http]\naddress = '8080'", "http.address", "HOST:PORT"),
        ("[http]\naddress = 'host:99999'", "http.address", "HOST:PORT"),
        ("[http]\naddress = '::1:80'", "http.address", "HOST:PORT"),
        ("[http]\naddress = 8080", "http.address", "text"),
        ("[http]\nwebsocket = true", "http.websocket", "unknown key"),
        ("[websocket]\nenabled = 'yes'", "websocket.enabled", "true or false"),
        ("http = 1", "http", "a table"),
        ("[htpp]\nx = 1", "htpp", "unknown key"),
        ("any_model = 1", "any_model", "true or false"),
        ("models = 1", "models", "an array of tables"),
        ("models = []", "models", "at least one"),
        ("[[models]]\nengine = 'gpu'", "models[0].engine", '"sim" or "openvino"'),
        ("[[models]]\nengine = 'sim'\npath = 'x'", "models[0].path", "unknown key"),
        ("[[models]]\nengine = 'sim'\ntool_rounds = -1", "models[0].tool_rounds", "at least 0"),
        ("[[models]]\nengine = 'sim'\nname = ''", "models[0].name", "1 to 256"),
        ("[[models]]\nengine = 'sim'\n[[models]]\nengine = 'sim'", "models[1].name", "twice"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_by_file_and_key(written, text, key, needed):
    path = written(text)
    message = refusal(path)
    assert message.startswith(f"{path}: {key}: ")
    assert needed in message


def test_a_secret_stays_out_of_the_message(written):
    assert "s3cret" not in refusal(written("[auth]\nkeys = ['s3cret key']"))


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TURNWIRE_SESSION_MAX_QUEUED": "x"}, "TURNWIRE_SESSION_MAX_QUEUED: session.max_queued"),
        ({"TURNWIRE_AUTH_KEY": "x"}, "TURNWIRE_AUTH_KEY: there is no such key"),
        ({"TURNWIRE_CONFIG": "no/such.toml"}, "no/such.toml: cannot be read: No such file"),
        ({"TURNWIRE_WEBSOCKET_ENABLED": "on"}, "websocket.enabled: true or false"),
    ],
)
def test_the_environment_is_read_as_strictly_as_the_file(environment, message):
    assert message in refusal(environment=environment)


def test_a_file_that_is_no_toml_is_named(written):
    assert "is not TOML" in refusal(written("[http"))


def test_a_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "turnwire.toml"
    path.write_bytes(b"\xff\xfe")
    assert refusal(path) == f"{path}: is not UTF-8 text."


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "[::1]"])
def test_a_loopback_address_needs_no_key(host):
    assert load_config(environment={}, options={"http.address": f"{host}:0"})


@pytest.mark.parametrize("key", ["http.address", "grpc.address"])
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "example.test"])
def test_a_network_address_needs_a_key(key, host):
    options = {key: f"{host}:0"}
    message = refusal(options=options)
    assert message.startswith("auth.keys: ")
    assert key in message
    assert load_config(environment={}, options={**options, "auth.keys": ["k"]})


def test_every_key_is_documented():
    text = DOCS.read_text(encoding="utf-8")
    sections = {*config._SECTIONS, *config._EXTRA_KEYS}
    keys = [f"{section}.{key}" for section in sections for key in config._keys_of(section)]
    keys += [*config._TOP_KEYS, "models.name", "models.engine", "models.path"]
    for kinds in config._ENGINE_SETTINGS.values():
        for kind in kinds:
            keys += [f"models.{key}" for key in config._fields_of(kind)]
    assert [key for key in keys if f"`{key}`" not in text] == []


def test_documented_defaults_are_the_real_ones():
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in DOCS.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    documented = {row[0]: row[1] for row in rows}
    layers = [(section, kind) for section, kinds in config._SECTIONS.items() for kind in kinds]
    layers += [("models", kind) for kinds in config._ENGINE_SETTINGS.values() for kind in kinds]
    defaults = {
        f"{section}.{field.name}": field.default
        for section, kind in layers
        for field in dataclasses.fields(kind)
        if field.name in config._fields_of(kind)
    }
    # Both engines have it, each with its own default.
    del defaults["models.context_length"]

    def shown(value: object) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, str):
            return f'"{value}"'
        return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    wrong = {
        key: (documented.get(key), shown(value))
        for key, value in defaults.items()
        if documented.get(key) != shown(value)
    }
    assert wrong == {}


def test_the_configuration_is_frozen():
    for kind in (Config, Address, config.ModelConfig):
        assert dataclasses.fields(kind)
        assert kind.__dataclass_params__.frozen
