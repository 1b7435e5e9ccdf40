"""What may be a key and what may be a name (CASES A06, SPEC 3.1 and 4.1)."""

from __future__ import annotations

import enum

import pytest

from durable_cli.core.keys import brief, check_key, check_step_name, check_workflow_name
from durable_cli.errors import InvalidKey, InvalidName


class Text(enum.StrEnum):
    ARTICLE = "article:1"


ALLOWED = ["k", "x" * 255, "é" * 127 + "k", " k ", "a:b/c\n", "ключ", "😀" * 63, "e\u0301", "None"]
REFUSED = [
    10**5000,
    "",
    "x" * 256,
    "é" * 128,
    "😀" * 64,
    "a\0b",
    "\0",
    "a\ud800",
    "\udc80",
    b"k",
    7,
    0,
    1.5,
    True,
    False,
    ["k"],
    {},
]


@pytest.mark.parametrize("key", ALLOWED)
def test_key_is_kept_exactly(key: str) -> None:
    """1 to 255 bytes of UTF-8 are a key, and nothing about it is trimmed, folded or normalised."""
    assert check_key(key) == key


@pytest.mark.parametrize("key", REFUSED, ids=brief)
def test_everything_else_is_refused(key: object) -> None:
    """No other text and no other type is a key: never a keyless start, never str() of what was given."""
    with pytest.raises(InvalidKey) as caught:
        check_key(key)
    assert caught.value.message.isascii()
    assert "\n" not in caught.value.message


def test_no_key() -> None:
    """None is the one way to say that there is no key."""
    assert check_key(None) is None


def test_subclass_of_str_counts_by_its_characters() -> None:
    """What comes back is plain text, so that the database binds what was checked."""
    assert check_key(Text.ARTICLE) == "article:1"
    assert type(check_key(Text.ARTICLE)) is str


@pytest.mark.parametrize(("key", "told"), [("x" * 256, "256 bytes"), ("é" * 128, "256 bytes"), (7, "not int: 7")])
def test_message_says_what_is_wrong(key: object, told: str) -> None:
    """The size is told in bytes, because that is what the limit is in; a wrong type with its value."""
    with pytest.raises(InvalidKey, match=told):
        check_key(key)


@pytest.mark.parametrize("name", ALLOWED)
def test_step_names_are_as_keys(name: str) -> None:
    """Names of steps, events and branches follow the rule of keys."""
    assert check_step_name(name) == name


@pytest.mark.parametrize("name", [*REFUSED, None], ids=brief)
def test_step_needs_a_name(name: object) -> None:
    """What is no key is no name of a step, and neither is None."""
    with pytest.raises(InvalidName):
        check_step_name(name)


@pytest.mark.parametrize("name", ["a", "_", "7", "sync-all.v2", "a" * 128, "größe", "Z_"])
def test_workflow_names(name: str) -> None:
    """A workflow's name is [A-Za-z0-9_][\\w.\\-]{0,127}."""
    assert check_workflow_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "a" * 129, ".a", "-a", "é", "a b", "a:b", "a/b", "a\n", "<lambda>", None, 7], ids=brief
)
def test_no_workflow_names(name: object) -> None:
    """Whatever could be taken for an option, a path, a target or nothing is no name of a workflow."""
    with pytest.raises(InvalidName):
        check_workflow_name(name)
