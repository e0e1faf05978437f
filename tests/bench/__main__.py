"""All the figures: the launcher's render, then the plugin's serve. Either alone: `python -m tests.bench.plugin`."""

from tests.bench import plugin, render

if __name__ == "__main__":
    render.main()
    print()
    plugin.main()
