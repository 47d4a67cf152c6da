"""The command line: options become a configuration, and failures one clear message."""

from __future__ import annotations

import asyncio
import io
import re
import sys

import pytest

from harness.families import write_folder
from harness.server import running_server
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.cli import main
from turnwire_server.cli.failure import CommandFailure
from turnwire_server.cli.local_tools import LOCAL_TOOLS, calculate, current_time
from turnwire_server.cli.serve import add_parser, config_of

COMMANDS = (
    ["serve"],
    ["chat"],
    ["models"],
    ["models", "pull"],
    ["models", "show"],
    ["demo"],
    ["usage"],
)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("TURNWIRE_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def parsed(*arguments: str):
    import argparse

    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return config_of(parser.parse_args(["serve", *arguments]))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as left:
        main([*command, "--help"])
    assert left.value.code == 0
    assert f"turnwire {' '.join(command)}" in capsys.readouterr().out


def test_without_a_command_the_usage_is_shown(capsys):
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_serve_takes_addresses_and_a_simulation_from_its_options():
    config = parsed(
        *("--http", "localhost:0", "--grpc", "[::1]:7", "--any-model", "--engine", "sim"),
        *("--model", "gpt", "--rate", "1000", "--prefill-rate", "9", "--tool-rounds", "0"),
    )
    (model,) = config.models
    assert (str(config.http_address), str(config.grpc_address)) == ("localhost:0", "[::1]:7")
    assert config.any_model
    assert (model.name, model.engine) == ("gpt", "sim")
    assert isinstance(model.settings, SimSettings)
    assert model.settings.tokens_per_second == 1000.0
    assert model.settings.prefill_tokens_per_second == 9.0
    assert model.settings.agent.tool_rounds == 0


def test_serve_runs_the_small_model_on_the_embedded_engine_by_default():
    (model,) = parsed().models
    assert (model.name, model.engine, model.path) == ("smollm2", "openvino", "smollm2")


def test_serve_takes_any_gguf_by_its_path(tmp_path):
    (model,) = parsed("--model", str(tmp_path / "mine.gguf")).models
    assert (model.name, model.path) == ("mine", str(tmp_path / "mine.gguf"))


def test_options_replace_the_models_of_the_file_and_keep_the_rest(tmp_path):
    path = tmp_path / "turnwire.toml"
    path.write_text("any_model = true\n[[models]]\nengine = 'sim'\nname = 'a'\n", encoding="utf-8")
    assert [model.name for model in parsed("--config", str(path)).models] == ["a"]
    config = parsed("--config", str(path), "--engine", "sim")
    assert [model.name for model in config.models] == ["sim"]
    assert config.any_model


def test_a_rate_without_the_simulation_is_refused():
    with pytest.raises(CommandFailure, match="--engine sim"):
        parsed("--rate", "5")


def test_serve_without_a_pulled_model_says_how_to_get_one(capsys):
    assert main(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]) == 1
    said = capsys.readouterr().err
    assert "turnwire models pull smollm2" in said
    assert "Traceback" not in said


def test_a_wrong_option_value_is_one_message(capsys):
    assert main(["serve", "--http", "everywhere"]) == 1
    assert capsys.readouterr().err == (
        "turnwire: command line: http.address: HOST:PORT is needed, not 'everywhere'.\n"
    )


