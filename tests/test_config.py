"""Three sources, one configuration, and errors that name the key."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
from collections import Counter
from pathlib import Path

import pytest

from turnwire_server.adapters.database.settings import DatabaseSettings
from turnwire_server.adapters.engines.openvino import OpenVinoSettings
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.adapters.renderers.harmony_settings import HarmonySettings
from turnwire_server.adapters.renderers.template_settings import ChatTemplateSettings
from turnwire_server.config import (
    Address,
    Config,
    ConfigFailure,
    ModelConfig,
    SealingConfig,
    keys,
    load_config,
)

MODEL_SETTINGS = [
    *(kind for kinds in keys.ENGINE_SETTINGS.values() for kind in kinds),
    *keys.RENDERER_SETTINGS.values(),
]
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
    loaded = load_config(environment={"XDG_CACHE_HOME": "/cache", "XDG_DATA_HOME": "/data"})
    expected = Config(
        models_directory=Path("/cache/turnwire/models"),
        data_dir=Path("/data/turnwire"),
        sealing=SealingConfig(data_dir=Path("/data/turnwire")),
        database=DatabaseSettings(url=None, default_file=Path("/data/turnwire/turnwire.db")),
    )
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


def test_models_take_the_settings_of_their_renderer(written):
    path = written(
        """
        [[models]]
        path = "./exported"
        format = "llama3_json"
        history = "exact"
        keeps_prefixes = false
        [[models]]
        name = "oss"
        path = "./gpt-oss"
        renderer = "harmony"
        reasoning_effort = "high"
        [[models]]
        name = "plain"
        """
    )
    template, oss, plain = load_config(path, environment={}).models
    assert (template.name, template.path) == ("exported", str(path.parent / "exported"))
    assert template.renderer == ChatTemplateSettings(
        format="llama3_json", history="exact", keeps_prefixes=False
    )
    assert oss.renderer == HarmonySettings(reasoning_effort="high")
    assert plain.renderer == ChatTemplateSettings()


def test_a_screen_s_rules_are_beside_the_file_that_names_them(written, monkeypatch):
    path = written("[screen]\nrules = 'rules.toml'\n[runtime]\naudit_rate = 0.25\n")
    loaded = load_config(path, environment={})
    assert loaded.screen.rules == path.parent / "rules.toml"
    assert loaded.runtime.audit_rate == 0.25
    # Of the environment it is relative to where the server is started.
    loaded = load_config(path, environment={"TURNWIRE_SCREEN_RULES": "other.toml"})
    assert loaded.screen.rules == Path("other.toml")
    assert load_config(environment={}).screen.rules is None


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
        ("[runtime]\naudit_rate = 1.5", "runtime.audit_rate", "at most 1 "),
        ("[runtime]\naudit_rate = -0.5", "runtime.audit_rate", "at least 0"),
        ("[screen]\nrules = 1", "screen.rules", "text"),
        ("[screen]\nrule = 'x'", "screen.rule", "unknown key"),
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
        ("[[models]]\nrenderer = 'jinja'", "models[0].renderer", '"chat_template" or "harmony"'),
        ("[[models]]\nhistory = 'rewritten'", "models[0].history", '"kept" or "exact"'),
        ("[[models]]\nrenderer = 'harmony'\nformat = 'x'", "models[0].format", "unknown key"),
        ("[[models]]\nengine = 'sim'\nrenderer = 'harmony'", "models[0].renderer", "unknown key"),
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
    sections = {*keys.SECTIONS, *keys.EXTRA_KEYS}
    known = [f"{section}.{key}" for section in sections for key in keys.keys_of(section)]
    known += [*keys.TOP_KEYS, "models.name", "models.engine", "models.path", "models.renderer"]
    for kind in MODEL_SETTINGS:
        known += [f"models.{key}" for key in keys.fields_of(kind)]
    assert [key for key in known if f"`{key}`" not in text] == []


def test_documented_defaults_are_the_real_ones():
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in DOCS.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    documented = {row[0]: row[1] for row in rows}
    layers = [(section, kind) for section, kinds in keys.SECTIONS.items() for kind in kinds]
    layers += [("models", kind) for kind in MODEL_SETTINGS]
    defaults = {
        f"{section}.{field.name}": field.default
        for section, kind in layers
        for field in dataclasses.fields(kind)
        if field.name in keys.fields_of(kind)
    }
    # Both engines have it, each with its own default.
    del defaults["models.context_length"]

    def shown(value: object) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, str):
            return f'"{value}"'
        if value == ():
            return "[]"
        return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    wrong = {
        key: (documented.get(key), shown(value))
        for key, value in defaults.items()
        if documented.get(key) != shown(value)
    }
    assert wrong == {}


def settings_without_a_word(kind: type) -> list[str]:
    """Return the keys of settings whose field is not followed by what it means."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(kind)).body)
    explained = {
        field.target.id
        for field, note in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(note, ast.Expr)
        and isinstance(note.value, ast.Constant)
    }
    return [f"{kind.__name__}.{key}" for key in keys.fields_of(kind) if key not in explained]


