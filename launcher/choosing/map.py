"""A cluster as a page for a browser: its nodes, their cards, who has which, and what is free.

Pure: from a cluster to HTML. With DRA each card is known. With a device plugin only the number of cards of each pod is
known, not which.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import ROUND_FLOOR, Decimal
from enum import Enum
from itertools import groupby

from drawing.boxes import Element
from drawing.page import Page, element, page
from launcher.choosing.affinity import keeps_away
from launcher.choosing.cluster import Cluster, Node
from launcher.choosing.nodes import NodeState, requests_of
from launcher.choosing.objects import objects_of, part_of
from launcher.choosing.obstacles import CORDON, OF_KUBERNETES
from pci import slices as words
from pci.resource import NodeDevice
from program.output import natural_key
from program.problem import summary

_SHARED = frozenset(map(str, NodeDevice))
_GIBIBYTE = 1 << 30
_STYLE = """
label { display: inline-block; max-width: 100%; margin: 0 1rem .5rem 0; }
select, input { font: inherit; max-width: 100%; }
[hidden] { display: none !important; }
table { border-collapse: collapse; margin: .75rem 0; }
th, td { text-align: left; vertical-align: top; padding: .15rem .75rem .15rem 0; border-bottom: 1px solid var(--edge); }
@media (max-width: 40rem) {
  tr { display: grid; grid-template-columns: 4rem 4rem 4.5rem 6rem 1fr; }
  th, td { padding-right: .25rem; }
  th:first-child, td:first-child { grid-column: 1 / -1; border: none; padding-bottom: 0; }
}
main { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); }
section { border: 1px solid var(--edge); border-radius: .3rem; padding: .5rem .75rem;
  content-visibility: auto; contain-intrinsic-size: auto 20rem; }
