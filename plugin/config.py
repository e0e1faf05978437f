"""The plugin's config file: which functions are offered beyond the GPUs that are offered anyway.

    offer:
    - device: "1234:1111"             # every function with this vendor:device ...
      resource: example.com/bochs     # ... and the card it sits on
    - address: "0000:41:00.0"         # or one function
      resource: example.com/the-good-one

The first rule that fits any function of a card names the card's resource. A GPU that no rule fits keeps its name from
pci.ids.
"""

from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from pci.address import PCIAddress
from pci.sysfs import Function
from plugin.errors import UserError
from plugin.naming import is_resource_name


def _address(value: Any) -> Any:
    if value is None or isinstance(value, PCIAddress):
        return value
    if not isinstance(value, str):
        # YAML 1.1 reads 0000:41:00.0 as a number to base 60.
        raise ValueError(f"found {value!r}; expected an address in quotes, like '0000:41:00.0'")  # noqa: TRY004
    return PCIAddress.parse(value)


def _resource(value: str) -> str:
    if not is_resource_name(value):
        raise ValueError(f"{value!r} is not an extended resource name; expected prefix/name, like example.com/my-card")
    return value


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class Rule(_Model):
    """Offer every card with a fitting function under `resource`. Exactly one of `device` and `address` is set."""

    resource: Annotated[str, AfterValidator(_resource)]
    device: str | None = None
    address: Annotated[PCIAddress | None, BeforeValidator(_address)] = None

    @model_validator(mode="after")
    def _one_selector(self) -> Self:
        if (self.device is None) == (self.address is None):
            raise ValueError("expected either device (vendor:device) or address, to say what is offered")
        if self.device is not None and not _is_pci_id(self.device):
            raise ValueError(f"device {self.device!r}; expected vendor:device in hexadecimal, like '10de:1f08'")
        return self

    def fits(self, function: Function) -> bool:
        if self.address is not None:
            return function.address == self.address
        return self.device is not None and function.pci_id == self.device.lower()


class Config(_Model):
    """What the admin asks for. An empty config offers every NVIDIA, AMD and Intel GPU, and nothing else."""

    offer: tuple[Rule, ...] = ()

    def fitting(self, card: tuple[Function, ...]) -> tuple[Rule, Function] | None:
        """The first rule that fits a function of the card, and that function; None where no rule fits."""
        return next(((rule, function) for rule in self.offer for function in card if rule.fits(function)), None)


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice: a second `offer:` would take the place of the first, and of its rules."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_config(path: Path) -> Config:
    """Read a config file. UserError, in one line, for a file that is missing, is not YAML or asks for nonsense."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot read the config: {error}") from error
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # All but the first are PyYAML's for values that are not of their tag, and for absurd nesting.
        raise UserError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    try:
        return Config.model_validate({} if document is None else document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UserError(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}") from error


def _is_pci_id(text: str) -> bool:
    vendor, _, device = text.partition(":")
    return len(vendor) == len(device) == 4 and all(digit in "0123456789abcdefABCDEF" for digit in vendor + device)
