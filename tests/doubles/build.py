"""Compiles the fake vendor libraries, once per content, and says how a child process finds them.

`python tests/doubles/build.py nvml` prints the folder of the compiled library.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
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


if __name__ == "__main__":
    print({"nvml": nvml}[sys.argv[1]]())
