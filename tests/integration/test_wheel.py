"""The wheel holds one top-level name, works when it is installed alone, and no foreign folder can stand in for ours."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
APPLICATIONS = {"collectors", "detectors", "quarantine", "dashboards"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: Any) -> Any:
    """Build the wheel of this checkout."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Any, tmp_path_factory: Any) -> Any:
    """Install the wheel alone, with what it declares and nothing else, into a fresh environment."""
    home = tmp_path_factory.mktemp("alone")
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt", wheel],
        check=True,
        capture_output=True,
    )
    return python


@pytest.fixture
def hostile(tmp_path: Any) -> Any:
    """A trainer's folder with packages of our names that must neither run nor be taken for ours."""
    for name in APPLICATIONS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the foreign package was imported')\n")
    return tmp_path


def run(*args: str, cwd: Any) -> Any:
    """Run argv in a folder, with nothing of this checkout on the path."""
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(args, capture_output=True, text=True, cwd=cwd, env=environ, timeout=60, check=False)


def test_passmuster_is_the_only_top_level_name(wheel: Any) -> None:
    """A generic name in a wheel would overwrite, or be overwritten by, somebody else's package."""
    names = {n.split("/")[0] for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}

    assert {"passmuster"} == names


def test_the_applications_travel_under_apps(wheel: Any) -> None:
    """All four folders are in the wheel, complete."""
    names = set(zipfile.ZipFile(wheel).namelist())
    want = {
        f"passmuster/_apps/{path.relative_to(ROOT)}"
        for app in APPLICATIONS
        for path in (ROOT / app).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert set() == want - names


def test_the_command_runs_from_a_hostile_folder(installed: Any, hostile: Any) -> None:
    """`muster` takes its own applications, not those of the current folder."""
    version = run(installed.parent / "muster", "--version", cwd=hostile)
    faults = run(installed.parent / "muster", "faults", "list", cwd=hostile)

    assert (0, "muster, version ") == (version.returncode, version.stdout[:16])
    assert (0, "") == (faults.returncode, faults.stderr)


def test_importing_passmuster_leaves_a_trainers_own_packages_alone(installed: Any, hostile: Any) -> None:
    """What others import knows no application, so a trainer's `detectors` stays the trainer's."""
    (hostile / "detectors" / "__init__.py").write_text("MINE = True\n")
    program = "import passmuster.records, passmuster.batch, detectors; print(detectors.MINE)"

    result = run(installed, "-c", program, cwd=hostile)

    assert (0, "True\n") == (result.returncode, result.stdout)


def test_a_host_needs_no_store(installed: Any, tmp_path: Any) -> None:
    """The base install has no chdb, pandas or SQLAlchemy, and `muster check` answers without them."""
    absent = run(installed, "-c", "import chdb", cwd=tmp_path)
    check = run(installed.parent / "muster", "check", "--json", cwd=tmp_path)

    assert "ModuleNotFoundError" in absent.stderr
    assert check.returncode in (0, 1, 2, 3)
    assert "Traceback" not in check.stderr
    assert check.stdout.startswith("{")
