"""Compiles the fake vendor libraries, once per content, and says how a child process finds them.

`python tests/doubles/build.py nvml` (or amdsmi) prints the folder of the compiled library.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

SOURCES = Path(__file__).parent
CACHE = Path(tempfile.gettempdir()) / f"passmuster-doubles-{os.getuid()}"
FLAGS = (
    "-std=gnu11",
    "-O1",
    "-g",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-pthread",
)


def compile_shared(name: str, source: Path, soname: str, *extra: Path) -> Path:
    """Return the folder that holds ``soname``, compiled from ``source`` (and ``extra`` C files) against scn.h.

    Raises RuntimeError where there is no C compiler or it refuses the source: a test that needs the double fails,
    it is not skipped.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise RuntimeError("no C compiler (cc) on the path: install gcc or clang, the fake vendor libraries need it")
    inputs = (SOURCES / "scn.h", source, *extra)
    digest = hashlib.sha256(b"\0".join([*(f.read_bytes() for f in inputs), " ".join(FLAGS).encode()])).hexdigest()
    folder = CACHE / f"{name}-{digest[:16]}"
    library = folder / soname
    if library.exists():
        return folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Tests run side by side: each compiles under a name of its own, and the rename is one step.
    fresh = folder / f"{soname}.{os.getpid()}"
    command = [compiler, *FLAGS, f"-I{SOURCES}", f"-Wl,-soname,{soname}", "-o", str(fresh)]
    done = subprocess.run([*command, str(source), *map(str, extra)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{source.name} does not compile:\n{done.stderr}")
    fresh.replace(library)
    return folder


def nvml() -> Path:
    """Return the folder of the fake libnvidia-ml.so.1."""
    return compile_shared("nvml", SOURCES / "fake_nvml.c", "libnvidia-ml.so.1")


def nvml_environment(scenario: Path) -> dict[str, str]:
    """Return the variables under which a new process loads the fake NVML and reads ``scenario``."""
    return {"LD_LIBRARY_PATH": str(nvml()), "FAKE_DEVICE_SCENARIO": str(scenario)}


def amdsmi(package: Path | None = None) -> Path:
    """Return the folder of a fake libamd_smi.so for the installed `amdsmi` binding, or for the one at ``package``."""
    if package is None:
        found = find_spec("amdsmi")
        if found is None or found.origin is None:
            raise RuntimeError("the binding amdsmi is not installed: pip install amdsmi")
        package = Path(found.origin).parent
    generator = SOURCES / "gen_amdsmi.py"
    inputs = (generator, SOURCES / "fake_amdsmi.c", package / "amdsmi_wrapper.py")
    digest = hashlib.sha256(b"\0".join(f.read_bytes() for f in inputs)).hexdigest()[:16]
    # The binding imports only with a library that has all its symbols: first stubs, then the layouts that it shows.
    complete = CACHE / f"amdsmi-{digest}.c"
    if not complete.exists():
        CACHE.mkdir(mode=0o700, parents=True, exist_ok=True)
        stubs = CACHE / f"amdsmi-stubs-{digest}.c"
        _write(stubs, _generate(generator, "symbols", package, {}))
        folder = _with_lib(compile_shared("amdsmi-stubs", stubs, "libamd_smi.so"))
        _write(complete, _generate(generator, "source", package, _amdsmi_paths(folder)))
    return _with_lib(compile_shared("amdsmi", complete, "libamd_smi.so"))


def amdsmi_environment(scenario: Path, package: Path | None = None) -> dict[str, str]:
    """Return the variables under which a new process loads the fake AMD SMI and reads ``scenario``."""
    return _amdsmi_paths(amdsmi(package)) | {"FAKE_DEVICE_SCENARIO": str(scenario)}


def _amdsmi_paths(folder: Path) -> dict[str, str]:
    # Up to 7.13 a binding looks below ROCM_HOME or ROCM_PATH, from 7.14 on at the override.
    return {
        "ROCM_HOME": str(folder),
        "ROCM_PATH": str(folder),
        "LD_LIBRARY_PATH": str(folder),
        "AMDSMI_LIB_OVERRIDE": str(folder / "libamd_smi.so"),
    }


def _with_lib(folder: Path) -> Path:
    with suppress(FileExistsError):
        (folder / "lib").symlink_to(".")
    return folder


def _generate(generator: Path, what: str, package: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, str(generator), what, str(package)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{generator.name} cannot read {package}:\n{done.stderr}")
    return done.stdout


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


if __name__ == "__main__":
    print({"nvml": nvml, "amdsmi": amdsmi}[sys.argv[1]]())
