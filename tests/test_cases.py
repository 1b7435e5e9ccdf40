"""The table of cases (cases.md): every case has a row, and every test that a row names is there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
_CASES = """
A02 A04 A06 A08 A09 A10 A12 A13 A14 A15 A16
B02 B03 B04 B06 B08 B09 B10
C05 C06 C07 C08 C09 C10 C11
D02 D05 D06 D07 D09 D10 D11
E01 E02 E03 E06
F02 F03 F04 F06
G03 G05 G06 G07 G09 G10 G11 G12 G13 G16 G17 G18 G20
H01 H02 H03 H05 H07
I02 I03 I04 I05 I06 I08 I11 I12 I13 I14
J02 J03 J04 J05 J06 J07 J10 J12 J13
K01 K02 K04
L02 L03 L05 L06 L07 L08 L09 L11 L12 L14
M01 M03 M05 M06 M07 M08 M09 M11 M13 M15 M17 M18 M19
N02 N03 N04
"""
CASES = _CASES.split()
ROW = re.compile(r"^\| ([A-Z]\d\d) \| (.*) \| (.*) \|$", re.MULTILINE)
NODE = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows() -> list[tuple[str, str, str]]:
    return [(case, tests.strip(), note.strip()) for case, tests, note in ROW.findall((TESTS / "cases.md").read_text())]


@functools.cache
def functions(file: Path) -> frozenset[str]:
    """The test functions at the top of a file."""
    body = ast.parse(file.read_text()).body if file.exists() else []
    return frozenset(one.name for one in body if isinstance(one, ast.FunctionDef) and one.name.startswith("test_"))


def test_every_case_has_its_row() -> None:
    """Once, in order, with a test or the reason why there is none."""
    assert len(CASES) == 106
    assert [case for case, _, _ in rows()] == CASES
    assert [case for case, tests, note in rows() if not tests and not note] == []


def test_every_named_test_exists() -> None:
    """What stands in the second column is nothing but tests, each of them defined where it says."""
    missing = []
    for case, tests, _ in rows():
        found = NODE.findall(tests)
        assert " ".join(f"`{file}::{name}`" for file, name in found) == tests, case
        missing += [(case, file, name) for file, name in found if name not in functions(TESTS / file)]
    assert missing == []
