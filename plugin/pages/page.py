"""The node as a page for a browser: every device with its state, who has it and why it is not offered; and the picture.

Pure: from a snapshot to HTML. The page requests itself again and again, and shows changes.
"""

from drawing.boxes import Element, drawn
from drawing.page import Page, element, page
from plugin.cards.inventory import Device
from plugin.node.snapshot import DeviceState, Snapshot
from plugin.pages.boxes import Style, title
from plugin.pages.picture import layout

_SECONDS = 5  # between two requests for changes

_COLOURS = {state: Style[state.name].colours.edge for state in DeviceState}
_STYLE = """
ul { list-style: none; margin: 0; padding: 0; display: grid; gap: .75rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
li { border: 1px solid var(--edge); border-left: .5rem solid var(--state); border-radius: .3rem;
  padding: .5rem .75rem; }
h3 { font-size: 1rem; margin: 0; display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem; }
code { font-family: "DejaVu Sans Mono", "Liberation Mono", Menlo, Consolas, monospace; font-size: .85rem; }
.alarm { border-left: .5rem solid #d55e00; padding: .25rem .75rem; margin: .75rem 0; }
.picture { overflow-x: auto; border: 1px solid var(--edge); margin-bottom: .75rem; }
.picture svg { display: block; margin: 0 auto; max-width: 100%; min-width: 46rem; height: auto; }
@media (prefers-color-scheme: dark) { .picture svg { filter: invert(.91) hue-rotate(180deg); } }
""" + "".join(f"li.{state.name.lower()} {{ --state: {colour}; }}\n" for state, colour in _COLOURS.items())
_SCRIPT = """
const status = document.getElementById("status");
const time = () => new Date().toLocaleTimeString();
let seen = time(), shown = document.querySelector("main").innerHTML;
const tell = (text, alarm) => { status.textContent = text; status.className = alarm ? "alarm" : "faint"; };
tell("As of " + seen + ".", false);
setInterval(async () => {
  try {
    const answer = await fetch("", { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(String(answer.status));
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    const main = next.querySelector("main");
    if (main.innerHTML !== shown) {
      shown = main.innerHTML;
      document.title = next.title;
      document.querySelector("main").replaceWith(main);
    }
    tell("As of " + (seen = time()) + ".", false);
  } catch {
    tell("gpu-plugin has not answered since " + seen + ": this is what it said then.", true);
  }
}, SECONDS * 1000);
""".replace("SECONDS", str(_SECONDS))


def node_page(snapshot: Snapshot, *, sees_node: bool = True) -> Page:
    """Return the node as a page. `sees_node` is False if the node cannot be read now, as in the watch."""
    devices = snapshot.inventory.devices
    heading = title(snapshot) if snapshot.node is None else f"{snapshot.node}: {title(snapshot)}"
    picture = drawn(title(snapshot), layout(snapshot))
    picture.set("role", "img")
    picture.set("aria-label", f"The node as a picture: {title(snapshot)}")
    parts = [element("h1", heading), *_warnings(snapshot, sees_node=sees_node)]
    if devices:
        parts.append(element("ul", *(_device(snapshot, device) for device in devices)))
        parts.append(element("h2", "Where they are"))
        frame = element("div", picture, class_="picture", tabindex="0", role="region", aria_label="Where they are")
        parts.append(frame)
    status = element("p", class_="faint", id="status", role="status")
    return page(
        f"{heading} - gpu-plugin",
        element("main", *parts),
        status,
        style=_STYLE,
        script=_SCRIPT,
        refresh=_SECONDS,
    )


def _warnings(snapshot: Snapshot, *, sees_node: bool) -> list[Element]:
    """Return a line for each fact that is unknown now."""
    sentences = [] if sees_node else ["The node cannot be looked at now: everything stands as it was seen last."]
    if snapshot.unknown:
        sentences.append(f"Not known now: {', '.join(snapshot.unknown)}.")
    sentences += [f"Out of service, and no device of this node: {address}." for address in snapshot.stray_cordons]
    sentences += [f"Not read: {each}" for each in snapshot.not_read]
    return [element("p", text, class_="alarm") for text in sentences]


def _device(snapshot: Snapshot, device: Device) -> Element:
    state, reason, user = snapshot.state(device), snapshot.reason(device), snapshot.user(device)
    lines = [element("p", device.model)]
    if user is not None:
        lines.append(element("p", f"in use by {user}"))
    if reason is not None:
        lines.append(element("p", f"It {reason}."))
    lines += [element("p", f"It {left}.") for left in device.left_behind]
    if device.resource is not None:
        word = "as " if device.withheld is None else "would be "
        lines.append(element("p", word, element("code", device.resource)))
    where = [
        f"driver {device.lead.driver}" if device.lead.driver else "no driver",
        f"IOMMU group {', '.join(map(str, device.iommu_groups))}" if device.iommu_groups else "no IOMMU group",
        *(() if device.numa_node is None else (f"NUMA node {device.numa_node}",)),
    ]
    return element(
        "li",
        element("h3", element("code", device.id), element("span", state)),
        *lines,
        element("p", ", ".join(where), class_="faint"),
        class_=state.name.lower(),
    )
