"""The `turnwire` command: it lives here so that a client-only install can say what it lacks."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line, or say which extra it needs.

    Returns:
        The exit code for the shell.
    """
    try:
        from turnwire_server.cli import main as run
    except ModuleNotFoundError as missing:
        # Our own modules ship in every install: one that is missing is a fault, not a choice.
        if missing.name is None or missing.name.startswith("turnwire_server."):
            raise
        sys.stderr.write(
            f"turnwire: this command needs the server's dependencies ({missing.name} is missing).\n"
            "Install them with: pip install 'turnwire[server]'\n"
            "and 'turnwire[server,openvino]' to run the embedded model.\n"
        )
        return 1
    return run()


if __name__ == "__main__":
    sys.exit(main())
