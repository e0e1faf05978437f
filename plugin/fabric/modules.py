"""The GPUs' module IDs: the numbers by which the Fabric Manager knows them, by PCI address.

From H100 on the manager tells neither address nor UUID, and bus numbers have another order on each server model. Only
the nvidia driver knows the module ID of an address, and only until vfio has the card. So an ID comes from the config,
from a file that the config names, or from `gpu-plugin bind`, which reads it before it takes the card.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pci.address import PCIAddress, address_or_none
from plugin.cards.config import Fabric
from plugin.state_files import STATE_FIX, StateFile, json_of
from program.child import NoAnswer, output
from program.errors import Refusal

_MOST = 64
_EXPECTED = "expected module IDs by PCI address, in JSON"

_GPU = re.compile(r"^GPU ([0-9A-Fa-f:.]+)\s*$")
# "Module ID", "Module Id", "GPU Module ID", by the driver's version.
_MODULE = re.compile(r"^\s+(?:GPU )?Module ID\s*:\s*(\d{1,2})\s*$", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class ModuleIDs:
    """The known module IDs by the GPUs' addresses, and what is wrong with their sources."""

    by_address: Mapping[PCIAddress, int]
    faults: tuple[str, ...] = ()


def read_nvidia_smi(text: str) -> Mapping[PCIAddress, int]:
    """Return the module IDs in the output of `nvidia-smi -q`; a GPU without one is absent."""
    ids: dict[PCIAddress, int] = {}
    gpu: PCIAddress | None = None
    for line in text.splitlines():
        if heading := _GPU.match(line):
            gpu = address_or_none(heading[1])
        elif gpu is not None and (module := _MODULE.match(line)):
            ids[gpu] = int(module[1])
    return ids


def ask_nvidia_smi(command: Sequence[str], within: float) -> Mapping[PCIAddress, int]:
    """Return the module IDs of the GPUs that the nvidia driver has; Refusal if nvidia-smi does not print them `within`
    so many seconds. `command` starts nvidia-smi, without its own arguments."""
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
    """Add these IDs to the file of kept IDs; Refusal if the file cannot be read or written.

    A kept ID goes if its address or its module is among the new ones: cards were moved.
    """
    file, new = _kept(state), {str(address): module for address, module in ids.items()}
    others = {
        address: module
        for address, module in (file.recover() or {}).items()
        if address not in new and module not in new.values()
    }
    file.write(dict(sorted({**others, **new}.items())))


def read_module_ids(fabric: Fabric, state: Path) -> ModuleIDs:
    """Return the known module IDs: from the config, else from the file that it names, else the kept ones.

    A source that cannot be read is a fault. So are two GPUs with one module ID: both IDs are unknown then.
    """
    faults: list[str] = []
    ids: dict[PCIAddress, int] = {}
    # The kubelet's files of a ConfigMap are links.
    named = [] if fabric.modules_file is None else [_file(Path(fabric.modules_file).resolve(), _EXPECTED)]
    sources = [fabric.modules]
    for file in (*named, _kept(state)):
        try:
            sources.append(file.read() or {})
        except Refusal as error:
            faults.append(str(error))
    faults += [f"{file.path}: does not exist; {_EXPECTED}" for file in named if not file.path.exists()]
    for source in sources:
        for text, module in sorted(source.items()):
            ids.setdefault(PCIAddress.parse(text), module)
    by_module: dict[int, list[PCIAddress]] = {}
    for address, module in ids.items():
        by_module.setdefault(module, []).append(address)
    for module, addresses in sorted(by_module.items()):
        if len(addresses) > 1:
            faults.append(f"{', '.join(map(str, addresses))}: are both said to be module {module}")
            for address in addresses:
                del ids[address]
    return ModuleIDs(ids, tuple(faults))


def _kept(state: Path) -> StateFile[Mapping[str, int]]:
    return _file(state / "module-ids.json", STATE_FIX)


def _file(path: Path, place: str) -> StateFile[Mapping[str, int]]:
    fix = f'{_EXPECTED}: {{"0000:0f:00.0": 5}}, or what nvidia-smi -q prints'
    return StateFile(path=path, of=_read, wrong="has no module IDs in it", fix=fix, place=place)


def _read(text: bytes) -> Mapping[str, int]:
    """Return the module IDs by address from a JSON object, whose values are numbers or text, or from the output of
    nvidia-smi -q; ValueError for any other text."""
    ids: Mapping[PCIAddress, int]
    if text.lstrip().startswith(b"{"):
        document = json_of(dict[str, int | str])(text)
        ids = {PCIAddress.parse(address): int(module) for address, module in document.items()}
    else:
        ids = read_nvidia_smi(text.decode(errors="replace"))
        if not ids:
            raise ValueError("it has none")
    if not all(0 <= module < _MOST for module in ids.values()):
        raise ValueError("no module has such an ID")
    return {str(address): module for address, module in ids.items()}
