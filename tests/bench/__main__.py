"""All the figures: the launcher's render and what is in it, then the plugin's serve. One alone:
`python -m tests.bench.plugin`."""

from tests.bench import convert, plugin, render

if __name__ == "__main__":
    render.main()
    print()
    convert.main()
    print()
    plugin.main()
