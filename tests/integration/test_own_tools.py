"""Our own checks see: a planted type error across parts and a planted breach of the layers are both reported."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PLANTED = '''"""Planted by a test: a breach of the layers, and a type error across parts."""

from detectors.detector import register

register("not a detector")
'''


@pytest.fixture
def checkout(tmp_path: Any) -> Any:
    """Copy what the tools read, with the planted file in it."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("passmuster", "collectors", "detectors", "quarantine", "dashboards"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "collectors" / "planted.py").write_text(PLANTED)
    return tmp_path


def run(*args: str, cwd: Any) -> Any:
    """Run a tool of this environment."""
    tool = [str(Path(sys.executable).parent / args[0]), *args[1:]]
    return subprocess.run(tool, capture_output=True, text=True, cwd=cwd, check=False)


def test_mypy_reports_a_type_error_across_parts(checkout: Any) -> None:
    """A blind type checker looks just like a clean house."""
    result = run("mypy", "collectors/planted.py", cwd=checkout)

    assert 'collectors/planted.py:5: error: Argument 1 to "register"' in result.stdout


def test_import_linter_reports_a_breach(checkout: Any) -> None:
    """Collectors and detectors do not know each other."""
    result = run("lint-imports", "--no-cache", cwd=checkout)

    assert 0 != result.returncode
    assert "collectors.planted -> detectors.detector" in result.stdout
