"""`python -m passmuster`: the command line, and the vendor-library child process, which must start light."""

from __future__ import annotations

import sys


def main() -> None:
    """Run a device child (`_device VENDOR`) without paying for the command line, or the command line."""
    from passmuster.apps import add_apps_to_path

    add_apps_to_path()
    if len(sys.argv) == 3 and sys.argv[1] == "_device":
        from importlib import import_module

        import_module("collectors.probe_child").run(sys.argv[2])
        return
    from passmuster.cli import main as cli_main

    cli_main()


if __name__ == "__main__":
    main()
