"""Where gpu-plugin starts: the one place that turns an error into a line and an exit code."""

import io
import os
import sys

from click import ClickException

from plugin.cli import command_line
from plugin.errors import PluginError, one_line


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # models have names that not every locale can print
    try:
        code = command_line(sys.argv[1:])(standalone_mode=False)
        if sys.stdout is not None:  # closed from the start
            sys.stdout.flush()
        sys.exit(code)
    except PluginError as error:
        print(f"gpu-plugin: {one_line(error)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ClickException as error:
        print(f"gpu-plugin: {one_line(error.format_message())} Try: gpu-plugin --help", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        # Standard output that is full or closed. Python would try to flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        what = "cannot write" if error.filename is None else one_line(error.filename)
        print(f"gpu-plugin: {what}: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
