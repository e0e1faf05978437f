"""Which GPU is which module of the board: the number that the Fabric Manager knows it by, and its PCI address.

From H100 on the manager tells neither address nor UUID. Only the nvidia driver tells which address has which module ID,
and it knows a card no more once that is vfio's. Bus numbers do not tell: their order differs from server to server. So
an ID is known from the config, from the file that the GPU operator writes, or from what `gpu-plugin bind` has read and
kept before it took the cards; else it is not known.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pci.address import PCIAddress, address_or_none
from plugin.cards.config import Fabric
from plugin.state_files import write_whole
from program.child import NoAnswer, output
from program.errors import Refusal

_FILE = "module-ids.json"
_LONGEST = 1 << 18  # bytes of a file of module IDs
_MOST = 64

_GPU = re.compile(r"^GPU ([0-9A-Fa-f:.]+)\s*$")
# "Module ID", "Module Id", "GPU Module ID", by the driver's version.
_MODULE = re.compile(r"^\s+(?:GPU )?Module ID\s*:\s*(\d{1,2})\s*$", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class ModuleIDs:
    """The module IDs that are known, by the GPUs' addresses; and what is wrong with what was read of them."""

    by_address: Mapping[PCIAddress, int]
    faults: tuple[str, ...] = ()

    def of(self, addresses: Iterable[PCIAddress]) -> "ModuleIDs":
        """Return those of these addresses alone."""
        present = set(addresses)
        return ModuleIDs({each: module for each, module in self.by_address.items() if each in present}, self.faults)


def read_nvidia_smi(text: str) -> Mapping[PCIAddress, int]:
    """Return the module IDs that `nvidia-smi -q` has printed; a GPU without one is absent."""
    ids: dict[PCIAddress, int] = {}
    gpu: PCIAddress | None = None
    for line in text.splitlines():
        if heading := _GPU.match(line):
            gpu = address_or_none(heading[1])
        elif gpu is not None and (module := _MODULE.match(line)):
            ids[gpu] = int(module[1])
    return ids


def ask_nvidia_smi(command: Sequence[str], within: float) -> Mapping[PCIAddress, int]:
    """Return the module IDs of the GPUs that the nvidia driver has; Refusal if nvidia-smi does not say within so many
    seconds. `command` is the program with what comes before its own arguments."""
    program = " ".join(command)
    fix = "name the driver's nvidia-smi with --nvidia-smi, or write the IDs to fabric.modules of the config"
    try:
        done = output([*command, "-q"], within=within)
    except OSError as error:
        raise Refusal(program, f"cannot be run: {error.strerror}", fix) from error
    except NoAnswer as error:
        raise Refusal(program, error.problem.wrong, fix) from error
    ids = read_nvidia_smi(done.stdout.decode(errors="replace"))
    if not ids:
        raise Refusal(program, "prints no module IDs", fix)
    return ids


def keep(state: Path, ids: Mapping[PCIAddress, int]) -> None:
    """Write these IDs down beside those that were kept before; Refusal if that cannot be done.

    An address or a module that has another partner now had the other before: cards were moved.
    """
    path = state / _FILE
    kept = {} if not path.exists() else _read(path)
    others = {each: module for each, module in kept.items() if each not in ids and module not in ids.values()}
    document = {str(address): module for address, module in sorted({**others, **ids}.items())}
    try:
        state.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(document, indent=1) + "\n", sync=True)
    except OSError as error:
        raise Refusal(path, f"cannot be written: {error.strerror}", "name a directory with --state") from error


def read_module_ids(fabric: Fabric, state: Path) -> ModuleIDs:
    """Return what is known: by the config, else by the file that it names, else as it was kept.

    What cannot be read is a fault, and so are two GPUs that are said to be one module: both are unknown then.
    """
    faults: list[str] = []
    ids: dict[PCIAddress, int] = {}
    paths = [] if fabric.modules_file is None else [Path(fabric.modules_file)]
    if (state / _FILE).exists():
        paths.append(state / _FILE)
    sources = [{PCIAddress.parse(address): module for address, module in fabric.modules.items()}]
    for path in paths:
        try:
            sources.append(dict(_read(path)))
        except Refusal as error:
            faults.append(str(error))
    for source in sources:
        for address, module in sorted(source.items()):
            ids.setdefault(address, module)
    by_module: dict[int, list[PCIAddress]] = {}
    for address, module in ids.items():
        by_module.setdefault(module, []).append(address)
    for module, addresses in sorted(by_module.items()):
        if len(addresses) > 1:
            faults.append(f"{', '.join(map(str, addresses))}: are both said to be module {module}")
            for address in addresses:
                del ids[address]
    return ModuleIDs(ids, tuple(faults))


def _read(path: Path) -> Mapping[PCIAddress, int]:
    """Read what nvidia-smi -q has printed, or a JSON object of addresses and module IDs, which are numbers or text;
    Refusal if it is neither."""
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST + 1)
    except OSError as error:
        raise Refusal(
            path, f"cannot be read: {error.strerror}", "expected module IDs by PCI address, in JSON"
        ) from error
    try:
        if len(text) > _LONGEST:
            raise ValueError(text)
        if not text.lstrip().startswith(b"{"):
            ids = dict(read_nvidia_smi(text.decode(errors="replace")))
            if not ids:
                raise ValueError(text)
        else:
            ids = {PCIAddress.parse(address): int(module) for address, module in json.loads(text).items()}
        if not all(0 <= module < _MOST for module in ids.values()):
            raise ValueError(text)
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Refusal(
            path,
            "has no module IDs in it",
            'expected module IDs by PCI address, in JSON: {"0000:0f:00.0": 5}, or what nvidia-smi -q prints',
        ) from None
    return ids
