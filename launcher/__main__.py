"""Where gpu-launcher starts: the one place that turns an error into a line and an exit code."""

import sys

from typer.exceptions import TyperException

from launcher.cli import app
from launcher.errors import LauncherError


def main() -> None:
    try:
        sys.exit(app(standalone_mode=False))
    except LauncherError as error:
        print(f"gpu-launcher: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except TyperException as error:
        print(f"gpu-launcher: {error.format_message()} Try: gpu-launcher --help", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