section h2 { margin: 0; }
h3 { font-size: 1rem; margin: .5rem 0 .25rem; }
ul { list-style: none; margin: 0; padding: 0; }
li { border-left: .5rem solid #d55e00; padding: 0 .5rem; margin: .15rem 0; }
li.free { border-color: #009e73; }
li.taken { border-color: #0072b2; }
li.tainted { border-color: #cc79a7; }
.alarm { border-left: .5rem solid #d55e00; padding: .25rem .75rem; margin: .25rem 0; }
"""
_SCRIPT = """
const filter = document.getElementById("filter"), [model, state] = filter.querySelectorAll("select");
const search = filter.querySelector("input");
const nodes = document.querySelectorAll("section"), told = document.getElementById("told");
const show = () => {
  const words = search.value.trim().toLowerCase();
  let count = 0;
  for (const node of nodes) {
    let some = !model.value && !state.value && !words;
    for (const group of node.querySelectorAll("div")) {
      let any = false;
      for (const cards of group.querySelectorAll("li")) {
        const is_other = state.value && cards.className !== state.value;
        cards.hidden = is_other || !cards.textContent.toLowerCase().includes(words);
        any ||= !cards.hidden;
      }
      group.hidden = !any || model.value && group.dataset.model !== model.value;
      some ||= !group.hidden;
    }
    node.hidden = !some;
    count += some;
  }
  told.textContent = count + " of " + nodes.length + " nodes are shown.";
};
filter.addEventListener("input", show);
filter.hidden = false;
show();
"""


class CardState(Enum):
    """Whether a VM could have a card. TAINTED: nobody has it, and only a VM that tolerates the taint of the card or its
    node can get it. UNAVAILABLE: nobody has it, and nobody can get it now."""

    FREE = "free"
    TAKEN = "taken"
    TAINTED = "tainted"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Cards:
    """A number of cards of one model on a node; `text`: which they are, and who has them, or why nobody can."""

    model: str
    state: CardState
    text: str
    count: int = 1


def cards_of(node: Node, cluster: Cluster) -> list[Cards]:
    """Return a node's cards by model; DRA's cards one by one, in the order of publication."""
    state = cluster.states.get(node.name)
    of_plugin = () if state is None else _counted(state, has_cordons=node.name in cluster.cordons)
    cards = [*_published(node, cluster), *of_plugin]
    return sorted(cards, key=lambda each: each.model)


def _published(node: Node, cluster: Cluster) -> Iterator[Cards]:
    of_node, its_taints = _kept_from(cluster.states.get(node.name))
    cordons = cluster.cordons.get(node.name, {})
    for device in node.devices:
        place = device.attribute(words.PCI_BUS_ID) or device.id.name
        model = device.product or device.id.driver
        taints = [taint for taint in device.taints if keeps_away(taint, ())]
        ours = [taint for taint in taints if taint.key in (words.CORDONED, words.UNHEALTHY)]
        cordon = cordons.get(device.attribute(words.PCI_BUS_ID))
        why = [] if cordon is None else [f"taken out of service {cordon}"]
        why += [] if device.cannot is None else [device.cannot]
        why += [f"tainted: {taint}" for taint in ours if cordon is None or taint.key != words.CORDONED]
        why += [] if cluster.has_room(device) else ["its card has no room left for it"]
        why += of_node
        tainted = [*(f"tainted: {taint}" for taint in taints if taint not in ours), *its_taints]
        if (holder := cluster.taken.get(device.id)) is not None:
            yield Cards(model, CardState.TAKEN, ", ".join([f"{place}: {holder}", *why[: cordon is not None]]))
        elif why:
            yield Cards(model, CardState.UNAVAILABLE, f"{place}: {', '.join([*why, *tainted])}")
        elif tainted:
            yield Cards(model, CardState.TAINTED, f"{place}: {', '.join(tainted)}")
        else:
            yield Cards(model, CardState.FREE, f"{place}: free")


def _counted(node: NodeState, *, has_cordons: bool) -> Iterator[Cards]:
    """Yield the cards that device plugins offer on the node."""
    of_node, tainted = _kept_from(node)
    for resource in {**node.capacity, **node.allocatable}:
        if not _is_of_cards(resource) or not node.offers(resource):
            continue
        for pod in node.pods:
            if units := int(pod.requests.get(resource, 0)):
                yield Cards(resource, CardState.TAKEN, f"{units}: pod {pod.name}", units)
        if (free := int(node.free(resource))) > 0:
            state = CardState.UNAVAILABLE if of_node else CardState.TAINTED if tainted else CardState.FREE
            yield Cards(resource, state, f"{free}: {', '.join([*of_node, *tainted]) or state.value}", free)
        if (unhealthy := int(node.capacity.get(resource, 0) - node.allocatable.get(resource, 0))) > 0:
            why = "unhealthy or out of service" if has_cordons else "unhealthy"
            yield Cards(resource, CardState.UNAVAILABLE, f"{unhealthy}: {why}", unhealthy)


def _kept_from(node: NodeState | None) -> tuple[list[str], list[str]]:
    """Return, in words, why no pod can come to a node, and the taints that a pod may tolerate. Taints of Kubernetes
    itself mean that something is wrong with the node; no VM tolerates them."""
    if node is None:
        return [], []
    taints = [taint for taint in node.taints if keeps_away(taint, ())]
    passing = [taint for taint in taints if taint.key.startswith(OF_KUBERNETES)]
    is_told = [taint for taint in passing if taint.key != CORDON.key]
    of_node = [*["its node is cordoned"] * node.is_cordoned, *(f"its node is tainted: {taint}" for taint in is_told)]
    return of_node, [f"its node is tainted: {taint}" for taint in taints if taint not in passing]


def _is_of_cards(resource: str) -> bool:
    """Return whether a device plugin offers the resource, and not as a device that pods share, such as /dev/kvm."""
    _, slash, name = resource.partition("/")
    return bool(slash) and name not in _SHARED


def map_of(cluster: Cluster, made: datetime) -> Page:
    """Return the cluster as a page; `made`: its time, in UTC."""
    cluster = replace(cluster, nodes=tuple(sorted(cluster.nodes, key=lambda node: natural_key(node.name))))
    of_nodes = {node.name: cards_of(node, cluster) for node in cluster.nodes}
    having = [node for node in cluster.nodes if of_nodes[node.name] or node.broken]
    names = sorted({each.model for cards in of_nodes.values() for each in cards})
    models = {name: number for number, name in enumerate(names)}
    counts = Counter[CardState]()
    for cards in of_nodes.values():
        counts.update(_by_state(cards))
    title = f"{_number(len(having), 'node')}, {_number(counts.total(), 'card')}: {_in_words(counts)}"
    return page(
        f"{title} - gpu-launcher",
        element("h1", title),
        *(element("p", text, class_="faint") for text in _notes(cluster, of_nodes, made)),
        *([_table(models, of_nodes)] if models else []),
        _filter(models),
        element("main", *(_section(node, of_nodes[node.name], models, cluster) for node in having)),
        style=_STYLE,
        script=_SCRIPT,
    )


def _notes(cluster: Cluster, cards_of: Mapping[str, list[Cards]], made: datetime) -> Iterator[str]:
    yield f"As of {made:%Y-%m-%d %H:%M} UTC: this page does not change by itself."
    if bare := [node.name for node in cluster.nodes if not cards_of[node.name] and not node.broken]:
        yield f"Without cards: {summary(bare)}."
    waiting = [
        name
        for name, pod in sorted(cluster.waiting.items(), key=lambda each: natural_key(each[0]))
        if objects_of(part_of(pod, "spec", pod), "resourceClaims", pod) or any(map(_is_of_cards, requests_of(pod)))
    ]
    if waiting:
        yield f"Waiting for a node: {summary(waiting)}; kubectl gpuvm why says why."
    yield from (f"Note: {gap}." for gap in cluster.gaps)


def _table(models: Mapping[str, int], cards_of: Mapping[str, list[Cards]]) -> Element:
    """Return a table: the number of cards of each model by state, and on how many nodes one is free."""
    totals = {model: Counter[CardState]() for model in models}
    places = Counter[str]()
    for cards in cards_of.values():
        for model, its in groupby(cards, key=lambda each: each.model):
            of_node = _by_state(its)
            totals[model].update(of_node)
            places[model] += of_node[CardState.FREE] > 0
    rows = [
        (model, *(str(total[state]) for state in CardState), _number(places[model], "node"))
        for model, total in totals.items()
    ]
    head = element("tr", *(element("th", text, scope="col") for text in ("model", *_WORDS, "free on")))
    return element(
        "table",
        element("thead", head),
        element("tbody", *(element("tr", *(element("td", cell) for cell in row)) for row in rows)),
    )


_WORDS = tuple(state.value for state in CardState)


def _filter(models: Mapping[str, int]) -> Element:
    """Return the page's filter, which the script makes visible."""
    of_models = [element("option", model, value=str(number)) for model, number in models.items()]
    of_states = [element("option", word, value=word) for word in _WORDS]
    return element(
        "div",
        element("label", "Model ", element("select", element("option", "all", value=""), *of_models)),
        element("label", "Cards ", element("select", element("option", "all", value=""), *of_states)),
        element("label", "VM, pod or card ", element("input", type="search")),
        element("span", id="told", role="status", class_="faint"),
        id="filter",
        hidden="",
    )


def _section(node: Node, cards: list[Cards], models: Mapping[str, int], cluster: Cluster) -> Element:
    parts = [element("h2", node.name)]
    if (state := cluster.states.get(node.name)) is not None:
        parts.append(element("p", _room(state), class_="faint"))
    parts += [element("p", text, class_="alarm") for text in node.broken]
    by_dra = {device.attribute(words.PCI_BUS_ID) for device in node.devices}
    left = {address: cordon for address, cordon in cluster.cordons.get(node.name, {}).items() if address not in by_dra}
    parts += [element("p", f"{address} was taken out of service {cordon}") for address, cordon in left.items()]
    for model, its in groupby(cards, key=lambda each: each.model):
        group = list(its)
        rows = [element("li", each.text, class_=each.state.value) for each in group]
        heading = element("h3", f"{model}: {_in_words(_by_state(group))}")
        parts.append(element("div", heading, element("ul", *rows), data_model=str(models[model])))
    return element("section", *parts)


def _room(node: NodeState) -> str:
    """Return the node's free CPUs and memory, and what keeps pods away."""
    words = [
        f"{_amount(name, node.free(name))} of {_amount(name, node.allocatable[name])} {name} free"
        for name in ("cpu", "memory")
        if name in node.allocatable
    ]
    words += ["cordoned"] * node.is_cordoned
    words += [f"tainted: {taint}:{taint.effect}" for taint in node.taints]
    return ", ".join(words)


def _amount(resource: str, amount: Decimal) -> str:
    """Write CPUs or bytes as people do, rounded down to a tenth: `3.5`, `0.5 GiB`."""
    is_memory = resource == "memory"
    tenths = (amount / (_GIBIBYTE if is_memory else 1)).quantize(Decimal("0.1"), ROUND_FLOOR)
    return f"{tenths:f}".removesuffix(".0") + " GiB" * is_memory


def _by_state(cards: Iterable[Cards]) -> Counter[CardState]:
    counts = Counter[CardState]()
    for each in cards:
        counts[each.state] += each.count
    return counts


def _in_words(counts: Counter[CardState]) -> str:
    return ", ".join(f"{counts[state]} {state.value}" for state in CardState if counts[state]) or "none"


def _number(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"
