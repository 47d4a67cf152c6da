"""TLS on both ports: what is configured is what is served."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import turnwire
from harness.certificates import make_certificate
from harness.grpc_backends import BACKENDS
from turnwire_server.app import Server, StartFailure, make_services
from turnwire_server.config import Config, ConfigFailure, load_config
from turnwire_server.transports.tls import HTTP2, TlsFailure, TlsFiles

SIM = {
    "http.address": "127.0.0.1:0",
    "grpc.address": "127.0.0.1:0",
    "models": [{"engine": "sim"}],
    "sealing.keys": ["A" * 43],
    "database.url": "memory",
}


def config_of(files: TlsFiles, **options: object) -> Config:
    tls = {"tls.certificate": str(files.certificate), "tls.key": str(files.key)}
    return load_config(environment={}, options={**SIM, **tls, **options})


@pytest.mark.parametrize("backend", BACKENDS)
async def test_every_wire_is_served_with_the_certificate(backend: str, tmp_path: Path) -> None:
    files = make_certificate(tmp_path)
    config = config_of(files, **{"grpc.backend": backend})
    server = Server(config, make_services(config))
    await server.start()
    try:
        urls = [server.grpc_url, server.websocket_url, server.http_url.removesuffix("/v1")]
        assert [url.partition("://")[0] for url in urls] == ["grpcs", "wss", "https"]
        roots = files.certificate.read_bytes()
        for url in urls:
            async with (
                asyncio.timeout(20),
                turnwire.connect(url, model="sim", root_certificates=roots) as session,
            ):
                assert (await session.run("Hello.")).output_text.startswith("Simulated")
    finally:
        await server.close()


async def test_files_that_cannot_be_used_stop_the_start(tmp_path: Path) -> None:
    files = make_certificate(tmp_path)
    files.key.write_text("no key")
    config = config_of(files)
    server = Server(config, make_services(config))
    with pytest.raises(StartFailure, match=r"tls\.key"):
        await server.start()


def test_a_certificate_and_another_key_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, other = make_certificate(tmp_path), make_certificate(tmp_path / "other")
    mixed = TlsFiles(one.certificate, other.key)
    for use in (lambda: mixed.context(HTTP2), mixed.grpc_credentials):
        with pytest.raises(TlsFailure, match="no PEM certificate and its key"):
            use()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TlsFailure, match="No such file"):
        TlsFiles(tmp_path / "none.pem", tmp_path / "none.key").context(HTTP2)


@pytest.mark.parametrize("given", ["certificate", "key"])
def test_half_of_a_pair_is_refused(given: str) -> None:
    with pytest.raises(ConfigFailure, match="is needed too"):
        load_config(environment={}, options={**SIM, f"tls.{given}": "some.pem"})


def test_paths_of_a_file_are_relative_to_it(tmp_path: Path) -> None:
    path = tmp_path / "turnwire.toml"
    path.write_text('[tls]\ncertificate = "a.pem"\nkey = "b.pem"\n')
    config = load_config(path, environment={})
    assert config.tls == TlsFiles(tmp_path / "a.pem", tmp_path / "b.pem")


def test_the_back_end_is_a_key_like_any_other() -> None:
    assert load_config(environment={}, options=SIM).grpc.backend == "grpclib"
    config = load_config(environment={"TURNWIRE_GRPC_BACKEND": "grpcio"}, options=SIM)
    assert config.grpc.backend == "grpcio"
    with pytest.raises(ConfigFailure, match=r"grpc\.backend"):
        load_config(environment={}, options={**SIM, "grpc.backend": "tonic"})
