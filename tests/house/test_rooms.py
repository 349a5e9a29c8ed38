"""Packages are rooms: imports between them form no cycle, and none is a drawer of many modules.

A room is a package or a module that lies directly in a package. `from a.b import c` is an arrow to the module `a.b.c`
where that exists. The `__init__` of a package is its face and belongs to no room inside of the package.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import pytest

from tests.house.source import PACKAGES, ROOT, imports, name, production_files

FLAT_MODULES_MAX: Final = 12

KNOWN_DRAWERS: Final[dict[str, int]] = {}
"""Package to its number of flat modules, where that is above the limit. The numbers only fall."""


def module_names() -> dict[str, bool]:
    """Dotted names of all modules and packages, and whether each is a package."""
    names = {}
    for path in production_files():
        dotted = name(path).removesuffix(".py").replace("/", ".")
        package = dotted.removesuffix(".__init__")
        names[package] = package != dotted
        for folder in _folders(package):
            names.setdefault(folder, True)
    return names


def _folders(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:size]) for size in range(1, len(parts))]


def arrows_between_rooms() -> dict[str, dict[str, set[str]]]:
    """Return for each package its rooms, and for each room the rooms of the package that it imports."""
    names = module_names()
    arrows: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in production_files():
        importer = name(path).removesuffix(".py").replace("/", ".")
        for module, _ in imports(path):
            if module not in names:
                continue
            for package in _folders(importer):
                if not module.startswith(f"{package}."):
                    break
                room, imported = (each.removeprefix(f"{package}.").partition(".")[0] for each in (importer, module))
                if room not in (imported, "__init__"):
                    arrows[package][room].add(imported)
    return arrows


def cycles(arrows: Mapping[str, Iterable[str]]) -> set[tuple[str, ...]]:
    """The strongly connected parts of more than one node, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = set()

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for target in arrows.get(node, ()):
            if target not in order:
                visit(target)
            if target in stack:
                lowest[node] = min(lowest[node], lowest[target])
        if lowest[node] == order[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.add(tuple(sorted(stack[at:])))
            del stack[at:]

    for node in list(arrows):
        if node not in order:
            visit(node)
    return found


def test_the_search_finds_cycles() -> None:
    assert cycles({"a": "b", "b": "c", "c": "ad", "d": "e", "e": "d", "f": "a", "g": "g"}) == {
        ("a", "b", "c"),
        ("d", "e"),
    }


def test_rooms_form_no_cycle() -> None:
    arrows = arrows_between_rooms()
    found = {package: parts for package, rooms in arrows.items() if (parts := cycles(rooms))}
    print(f"cycles between rooms: {sum(map(len, found.values()))}")
    assert not found


@pytest.mark.parametrize("top", [package for package in PACKAGES if package != "bench"])  # bench: one program a module
def test_a_package_is_no_drawer(top: str) -> None:
    names = module_names()
    flat = Counter(module.rpartition(".")[0] for module, is_package in names.items() if not is_package)
    inside = {package: count for package, count in flat.items() if package.split(".")[0] == top}
    print(f"{top}: at most {max(inside.values())} flat modules in a package")
    known = {package: count for package, count in KNOWN_DRAWERS.items() if package.split(".")[0] == top}
    assert {package: count for package, count in inside.items() if count > FLAT_MODULES_MAX} == known


def test_imports_flow_down_the_package_map() -> None:
    """The lists of packages in docs/ARCHITECTURE.md are complete, and no package imports one above it.

    An import by way of modules that lie between the packages counts, too.
    """
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| `(\w+)/(\w+)` \|", text, re.MULTILINE)
    arrows = arrows_between_rooms()
    packages = {tuple(module.split(".")) for module, is_package in module_names().items() if is_package}
    for top in {top for top, _ in rows}:
        listed = [package for each, package in rows if each == top]
        assert sorted(listed) == sorted(each[1] for each in packages if each[0] == top and len(each) == 2)
        print(f"{top}: {len(listed)} packages in the order of their imports")
        wrong = [
            f"{top}/{low} imports {top}/{high}"
            for at, low in enumerate(listed)
            for high in packages_reached(arrows[top], low, set(listed)) & set(listed[:at])
        ]
        assert not wrong, f"imports against the order in docs/ARCHITECTURE.md: {wrong}"


def packages_reached(arrows: Mapping[str, set[str]], room: str, packages: set[str]) -> set[str]:
    """Return the packages that a room imports, directly or by way of modules which are in none of them."""
    found: set[str] = set()
    pending = [room]
    while pending:
        new = arrows.get(pending.pop(), set()) - found
        found |= new
        pending += new - packages
    return found & packages
