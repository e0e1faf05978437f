"""Where gpu-plugin starts: the one place that turns an error into a line and an exit code."""

import sys

from click import ClickException

from plugin.cli import app
from plugin.errors import PluginError


def main() -> None:
    try:
        sys.exit(app(standalone_mode=False))
    except PluginError as error:
        print(f"gpu-plugin: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ClickException as error:
        print(f"gpu-plugin: {error.format_message()} Try: gpu-plugin --help", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
