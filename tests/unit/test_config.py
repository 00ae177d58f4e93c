"""The configuration is right, or refused with the place and the remedy."""

import tomllib
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from passmuster.config import Config, load
from passmuster.config_cli import as_toml, config
from passmuster.errors import ConfigError

BROKEN = [
    ("[agent", "is not valid TOML"),
    ("\xff", "is not valid TOML"),
    ("agent = 3", "agent must be a table"),
    ("[agent]\nfast_second = 1", "did you mean 'agent.fast_seconds'?"),
    ("[agnet]\nfast_seconds = 1", "did you mean 'agent'?"),
    ("[agent]\nfast_seconds = 'one'", "agent.fast_seconds: Expected `float`, got `str`"),
    ("[agent]\nfast_seconds = 0", "agent.fast_seconds: Expected `float` > 0"),
    ("[agent]\nfast_seconds = nan", "agent.fast_seconds"),
    ("[agent]\nfast_seconds = 20", "must hold"),
    ("[exporter]\nport = 65536", "exporter.port: Expected `int` <= 65535"),
    ("[detectors]\ndefault_mode = 'act'", "promoted_by must name the person"),
    ("[detectors.modes]\nthrottling = 'acts'", "must be off, store, shadow or act"),
]


@pytest.mark.parametrize(("text", "sentence"), BROKEN)
def test_a_broken_file_is_refused_with_place_and_remedy(tmp_path: Any, text: Any, sentence: Any) -> None:
    """Each kind of mistake names the file and what would be right."""
    path = tmp_path / "passmuster.toml"
    path.write_bytes(text.encode("latin-1"))

    with pytest.raises(ConfigError) as caught:
        load(str(path), {})

    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"PASSMUSTER_AGENT__FAST_SECOND": "1"}, "did you mean 'fast_seconds'?"),
        ({"PASSMUSTER_AGNET__FAST_SECONDS": "1"}, "did you mean 'agent'?"),
        ({"PASSMUSTER_AGENT__FAST_SECONDS": "soon"}, "is not a TOML value"),
        ({"PASSMUSTER_AGENT__FAST_SECONDS": "-1"}, "agent.fast_seconds"),
    ],
)
def test_a_broken_variable_is_refused(environ: Any, sentence: Any) -> None:
    """Environment overrides are held to the same rules as the file."""
    with pytest.raises(ConfigError) as caught:
        load(None, environ)

    assert sentence in str(caught.value)


def test_the_environment_outranks_the_file(tmp_path: Any) -> None:
    """A variable overrides the file's key and leaves its neighbours."""
    path = tmp_path / "passmuster.toml"
    path.write_text("[agent]\nfast_seconds = 2\nslow_seconds = 90\n")

    loaded = load(str(path), {"PASSMUSTER_AGENT__FAST_SECONDS": "3", "PASSMUSTER_SITE__CLUSTER": "west"})

    assert (3.0, 90.0, "west") == (loaded.agent.fast_seconds, loaded.agent.slow_seconds, loaded.site.cluster)


def test_a_missing_file_is_one_sentence(tmp_path: Any) -> None:
    """A path that was given must exist."""
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load(str(tmp_path / "none.toml"), {})


def test_what_show_prints_reads_back_as_the_same_configuration(tmp_path: Any) -> None:
    """`config show` is a valid file, tables and lists included."""
    want = msgspec.convert({"detectors": {"modes": {"links/L": "act"}, "promoted_by": 'Ada "x"'}}, Config)

    got = msgspec.convert(tomllib.loads(as_toml(want)), Config)

    assert want == got


def test_check_answers_with_an_exit_code(tmp_path: Any) -> None:
    """A valid file is 0 and says so."""
    path = tmp_path / "passmuster.toml"
    path.write_text("[site]\ncluster = 'west'\n")

    result = CliRunner().invoke(config, ["check", str(path)])

    assert (0, "configuration is valid\n") == (result.exit_code, result.output)
