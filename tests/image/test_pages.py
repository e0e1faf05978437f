"""The pages in Debian's chromium: nothing is asked for elsewhere, nothing is complained about, and it fits a phone.

`--regenerate` takes the screenshots of docs/pictures anew; look at them.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from launcher.choosing.cluster import cluster_of
from launcher.choosing.map import map_of
from pci.address import PCIAddress
from plugin.cards.names import PCIIDs
from plugin.changes.users import Assignment
from plugin.node.snapshot import Snapshot
from plugin.pages.page import node_page
from tests import clusters
from tests.browser import Browser, browsing
from tests.compose import Function, bars, bridge, compose
from tests.conftest import Machine
from tests.kernel import bind, make_nodes
from tests.kubelet import running_kubelet
from tests.plugin.daemon import free_port, serve, status, wait_until
from tests.processes import ROOT
from tests.snapshots import look_at, snapshot_of

PICTURES = ROOT / "docs/pictures"
PHONE, DESK = 390, 1280
_MOST_BYTES = 150 << 10  # of a screenshot
_WIDER = "document.documentElement.scrollWidth > window.innerWidth"
_LIGHT = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((sum, each) => sum + Number(each), 0)"
_FOCUS = "document.activeElement.className || document.activeElement.id || document.activeElement.localName"


@pytest.fixture(scope="module")
def only_browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture
def browser(only_browser: Browser) -> Browser:
    """A browser that nothing was asked of."""
    only_browser.open("about:blank")
    only_browser.requests.clear()
    only_browser.troubles.clear()
    return only_browser


def sixteen_h100(sys: Path) -> Path:
    """Two sockets with eight GPUs each, two below each root complex; a few are in another state than the rest."""
    functions: list[Function] = []
    for number in range(8):
        root, numa = f"{0x10 + 0x18 * number:02x}", number // 4
        for port in (1, 2):
            path, bus = f"pci0000:{root}", f"{int(root, 16) + port:02x}"
            functions.append(bridge(f"0000:{root}:0{port}.1", "1022:14ab", path=path, group=len(functions), numa=numa))
            driver = "nvidia" if (number, port) == (7, 2) else "vfio-pci"
            functions.append(
                Function(address=f"0000:{bus}:00.0", id="10de:2331", pci_class=0x030200,
                         path=f"{path}/0000:{root}:0{port}.1", subsystem="10de:1626", driver=driver,
                         group=len(functions), numa=numa, resource=bars((1 << 40, 128 << 30)))
            )  # fmt: skip
    compose(sys, functions)
    return sys


def in_use(snapshot: Snapshot, pods: Iterable[str]) -> Snapshot:
    """The same node, where the pods have the first devices and the device after these fell off the bus."""
    devices = iter(device for device in snapshot.inventory.offered)
    assignments = frozenset(
        Assignment(pod, str(device.resource), device.id) for pod, device in zip(pods, devices, strict=False)
    )
    fallen = frozenset({PCIAddress.parse(next(devices).id)}) if len(snapshot.inventory.offered) > 8 else frozenset()
    return replace(snapshot, assignments=assignments, sees_pods=True, fallen=fallen)


@pytest.fixture
def node_of(tmp_path: Path, machine: Machine, pci_ids: PCIIDs) -> Callable[[int], Snapshot]:
    """A node with so many GPUs, of which some pods have a few."""

    def of(cards: int) -> Snapshot:
        names = {1: "rtx-2060", 8: "hgx-a100-8-gpu"}
        sys = machine(names[cards]) if cards in names else sixteen_h100(tmp_path / "sys")
        seen = look_at(sys, pci_ids, dev=make_nodes(sys, tmp_path / "dev"))
        return in_use(seen, ("vms/desk", "ml/train-0", "ml/train-1", "ml/train-2", "ml/batch")[: max(1, cards // 3)])

    return of


def keep(path: Path, png: bytes) -> None:
    small = subprocess.run(["pngquant", "64", "-"], input=png, capture_output=True, check=True).stdout
    assert len(small) < _MOST_BYTES, f"{path}: {len(small)} bytes"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(small)


@pytest.mark.parametrize("cards", [1, 8, 16])
def test_the_nodes_page_is_for_a_desk_a_phone_a_keyboard_and_the_dark(
    browser: Browser, tmp_path: Path, node_of: Callable[[int], Snapshot], cards: int, request: pytest.FixtureRequest
) -> None:
    file = tmp_path / "node.html"
    file.write_text(node_page(node_of(cards)).html)
    for width in (PHONE, DESK):
        for dark in (True, False):
            browser.open(file.as_uri(), width=width, dark=dark)
            assert not browser.value(_WIDER)
            assert (browser.value(_LIGHT) < 3 * 128) == dark
    assert browser.value("[...document.querySelectorAll('li')].every(card => card.scrollWidth <= card.clientWidth)")
    if request.config.getoption("--regenerate"):
        keep(PICTURES / f"node-{cards}.png", browser.screenshot(whole=True))
    browser.press("Tab")
    assert browser.value(_FOCUS) == "picture"
    assert browser.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert set(browser.requests) == {file.as_uri()}
    assert browser.troubles == []
    if cards == 8 and request.config.getoption("--regenerate"):
        browser.open(file.as_uri(), width=PHONE, height=844, dark=True)
        keep(PICTURES / "node-8-phone.png", browser.screenshot())


def test_the_map_of_a_thousand_nodes_opens_at_once_and_is_filtered(
    browser: Browser, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    by_plugin = [
        clusters.node_of("edge-0", capacity={clusters.RTX_3090: "5"}),
        clusters.pod_on("edge-0", "desk", {clusters.RTX_3090: "1", "cpu": "4", "memory": "16Gi"}),
        clusters.node_of("edge-1", cordoned=True),
    ]
    nodes = (clusters.node_of(f"node-{number:04}", {clusters.RTX_3090: "0"}) for number in range(1000))
    file = tmp_path / "map.html"
    file.write_text(map_of(cluster_of([*by_plugin, *clusters.large(1000), *nodes]), datetime.now(UTC)).html)
    for width, dark in ((PHONE, True), (DESK, False)):
        browser.open(file.as_uri(), width=width, dark=dark)
        assert not browser.value(_WIDER)
        assert (browser.value(_LIGHT) < 3 * 128) == dark
        assert browser.value("[...document.querySelectorAll('section')].every(each => each.scrollWidth <= innerWidth)")
    opened = browser.value("performance.getEntriesByType('navigation')[0].loadEventEnd")
    if request.config.getoption("--regenerate"):
        keep(PICTURES / "map-1000.png", browser.screenshot())
    told = "document.getElementById('told').textContent"
    assert browser.value(told) == "1002 of 1002 nodes are shown."
    choose = (
        "{const began = performance.now();"
        "const options = [...document.querySelectorAll('option')];"
        "const option = options.findLast(each => each.textContent === 'WORD');"
        "option.selected = true; option.parentNode.dispatchEvent(new Event('input', {bubbles: true}));"
        "document.body.offsetHeight; performance.now() - began}"
    )
    chosen = browser.value(choose.replace("WORD", clusters.RTX_3090))
    assert browser.value(told) == "2 of 1002 nodes are shown."
    browser.value(choose.replace("WORD", "free"))
    assert browser.value(told) == "1 of 1002 nodes are shown."
    visible = (
        "[...document.querySelectorAll('li')].filter(each => each.checkVisibility()).map(each => each.textContent)"
    )
    assert browser.value(visible) == ["3: free"]
    for word in (clusters.RTX_3090, "free"):
        browser.value(choose.replace("WORD", word).replace("option.selected = true", "option.selected = false"))
    search = (
        "{const input = document.querySelector('input'); input.value = 'WORD';"
        "input.dispatchEvent(new Event('input', {bubbles: true}))}"
    )
    browser.value(search.replace("WORD", " ML/Desk "))
    assert (browser.value(told), browser.value(visible)) == ("1 of 1002 nodes are shown.", ["1: pod ml/desk"])
    browser.value(search.replace("WORD", ""))
    assert browser.value(told) == "1002 of 1002 nodes are shown."
    print(f"a thousand nodes: opened in {opened:.0f} ms, filtered in {chosen:.0f} ms")
    assert opened < 5000
    assert chosen < 2000
    browser.press("Tab")
    assert browser.value(_FOCUS) == "select"
    assert set(browser.requests) == {file.as_uri()}
    assert browser.troubles == []
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(file.as_uri())
        assert browser.value("document.getElementById('filter').checkVisibility()") is False
        assert browser.value("document.querySelectorAll('section:not([hidden])').length") == 1002
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


class _Below(BaseHTTPRequestHandler):
    """As the API server's proxy: a pod's port below a path of its own."""

    PREFIX = "/api/v1/namespaces/gpu-plugin/pods/gpu-plugin-x:8081/proxy"
    port: int

    def do_GET(self) -> None:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", self.path.removeprefix(self.PREFIX))
            answer = connection.getresponse()
            text = answer.read()
        except OSError:
            self.send_error(502)
            return
        finally:
            connection.close()
        self.send_response(answer.status if self.path.startswith(self.PREFIX) else 403)
        for name, value in answer.getheaders():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.mark.parametrize("proxied", [False, True])
def test_the_page_shows_what_is_new_and_says_when_the_plugin_is_away(
    browser: Browser, machine: Machine, tmp_path: Path, short_dir: Path, proxied: bool
) -> None:
    sys, port = tmp_path / "sys", free_port()
    shutil.copytree(machine("two-rtx-3090"), sys, symlinks=True)
    _Below.port = port
    states = "[...document.querySelectorAll('h3 span')].map(each => each.textContent).join()"
    told = "document.getElementById('status').textContent"
    with ThreadingHTTPServer(("127.0.0.1", 0), _Below) as proxy, running_kubelet(short_dir):
        Thread(target=proxy.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{proxy.server_port}{_Below.PREFIX}/" if proxied else f"http://127.0.0.1:{port}/"
        with serve(sys, short_dir, "--health", str(port)):
            wait_until(lambda: status(port, "/") == 200)
            browser.open(url)
            wait_until(lambda: browser.value(states) == "free,free")
            bind(sys, "0000:01:00.1", None)
            wait_until(lambda: browser.value(states) == "unhealthy,free")
            assert browser.troubles == []
            assert set(browser.requests) == {url}
        wait_until(lambda: "has not answered since" in browser.value(told))
        with serve(sys, short_dir, "--health", str(port)):
            wait_until(lambda: browser.value(told).startswith("As of"))
        proxy.shutdown()


def test_a_hostile_name_runs_nothing(browser: Browser, tmp_path: Path, machine: Machine, pci_ids: PCIIDs) -> None:
    name = "</script><script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
    seen = in_use(snapshot_of(machine("rtx-2060"), pci_ids), [f"vms/{name}"])
    file = tmp_path / "node.html"
    file.write_text(node_page(seen).html)
    browser.open(file.as_uri())
    assert browser.value("window.ran") is None
    assert name in browser.value("document.body.textContent")
    # What the policy is for: a script that is in the page nevertheless.
    browser.value("document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))")
    assert browser.value("window.ran") is None
    assert any("Content Security Policy" in trouble for trouble in browser.troubles)
