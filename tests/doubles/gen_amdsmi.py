"""Writes the C source of a fake libamd_smi.so for one `amdsmi` binding, from the ctypes classes of that binding.

`python gen_amdsmi.py symbols PACKAGE` prints stubs of every symbol that the binding takes at import; with these loaded,
`python gen_amdsmi.py source PACKAGE` prints fake_amdsmi.c and the tables and functions that complete it.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

RUNTIME = Path(__file__).parent / "fake_amdsmi.c"
MAX_NESTED = 16  # elements of a nested array of structs that a scenario can name

Row = tuple[str, int, int, int, str]


def symbols(package: Path) -> list[str]:
    """Return the names that the binding looks up in its library."""
    text = (package / "amdsmi_wrapper.py").read_text(encoding="utf-8")
    return sorted(set(re.findall(r"_libraries\['libamd_smi.so'\]\.(\w+)", text)))


def rows(kind: Any, base: int = 0, name: str = "") -> Iterator[Row]:
    """Yield name, offset, element size, count and kind of each field, nested ones with dots and brackets."""
    if issubclass(kind, ctypes.Structure):
        for field, field_kind, *bits in kind._fields_:
            if bits or field.startswith("PADDING") or "reserved" in field:
                continue
            at = base + getattr(kind, field).offset
            yield from rows(field_kind, at, f"{name}.{field}" if name else field)
    elif issubclass(kind, ctypes.Array):
        element, length = kind._type_, kind._length_
        if element is ctypes.c_char:
            yield name, base, 1, length, "s"
        elif issubclass(element, (ctypes.Structure, ctypes.Array)):
            for i in range(min(length, MAX_NESTED)):
                yield from rows(element, base + i * ctypes.sizeof(element), f"{name}[{i}]")
        elif issubclass(element, ctypes._SimpleCData):
            yield name, base, ctypes.sizeof(element), length, "i"
    elif issubclass(kind, (ctypes.c_float, ctypes.c_double)):
        yield name, base, ctypes.sizeof(kind), 1, "f"
    elif issubclass(kind, ctypes._SimpleCData) and kind is not ctypes.c_void_p:
        yield name, base, ctypes.sizeof(kind), 1, "i"


def table(name: str, kind: Any, linkage: str = "static ") -> str:
    """Return the C table of one struct."""
    body = "".join(f"{{\"{n}\",{offset},{size},{count},'{k}'}}," for n, offset, size, count, k in rows(kind))
    return (
        f"static const struct row rows_{name}[] = {{{body}{{0}}}};\n"
        f"{linkage}const struct layout {name} = {{{ctypes.sizeof(kind)}, rows_{name}}};\n"
    )


def results_of(arguments: list[Any]) -> tuple[list[Any], list[Any]] | None:
    """Split what follows the handle into selectors and results; None for another shape of function."""
    selectors = [a for a in arguments if not issubclass(a, ctypes._Pointer)]
    pointers = [a for a in arguments if issubclass(a, ctypes._Pointer)]
    if not pointers or arguments != selectors + pointers:
        return None
    kinds = [getattr(a, "_type_", None) for a in pointers]
    if any(k in (None, ctypes.c_char) or issubclass(k, ctypes._Pointer) for k in kinds):
        return None
    if not all(issubclass(s, ctypes._SimpleCData) for s in selectors):
        return None
    return selectors, kinds


def function(name: str, selectors: list[Any], kinds: list[Any]) -> str:
    """Return tables and C function of one data-driven symbol."""
    numbers = [f"s{i}" for i in range(len(selectors))]
    outs = [f"o{i}" for i in range(len(kinds))]
    parameters = ["void *handle"]
    parameters += [f"uint{8 * ctypes.sizeof(s)}_t s{i}" for i, s in enumerate(selectors)]
    parameters += [f"void *{out}" for out in outs]
    layouts = [f"{name}_{i}" for i in range(len(kinds))]
    return (
        "".join(table(layout, kind) for layout, kind in zip(layouts, kinds, strict=True))
        + f"API {name}({', '.join(parameters)})\n{{\n"
        + f"    const u64 selector[] = {{{', '.join(numbers) or '0'}}};\n"
        + f"    void *const result[] = {{{', '.join(outs)}}};\n"
        + f"    const struct layout *const layouts[] = {{{', '.join(f'&{layout}' for layout in layouts)}}};\n"
        + f'    return answer(handle, "{name}", {len(numbers)}, selector, {len(outs)}, result, layouts);\n}}\n'
    )


def source(package: Path) -> str:
    """Return the whole C source, importing the binding against whatever library the environment shows it."""
    sys.path.insert(0, str(package.parent))
    wrapper = import_module(f"{package.name}.amdsmi_wrapper")
    runtime = RUNTIME.read_text(encoding="utf-8")
    by_hand = set(re.findall(r"^API (\w+)\(", runtime, re.MULTILINE))
    event = wrapper.amdsmi_evt_notification_data_t
    handle = next(getattr(event, f[0]).offset for f in event._fields_ if "handle" in f[0])
    parts = [
        runtime,
        table("layout_page", wrapper.amdsmi_retired_page_record_t, ""),
        table("layout_process", wrapper.amdsmi_proc_info_t, ""),
        table("layout_event", event, ""),
        table("layout_version", wrapper.amdsmi_version_t, ""),
        f"const int event_handle_offset = {handle};\n",
    ]
    for name in symbols(package):
        if name in by_hand:
            continue
        arguments = list(getattr(getattr(wrapper, name), "argtypes", None) or [])
        acts = "_set_" in name or "reset" in name
        shape = None
        if arguments and arguments[0] is wrapper.amdsmi_processor_handle and not acts:
            shape = results_of(arguments[1:])
        parts.append(function(name, *shape) if shape else f"API {name}(void) {{ return NOT_SUPPORTED; }}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2]).resolve()
    if what == "symbols":
        shown = '__attribute__((visibility("default")))'
        print("\n".join(f"{shown} unsigned {name}(void) {{ return 2; }}" for name in symbols(where)))
    else:
        print(source(where))
