"""What a workflow is once it is defined, and the register of those that this process knows."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from durable_cli.errors import AlreadyDefined, InvalidDefinition, InvalidInput
from durable_cli.keyrules import KeyRule, derive, plain_of
from durable_cli.model import Location, OnDuplicate, Policies, Reuse, Workflow
from durable_cli.places import same_place
from durable_cli.values import MAX_VALUE_BYTES, Codec, codec, resolve


class Unset(enum.Enum):
    """The type of `UNSET`: no value was given, which is not the same as None."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


# -- what was defined ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Definition:
    """A workflow as its code defines it.

    `default` is the value of an absent input (`UNSET`: null). `line` is where the function begins in its file.
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    policies: Policies
    location: Location
    line: int
    parameter: str | None
    default: object = UNSET
    key_rule: KeyRule | None = None
    merge: Callable[[Any, Any], Any] | None = None
    resolved: dict[str, object] = field(default_factory=dict, repr=False)

    @property
    def reuse(self) -> Reuse:
        """May a new start take the key of a finished run?"""
        return self.policies.reuse

    @property
    def on_duplicate(self) -> OnDuplicate:
        """What a start gets whose key is taken."""
        return self.policies.on_duplicate

    @property
    def timeout_ms(self) -> int | None:
        """How long a run may take."""
        return self.policies.timeout_ms

    def key_for(self, input: str) -> str | None:
        """The key that this workflow's own expression gives for a stored input. Raises InvalidKey."""
        if self.key_rule is None:
            return None
        return derive(self.key_rule, self.name, self.input.load(input), plain_of(input))

    def merge_inputs(self, old: str, new: str, *, limit: int = MAX_VALUE_BYTES) -> str:
        """What runs where a newer input would replace an older one: `merge=` of the two, validated. InvalidInput."""
        if self.merge is None:
            return new
        try:
            merged = self.merge(self.input.load(old), self.input.load(new))
        except Exception as error:
            raise InvalidInput(
                f"merge= of workflow {self.name!r} failed, and nothing was started: {type(error).__name__}: {error}"
            ) from None
        return self.input.accept(merged, place="the merged input", limit=limit)

    @property
    def place(self) -> str:
        """`file:line` for messages."""
        return f"{self.location.file}:{self.line}"

    @functools.cached_property
    def input(self) -> Codec:
        """The codec of the input. Resolved when first needed, so that an annotation may name a class further down.

        `InvalidDefinition` when a name in it means nothing.
        """
        if self.parameter is None:
            return codec(None)
        try:
            return codec(self._annotation(self.parameter))
        except NameError as problem:
            raise InvalidDefinition(
                f"workflow {self.name!r} ({self.place}): the annotation of {self.parameter!r}: {problem}",
                hint="import the type outside `if TYPE_CHECKING:`, at the top of the module",
            ) from None

    @functools.cached_property
    def result(self) -> Codec:
        """The codec of the result: plain JSON without a return annotation, or with one that cannot be resolved."""
        try:
            return codec(self._annotation("return"))
        except NameError:
            return codec(inspect.Parameter.empty)

    def _annotation(self, name: str) -> object:
        return self.resolved[name] if name in self.resolved else resolve(self.function, name)

    def accept_input(self, value: object = UNSET, *, limit: int = MAX_VALUE_BYTES) -> str:
        """An input as given, validated, as the JSON text to store. Absent: the parameter's default, else null.

        `InvalidInput` when it does not fit.
        """
        if self.parameter is None:
            if value is None or value is UNSET:
                return "null"
            raise InvalidInput(
                f"workflow {self.name!r} takes no input",
                hint=f"give its function a second parameter ({self.place})",
            )
        if value is UNSET and self.default is not UNSET:
            try:
                return self.input.accept(self.default, place="the default", limit=limit)
            except InvalidInput as problem:
                raise InvalidDefinition(f"workflow {self.name!r} ({self.place}): {problem.message}") from None
        try:
            return self.input.accept(None if value is UNSET else value, limit=limit)
        except InvalidInput as problem:
            if value is UNSET:
                raise InvalidInput(f"workflow {self.name!r} needs an input: {problem.message}") from None
            raise InvalidInput(
                f"workflow {self.name!r}: {problem.message}", facts=problem.facts, hint=problem.hint
            ) from None

    def arguments(self, text: str) -> tuple[object, ...]:
        """What the function is called with behind its context, from the stored input. `Unreadable`."""
        return () if self.parameter is None else (self.input.load(text),)


# -- the register --------------------------------------------------------------------------------------------------

_definitions: dict[str, Definition] = {}


def register(definition: Definition) -> None:
    """Know a workflow by its name. The same function again (a reload, `__main__` and its import) takes the place.

    `AlreadyDefined` when another function at the top of a module has the name. Functions inside functions (tests,
    factories) may share names: the last one counts, and never against one at the top of a module.
    """
    known = _definitions.get(definition.name)
    if known is not None and not same_place(known.location, definition.location):
        if _is_local(definition) and not _is_local(known):
            return
        if not _is_local(definition) and not _is_local(known):
            raise AlreadyDefined(
                f"two workflows are named {definition.name!r}",
                facts=(_described(known), _described(definition)),
                hint='give one of them another name: @workflow(name="...")',
            )
    _definitions[definition.name] = definition


def definitions() -> tuple[Definition, ...]:
    """The workflows that this process knows, in the order in which they were defined."""
    return tuple(_definitions.values())


def loaded_definition(known: Workflow) -> Definition | None:
    """The definition that this process has of the workflow that a row of the file tells of."""
    found = _definitions.get(known.name)
    return found if found is not None and same_place(found.location, known.location) else None


def forget(name: str) -> None:
    """Forget a workflow; one that is not known is no error. For the half-imported, and for tests."""
    _definitions.pop(name, None)


def _is_local(definition: Definition) -> bool:
    return "<locals>" in definition.location.qualname


def _described(definition: Definition) -> str:
    return f"{definition.location.qualname} in {definition.place}"
