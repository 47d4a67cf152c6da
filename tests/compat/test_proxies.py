"""What stands in front of the server, and what hammers on it: nginx, and a load generator."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.compat import ROOT, Row, Target, installed, node_path, run
from harness.ports import free_port
from turnwire_server.conformance import SuiteSettings, run_suite

pytestmark = pytest.mark.compat

AROUND = """\
worker_processes 1;
daemon off;
pid nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
{recipe}
}}
"""


def recipe_for(target: Target, http_port: int, grpc_port: int) -> str:
    """The recipe of the documentation, for a server and ports of our own, without TLS."""
    text = (ROOT / "docs/proxies.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- tested: nginx -->\n```nginx\n(.*?)```", text, re.DOTALL)
    assert found is not None
    changes = {
        "127.0.0.1:8080": target.base_url.removeprefix("http://").removesuffix("/v1"),
        "127.0.0.1:50051": target.grpc.removeprefix("grpc://"),
        "listen 443 ssl http2;": f"listen 127.0.0.1:{http_port};\n"
        f"  listen 127.0.0.1:{grpc_port} http2;",
    }
    recipe = re.sub(r"^ *ssl_.*\n", "", found.group(1), flags=re.MULTILINE)
    for old, new in changes.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    return recipe


@contextmanager
def nginx(program: str, recipe: str, directory: Path) -> Iterator[None]:
    (directory / "nginx.conf").write_text(AROUND.format(recipe=recipe), encoding="utf-8")
    command = [program, "-p", str(directory), "-c", "nginx.conf", "-e", "stderr"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=20)


async def listening(port: int) -> None:
    """Wait until something listens: it is not ours, and says nothing when it does."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        writer.close()
        return


async def test_everything_passes_through_nginx(obliging: Target, row: Row, tmp_path: Path) -> None:
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("needs nginx")
    said = run([program, "-v"], directory=tmp_path)
    row("nginx in front", said.strip().rpartition("/")[2], "http, websocket, lanes, grpc")
    http_port, grpc_port = free_port(), free_port()
    with nginx(program, recipe_for(obliging, http_port, grpc_port), tmp_path):
        async with asyncio.timeout(20):
            await listening(http_port)
            await listening(grpc_port)
        settings = SuiteSettings(
            f"http://127.0.0.1:{http_port}/v1", f"127.0.0.1:{grpc_port}", model="sim"
        )
        async with asyncio.timeout(200):
            report = await run_suite(settings)
    assert [(one.check.id, one.transport, one.reason) for one in report.failed] == []
    assert report.count("pass") > 300
    row.read("ok the conformance suite")


def test_a_load_generator_gets_its_answers(obliging: Target, row: Row, tmp_path: Path) -> None:
    client = installed("autocannon")
    row("autocannon", client.version, "http")
    body = json.dumps({"model": "some-model", "input": "Say hello.", "store": False})
    command = [node_path(), client.directory / "node_modules/autocannon/autocannon.js", "--json"]
    command += ["--connections", "50", "--amount", "1000", "--method", "POST"]
    command += ["--headers", "content-type=application/json", "--body", body]
    printed = run([*command, f"{obliging.base_url}/responses"], directory=tmp_path)
    report = json.loads(printed[printed.index("{") :])
    assert (report["2xx"], report["non2xx"], report["errors"]) == (1000, 0, 0), report
    row.read("ok 1,000 requests on 50 connections")
