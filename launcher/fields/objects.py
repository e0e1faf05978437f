"""What all objects of a manifest share: pydantic's BaseModel, read as Kubernetes reads JSON.

An object is frozen, and its fields are spelled as in the manifest. An unknown field is refused, no scalar is converted
to another type (`'2'` is no number), and null means that the field is absent.
"""

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import partial
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, Union, get_args, get_origin
from uuid import UUID

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    Strict,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

from program.document import JSONObject
from program.errors import Nonsense

T = TypeVar("T")

#: A list of the manifest's, as a tuple. Strictly, pydantic would make a tuple of nothing but a tuple.
Items = Annotated[tuple[T, ...], Strict(False)]


# Whether pydantic is building an object now.
_builds = ContextVar("_builds", default=False)


class Object(BaseModel):
    """An object all of whose fields are known."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Build a nested object's schema when a manifest first uses it: a start has no time for the others."""
        if _builds.get():
            return core_schema.no_info_plain_validator_function(cls.model_validate)
        token = _builds.set(True)
        try:
            return handler(source)
        finally:
            _builds.reset(token)

    @model_validator(mode="before")
    @classmethod
    def _drop_absent(cls, value: Any) -> Any:
        """Drop nulls, and an empty text where the text is optional: Go templates (Helm) write both for an unset value,
        and Go's decoder takes them for the same."""
        if not isinstance(value, dict) or not (None in value.values() or "" in value.values()):
            return value
        return {name: item for name, item in value.items() if not cls._is_absent(name, item)}

    @classmethod
    def _is_absent(cls, name: str, item: object) -> bool:
        """Return whether an item is null, or an empty optional text; False for an unknown field, which stays an
        error."""
        field = cls.model_fields.get(name)
        if field is None:
            return False
        return item is None or (item == "" and not field.is_required() and _is_text(field.annotation))

    def present_fields(self, *names: str) -> list[str]:
        """Return which of these fields the object has, in this order."""
        return [name for name in names if getattr(self, name) is not None]


Model = TypeVar("Model", bound=Object)


class Validator(Protocol):
    """Reads a document as an object; UserError, which begins with `subject`, if it is none."""

    def __call__(self, kind: type[Model], document: JSONObject, subject: str) -> Model: ...


def one_of(*names: str, none: str = "", fix: str = "expected one of them") -> Any:
    """Return the validator of an Object that may have at most one of these fields. With `none`, an error's text, it has
    to have one."""

    def check(self: Object) -> Object:
        present = self.present_fields(*names)
        if len(present) > 1:
            raise Nonsense(f"has both {present[0]} and {present[1]}", fix)
        if none and not present:
            raise Nonsense(none, fix)
        return self

    return model_validator(mode="after")(check)


class OpenObject(Object):
    """An object that others write into too: fields that are not ours are ignored."""

    model_config = ConfigDict(extra="ignore")


class Unconverted:
    """Annotated[..., Unconverted(why)]: a field of KubeVirt's that does not become a part of the domain, and why."""

    word: ClassVar[str]

    def __init__(self, why: str) -> None:
        #: Why, and the fix where there is one, in a sentence for the schema and the docs.
        self.reason = why

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(core_schema), "description": f"{self.word}: {self.reason}"}


class Refused(Unconverted):
    """Annotated[None, Refused(why, fix)]: a field that is not converted: why, and what to write instead.

    Null, false, an empty text and an empty list ask for nothing and are accepted. An empty mapping is not.
    """

    word = "refused"

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(f"{why}; {fix}")
        self.why, self.fix = why, fix

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return PlainValidator(self._refuse).__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"enum": [False, "", []], "description": f"{self.word}: {self.reason}"}

    def _refuse(self, value: Any) -> None:
        if value is not False and value not in ("", []):
            raise Nonsense(f"is not converted: {self.why}", self.fix)


class Ignored(Unconverted):
    """Annotated[Any, Ignored(why)]: a field that does not affect the domain, whatever its value."""

    word = "ignored"


class PassedOn(Unconverted):
    """Annotated[T, PassedOn(why)]: a T that the pod gets word for word, and that does not affect the domain."""

    word = "passed on"


class Below(Nonsense):
    """Nonsense in a field further below the object that is checked, by its path from there:
    Below("efi.secureBoot", "is ...", "write ...")."""

    def __init__(self, path: str, wrong: str, fix: str) -> None:
        super().__init__(wrong, fix)
        self.path = path


class Several(Nonsense):
    """The errors of several checks of one object: `each`, in their order."""

    def __init__(self, each: list[Nonsense]) -> None:
        super().__init__(each[0].wrong, each[0].fix)
        self.each = each


def placed(path: str, items: Iterable[T]) -> list[tuple[str, T]]:
    """Return the items of the list at a path, each paired with its own path."""
    return [(f"{path}[{index}]", item) for index, item in enumerate(items)]


def check_each(items: Iterable[tuple[str, T]], check: Callable[[T], object]) -> None:
    """Call `check` with each item, which is paired with its path; raise its errors as Below that path."""

    def check_at(path: str, item: T) -> None:
        try:
            check(item)
        except Nonsense as error:
            raise Below(path, error.wrong, error.fix) from None

    check_all(*(partial(check_at, path, item) for path, item in items))


def refuse_twice(
    names: Iterable[tuple[str, object]], fix: str, wrong: str = "is called {name!r}, as {first} is"
) -> None:
    """Raise Nonsense for a repeated name, at the path of the second; each name is paired with its path."""
    paths: dict[object, str] = {}
    for path, name in names:
        if (first := paths.setdefault(name, path)) != path:
            raise Below(path, wrong.format(name=name, first=first), fix)


def check_all(*checks: Callable[[], object]) -> None:
    """Call each check; raise their errors, each once, as one Nonsense."""
    each: dict[str, Nonsense] = {}
    for check in checks:
        try:
            check()
        except Several as several:
            each.update((_key(one), one) for one in several.each)
        except Nonsense as nonsense:
            each[_key(nonsense)] = nonsense
    if len(each) == 1:
        raise next(iter(each.values()))
    if each:
        raise Several(list(each.values()))


def _key(error: Nonsense) -> str:
    return f"{error.path if isinstance(error, Below) else ''}: {error}"


def object_in(annotation: Any) -> type[Object] | None:
    """Return the Object type that a field of this type holds, or lists; None for scalars and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, Object):
        return annotation
    return next((kind for argument in get_args(annotation) if (kind := object_in(argument)) is not None), None)


def is_list(annotation: Any) -> bool:
    """Return whether a field of this type is a list."""
    return get_origin(annotation) is tuple or any(map(is_list, get_args(annotation)))


def _is_text(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_text(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return any(map(_is_text, get_args(annotation)))
    return origin is Literal or annotation in (str, UUID)


def dotted(path: Sequence[str | int]) -> str:
    """Return a path as an error shows it: domain.devices.disks[0].name."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
