"""Loads AMD's Python binding whatever release it is of: the only file that imports `amdsmi`.

The binding binds every symbol of libamd_smi.so when it is imported, and struct layouts change with each release: a
binding and a library of different releases may import and then answer garbage. What each release does when something
is missing: KeyError ROCM_PATH (6.1), a print and KeyError 'libamd_smi.so' (6.2 to 7.13), OSError at the first call
(from 7.14), AttributeError for a library older than the binding.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from collectors.device import LibraryAbsent, LibraryBroken

ROCM = "/opt/rocm"
LIBRARY = "libamd_smi.so"
DRIVER_NOT_LOADED = 34

# Major version of the library by the ROCm releases that had it, from AMD SMI's changelog.
LIBRARY_MAJORS = {24: ("6.1", "6.2", "6.3"), 25: ("6.4",), 26: ("7.",), 27: ("10.",)}


def load() -> Any:
    """Import the binding, that of ROCm before one from an index, and return its module, not yet initialised.

    Raises LibraryAbsent where binding or library are not there, LibraryBroken where they do not fit each other.
    """
    rocm = os.environ.get("ROCM_PATH") or ROCM
    # Up to 6.1 the binding indexes this variable without looking.
    os.environ.setdefault("ROCM_PATH", rocm)
    # The library's mutex is shared by all processes of the host: an amd-smi that was killed would stall us for seconds.
    os.environ.setdefault("RSMI_MUTEX_THREAD_ONLY", "1")
    shipped = Path(rocm) / "share" / "amd_smi"
    if (shipped / "amdsmi").is_dir() and str(shipped) not in sys.path:
        sys.path.insert(0, str(shipped))
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            return import_module("amdsmi")
    except ModuleNotFoundError:
        raise LibraryAbsent(
            f"the Python module amdsmi is not installed: it comes with ROCm ({shipped}) or as passmuster[amd]"
        ) from None
    except KeyError:  # how a binding up to 7.13 says that it found no library
        raise LibraryAbsent(f"{LIBRARY} is not on this host: install amd-smi-lib; {_told(printed)}") from None
    except OSError as error:
        raise LibraryAbsent(f"{LIBRARY} cannot be loaded: {error}; install amd-smi-lib") from None
    except (AttributeError, ImportError) as error:
        raise LibraryBroken(
            f"the amdsmi binding does not fit {LIBRARY}: {error}; use the binding of the same ROCm ({shipped})"
        ) from None


def initialise(binding: Any, gpus_on_bus: int) -> None:
    """Initialise the library for GPUs; ``gpus_on_bus`` is how many PCI shows. Raises LibraryAbsent or LibraryBroken."""
    try:
        binding.amdsmi_init(binding.AmdSmiInitFlags.INIT_AMD_GPUS)
    except OSError as error:  # from 7.14 on the library is looked for now
        raise LibraryAbsent(f"{LIBRARY} cannot be loaded: {error}; install amd-smi-lib") from None
    except binding.AmdSmiException as error:
        code = getattr(error, "err_code", None)
        if code == DRIVER_NOT_LOADED and not gpus_on_bus:
            raise LibraryAbsent(f"there is no AMD GPU on this host (AMD SMI answers {code})") from None
        if code == DRIVER_NOT_LOADED:
            what = "the amdgpu kernel driver is not loaded: load it (modprobe amdgpu), then start again"
        else:
            what = "look into the kernel log and run amd-smi"
        raise LibraryBroken(f"AMD SMI does not start (code {code}): {what}") from None


def versions(binding: Any) -> dict[str, str]:
    """Return the versions of binding and library, and the files that they were loaded from."""
    found = {"amdsmi": _binding_version(binding)}
    found["amdsmi_file"] = str(Path(binding.__file__).resolve().parent)[-256:]
    number = _library_version(binding)
    if number is not None:
        found["library"] = ".".join(map(str, number))
    path = library_path()
    if path is not None:
        found["library_file"] = str(path)[-256:]
    return found


def refuse_mixed(binding: Any) -> None:
    """Raise LibraryBroken where binding and library are told to be of different releases."""
    found = versions(binding)
    reason = mismatch(found["amdsmi"], Path(found["amdsmi_file"]), _library_version(binding), library_path())
    if reason:
        raise LibraryBroken(
            f"{reason}: struct layouts differ between releases and the answers would be garbage; "
            "use the binding that ships with this library's ROCm (share/amd_smi)"
        )


def mismatch(release: str, package: Path, number: tuple[int, ...] | None, library: Path | None) -> str | None:
    """Return why a binding and a library are not of one release, None where nothing speaks against them.

    ``release`` is the binding's version and ``package`` its folder, ``number`` the library's own version and
    ``library`` its file. A binding that lies in a ROCm tree belongs to that tree's library; one from an index carries
    the release of ROCm as its version.
    """
    tree = package.parent.parent.parent if package.parent.name == "amd_smi" else None
    if tree is not None:
        outside = library is not None and not library.is_relative_to(tree.resolve())
        return f"the amdsmi binding is of {tree}, its library is {library}" if outside else None
    installed = _release_of_tree(library)
    if installed is not None and installed[:2] != _numbers(release)[:2]:
        return f"the amdsmi binding is of release {release}, {library} is of ROCm {'.'.join(map(str, installed))}"
    expected = LIBRARY_MAJORS.get(number[0]) if number else None
    if expected is not None and number is not None and not release.startswith((*expected, f"{number[0]}.")):
        return f"the amdsmi binding is of release {release}, the library is {'.'.join(map(str, number))}"
    return None


def library_path() -> Path | None:
    """Return the file of libamd_smi that this process has mapped."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            path = line.partition("/")[2]
            if "libamd_smi" in path:
                return Path("/" + path).resolve()
    return None


def _release_of_tree(library: Path | None) -> tuple[int, ...] | None:
    if library is None:
        return None
    try:
        text = (library.parent.parent / ".info" / "version").read_text(encoding="ascii")[:64]
    except (OSError, UnicodeDecodeError):
        return None
    return _numbers(text) or None


def _numbers(text: str) -> tuple[int, ...]:
    found = re.match(r"\d{1,4}(?:\.\d{1,6})*", text.strip())
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def _binding_version(binding: Any) -> str:
    told = str(getattr(binding, "__version__", "") or "")
    if not told:
        with contextlib.suppress(PackageNotFoundError):
            told = version("amdsmi")
    return told[:64] or "unknown"


def _library_version(binding: Any) -> tuple[int, ...] | None:
    try:
        told = binding.amdsmi_get_lib_version()
        return tuple(int(told[part]) for part in ("major", "minor", "release"))
    except (binding.AmdSmiException, OSError, LookupError, TypeError, ValueError):
        return None


def _told(printed: io.StringIO) -> str:
    lines = [line.strip() for line in printed.getvalue().splitlines() if line.strip()]
    return f"the binding said {lines[0][:200]!r}" if lines else "the binding said nothing"
