"""What the README says is true: its blocks run, its commands and files exist."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from harness.server import RunningServer, running_server
from turnwire_server.cli import main
from turnwire_server.config import load_config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TESTED = re.findall(r"<!-- tested: (\w+) -->\n```\w+\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)


def blocks(kind: str) -> list[str]:
    return [text for tested, text in TESTED if tested == kind]


def on(server: RunningServer, text: str) -> str:
    """The same block, for a server on other ports."""
    moved = text.replace("127.0.0.1:8080", f"127.0.0.1:{server.http_port}")
    return moved.replace("127.0.0.1:50051", server.grpc_target)


async def output_of(*command: str) -> str:
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    async with asyncio.timeout(30):  # The start of an interpreter with the SDK is part of it.
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, "PATH": path, "PYTHONUTF8": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            output, log = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0, log.decode()
    return output.decode()


def test_the_readme_has_what_is_tested_here():
    kinds = [kind for kind, _ in TESTED]
    assert kinds.count("python") == 3
    assert {"serve", "sh", "toml"} <= set(kinds)


@pytest.mark.parametrize("block", range(len(blocks("python"))))
async def test_a_python_block_of_the_readme_prints_what_the_model_says(block):
    async with running_server(any_model=True) as server:
        said = await output_of(sys.executable, "-c", on(server, blocks("python")[block]))
    assert "Simulated answer" in said


@pytest.mark.parametrize("block", range(len(blocks("sh"))))
async def test_a_shell_block_of_the_readme_gets_an_answer(block):
    text = blocks("sh")[block]
    program = re.findall(r"\b(curl|turnwire)\b", text)[0]
    if program == "curl" and shutil.which("curl") is None:
        pytest.skip("needs curl")
    async with running_server(any_model=True) as server:
        said = await output_of("bash", "-euc", on(server, text))
    assert "Simulated" in said


def test_the_toml_block_of_the_readme_is_a_configuration(tmp_path):
    (text,) = blocks("toml")
    path = tmp_path / "turnwire.toml"
    path.write_text(text, encoding="utf-8")
    config = load_config(path, environment={})
    assert [model.name for model in config.models] == ["coder"]
    assert config.runtime.auth_keys


def test_every_file_that_the_readme_links_to_is_there():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_script_that_the_readme_names_can_be_run():
    scripts = set(re.findall(r"\bscripts/\w+", README))
    assert {"scripts/demo", "scripts/test"} <= scripts
    assert [name for name in scripts if not os.access(ROOT / name, os.X_OK)] == []


def test_every_turnwire_command_of_the_readme_is_one(capsys):
    lines = [line for text in COMMANDS for line in text.splitlines()]
    commands = [line.rpartition("turnwire ")[2].split() for line in lines if "turnwire " in line]
    assert ["models", "pull", "smollm2"] in commands
    for command in commands:
        with pytest.raises(SystemExit) as left:
            main([*command, "--help"])
        assert left.value.code == 0
        help_text = capsys.readouterr().out
        options = [word for word in command if word.startswith("--")]
        assert [option for option in options if option not in help_text] == []