@pytest.mark.parametrize("scheme", ["grpc", "ws", "http"])
def test_chat_without_a_server_is_two_sentences(capsys, scheme):
    assert main(["chat", f"{scheme}://127.0.0.1:9"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("turnwire: no connection to 127.0.0.1:9")
    assert re.search(r"[^.]\. Is a server running there\? Start one with: turnwire serve\n$", said)


def test_models_lists_what_can_be_fetched(capsys):
    assert main(["models", "list"]) == 0
    assert "smollm2" in capsys.readouterr().out


def test_models_prints_where_a_model_would_be(capsys, tmp_path):
    assert main(["models", "path"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "turnwire" / "models")
    assert main(["models", "path", "smollm2"]) == 0
    assert capsys.readouterr().out.strip().endswith(".gguf")


def test_models_tells_about_a_model_that_is_not_here(capsys):
    assert main(["models", "show", "smollm2"]) == 0
    said = capsys.readouterr().out
    assert "Apache-2.0" in said
    assert "turnwire models pull smollm2" in said


def test_models_shows_a_folder_and_what_its_template_does(capsys, tmp_path):
    folder = write_folder(tmp_path / "qwen", "qwen")
    assert main(["models", "show", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "keeps prefixes" in said
    assert re.search(r"^calls +hermes$", said, re.M)


def test_models_shows_a_model_as_it_is_configured(capsys, tmp_path):
    write_folder(tmp_path / "qwen", "qwen")
    path = tmp_path / "turnwire.toml"
    path.write_text(
        """
        [[models]]
        name = "mine"
        path = "./qwen"
        history = "exact"
        format = "mistral"
        keeps_prefixes = false
        moves_tools = true
        [[models]]
        engine = "sim"
        """,
        encoding="utf-8",
    )
    assert main(["models", "--config", str(path), "show", "mine"]) == 0
    said = capsys.readouterr().out
    for fact in ("engine +openvino", "history +exact", "calls +mistral", "template class +moves"):
        assert re.search(f"^{fact}", said, re.M), fact
    assert main(["models", "--config", str(path), "show", "sim"]) == 0
    assert "simulation" in capsys.readouterr().out


def test_models_names_what_there_is_when_a_name_is_unknown(capsys):
    assert main(["models", "pull", "gpt-6"]) == 1
    assert "'gpt-6'" in capsys.readouterr().err


def test_chat_without_a_server_says_how_to_start_one(capsys):
    assert main(["chat", "http://127.0.0.1:1"]) == 1
    assert "turnwire serve" in capsys.readouterr().err


def test_chat_refuses_a_url_of_another_kind(capsys):
    assert main(["chat", "ftp://127.0.0.1"]) == 1
    assert "grpc://" in capsys.readouterr().err


@pytest.mark.parametrize("wire", ["grpc", "websocket", "http"])
async def test_chat_runs_a_tool_and_continues_the_conversation(wire, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("What time is it?\n\nAnd now?\n"))
    async with running_server() as server, asyncio.timeout(20):
        # The chat is synchronous: it has a thread of its own here, as a terminal would.
        assert await asyncio.to_thread(main, ["chat", server.url(wire)]) == 0
    said = capsys.readouterr().out
    assert said.count("Simulated answer after 1 tool output") == 2
    assert said.count("current_time({})") == 2
    assert said.count("2 turns") == 2


async def test_a_refused_turn_does_not_end_the_chat(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("One.\nTwo.\n"))
    async with running_server() as server, asyncio.timeout(20):
        arguments = ["chat", server.grpc_url, "--model", "unknown"]
        assert await asyncio.to_thread(main, arguments) == 0
    assert capsys.readouterr().out.count("model_not_found") == 2


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("-7 // 2", "-4"),
        ("7 / 4", "1.75"),
        ("+5 % 3", "2"),
    ],
)
def test_the_calculator_computes(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os')",
        "2 ** 9999",
        "1 if 1 else 2",
        "9e99",
        "10**15 * 10",
        "a",
        "1 +",
        "True",
        "",
    ],
)
def test_the_calculator_does_nothing_else(expression):
    with pytest.raises(ValueError, match=r"can be used|too large|not an arithmetic"):
        calculate(expression)


def test_the_calculator_has_a_bound():
    with pytest.raises(ValueError, match="longer than"):
        calculate("1+" * 200 + "1")


def test_the_clock_needs_no_argument():
    assert current_time().endswith("UTC")
    assert set(LOCAL_TOOLS) == {"current_time", "calculate"}