def test_every_key_says_in_the_source_what_it_means():
    kinds = [kind for kinds in keys.SECTIONS.values() for kind in kinds]
    assert [
        key for kind in [*kinds, *MODEL_SETTINGS] for key in settings_without_a_word(kind)
    ] == []


def test_no_two_keys_mean_the_same():
    rows = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    counted = Counter(row.strip("| ").split(" | ")[-1] for row in rows)
    assert [meaning for meaning, times in counted.items() if times > 1] == []


@pytest.mark.parametrize("origin", ["app.example", "https://", "https://a/b", "https://u@a", "*"])
def test_what_no_browser_sends_as_an_origin_is_refused(origin):
    message = refusal(environment={"TURNWIRE_HTTP_ALLOWED_ORIGINS": f"https://ok:8, {origin}"})
    assert message.startswith("TURNWIRE_HTTP_ALLOWED_ORIGINS: http.allowed_origins: SCHEME://HOST")
    assert repr(origin) in message


def test_the_configuration_is_frozen():
    for kind in (Config, Address, ModelConfig):
        assert dataclasses.fields(kind)
        assert kind.__dataclass_params__.frozen


def test_the_keys_of_items_reach_their_settings(written):
    path = written(
        """
        [compat]
        reasoning_events = "summary"
        [compaction]
        max_summary_tokens = 100
        [sealing]
        keys = ["KEY1", "KEY2"]
        data_dir = "/data"
        [[prompts]]
        id = "pmpt_a"
        instructions = "Do {{it}}."
        messages = [{role = "developer", content = "Mind {{that}}."}]
        [[prompts]]
        id = "pmpt_a"
        version = "2"
        model = "m"
        """
    )
    loaded = load_config(path, environment={})
    assert loaded.runtime.compat.reasoning_events == "summary"
    assert loaded.runtime.compaction.max_summary_tokens == 100
    assert loaded.sealing.keys == ("KEY1", "KEY2")
    assert loaded.sealing.data_dir == Path("/data")
    assert "KEY1" not in repr(loaded)
    first, second = loaded.runtime.prompts
    assert (first.id, first.version, first.instructions) == ("pmpt_a", "1", "Do {{it}}.")
    assert [(one.role, one.content) for one in first.messages] == [("developer", "Mind {{that}}.")]
    assert first.variables == {"it", "that"}
    assert (second.version, second.model) == ("2", "m")


def test_a_database_is_named_by_its_url_and_switched_off_by_none_or_memory():
    url = "postgresql://me:secret@host/turnwire"
    environment = {"TURNWIRE_DATA_DIR": "/data", "TURNWIRE_DATABASE_URL": url}
    loaded = load_config(environment=environment)
    assert loaded.database.url == url
    assert loaded.sealing.data_dir == Path("/data")
    assert "secret" not in repr(loaded)
    for nothing in ("", "memory"):
        environment["TURNWIRE_DATABASE_URL"] = nothing
        assert load_config(environment=environment).database.is_memory
    default = load_config(environment={"TURNWIRE_DATA_DIR": "/data"}).database
    assert (default.is_memory, default.default_file) == (False, Path("/data/turnwire.db"))


def test_data_is_below_the_user_s_data_directory():
    loaded = load_config(environment={"XDG_DATA_HOME": "/share"})
    assert loaded.sealing.data_dir == loaded.data_dir == Path("/share/turnwire")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("prompts = 7", "prompts: an array of tables"),
        ("prompts = [7]", r"prompts\[0\]: a table with an id"),
        ("[[prompts]]\nversion = '1'", r"prompts\[0\]: a table with an id"),
        ("[[prompts]]\nid = 7", r"prompts\[0\].id: text"),
        ("[[prompts]]\nid = 'a'\nfoo = 1", r"prompts\[0\].foo: unknown key"),
        ("[[prompts]]\nid = 'a'\nmodel = 1", r"prompts\[0\].model: text"),
        ("[[prompts]]\nid = 'a'\n[[prompts]]\nid = 'a'", r"prompts\[1\].version"),
        ("[[prompts]]\nid = 'a'\nmessages = 'x'", r"prompts\[0\].messages"),
        ("[[prompts]]\nid = 'a'\nmessages = [{role = 'x', content = 'y'}]", "role"),
        ("[[prompts]]\nid = 'a'\nmessages = [{role = 'user', content = ''}]", "content"),
        ("[compat]\nreasoning_events = 'both'", "compat.reasoning_events"),
        ("[sealing]\nkey = 'x'", "sealing.key: unknown key"),
    ],
)
def test_prompts_and_dialects_that_cannot_be_used_are_refused(written, text, problem):
    assert re.search(problem, refusal(written(text)))
