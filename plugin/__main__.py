"""Where gpu-plugin starts."""

import sys

from plugin.cli import command_line
from program.commands import called
from program.entry import ends_with


def main() -> None:
    ends_with("gpu-plugin", lambda: called("gpu-plugin", command_line(sys.argv[1:])))


if __name__ == "__main__":
    main()
