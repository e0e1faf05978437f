"""All the figures: the launcher's render and what is in it, its run, then the plugin's serve. One alone:
`python -m tests.bench.plugin`."""

from tests.bench import convert, launch, plugin, render

if __name__ == "__main__":
    render.main()
    print()
    convert.main()
    print()
    launch.main()
    print()
    plugin.main()
