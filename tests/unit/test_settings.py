"""Settings: where a value comes from, what is refused, and what the refusal says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from manager.errors import SettingsError
from manager.settings import BY_NAME, DEFAULT_CONFIG_FILE, SETTINGS, Setting, Settings, Value, load_settings
from manager.store.database import open_database

NUMBERS = [setting for setting in SETTINGS if not isinstance(setting.default, str)]
BOUNDS = [
    pytest.param(setting, bound, side, id=f"{setting.name}-{side}")
    for setting in NUMBERS
    for bound, side in ((setting.minimum, "below"), (setting.maximum, "above"))
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "equipoise.toml"


def refused(config_file: Path | None, environ: dict[str, str], flags: dict[str, Value | None]) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(config_file, environ, flags)
    return str(caught.value)


@pytest.fixture(autouse=True)
def no_file_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("manager.settings.DEFAULT_CONFIG_FILE", tmp_path / "absent.toml")


def test_defaults() -> None:
    settings = load_settings(None, {}, {})
    assert settings.values == {setting.name: setting.default for setting in SETTINGS}
    assert set(settings.sources.values()) == {"default"}
    assert Path("/etc/equipoise/equipoise.toml") == DEFAULT_CONFIG_FILE


def test_later_sources_win_and_are_named(file: Path) -> None:
    file.write_text('interval_s = 1\nstale_s = 2\nmin_samples = 3\nhost_name = "from-file"\n')
    environ = {"EQUIPOISE_STALE_S": "4", "EQUIPOISE_MIN_SAMPLES": "5", "OTHER": "x", "EQUIPOISE_CONFIG": "y"}
    flags: dict[str, Value | None] = {"min_samples": "6", "interval_s": None, "listen_port": 7}
    settings = load_settings(file, environ, flags)
    found = {name: (settings.values[name], source) for name, source in settings.sources.items() if source != "default"}
    assert found == {
        "interval_s": (1.0, str(file)),
        "host_name": ("from-file", str(file)),
        "stale_s": (4.0, "environment EQUIPOISE_STALE_S"),
        "min_samples": (6, "flag --min-samples"),
        "listen_port": (7, "flag --listen-port"),
    }


def test_the_default_file_is_read_when_there_is_one(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    file.write_text("interval_s = 2.5")
    monkeypatch.setattr("manager.settings.DEFAULT_CONFIG_FILE", file)
    settings = load_settings(None, {}, {})
    assert (settings.number("interval_s"), settings.sources["interval_s"]) == (2.5, str(file))


@pytest.mark.parametrize("name", ["CONFIG", "TOKEN"])
def test_variables_with_a_meaning_of_their_own_are_no_settings(name: str) -> None:
    assert load_settings(None, {f"EQUIPOISE_{name}": "anything"}, {}).values["interval_s"] == 5.0


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_can_be_set_everywhere_and_has_its_type(setting: Setting, file: Path) -> None:
    text = {"allow": "mount", "deny": "idle", "trusted_proxy": "192.0.2.1"}.get(setting.name, "0-1")
    value: Value = setting.choices[-1] if setting.choices else text if setting.default == "" else setting.default
    file.write_text(f"{setting.name} = {value!r}\n")
    variable = f"EQUIPOISE_{setting.name.upper()}"
    for settings in (
        load_settings(file, {}, {}),
        load_settings(None, {variable: str(value)}, {}),
        load_settings(None, {}, {setting.name: str(value)}),
    ):
        assert settings.values[setting.name] == value
        assert type(settings.values[setting.name]) is type(setting.default)
        assert settings.sources[setting.name] != "default"


@pytest.mark.parametrize("setting", NUMBERS, ids=lambda setting: setting.name)
def test_bounds_are_inclusive_and_hold_the_default(setting: Setting) -> None:
    assert setting.minimum is not None
    assert setting.maximum is not None
    assert setting.minimum <= setting.default <= setting.maximum  # type: ignore[operator]
    for bound in (setting.minimum, setting.maximum):
        assert setting.parse(f"{bound:g}" if isinstance(setting.default, float) else str(int(bound)), "a test") == bound


@pytest.mark.parametrize(("setting", "bound", "side"), BOUNDS)
def test_out_of_bounds_is_refused_with_name_value_and_range(setting: Setting, bound: float, side: str) -> None:
    beyond = -math.inf if side == "below" else math.inf
    outside = math.nextafter(bound, beyond) if isinstance(setting.default, float) else int(bound) + (-1, 1)[beyond > 0]
    message = refused(None, {}, {setting.name: outside})
    assert message == (
        f"setting {setting.name} = {outside!r} (from flag --{setting.name.replace('_', '-')}) is refused:"
        f" use {setting.range_text}"
    )


@pytest.mark.parametrize("setting", NUMBERS, ids=lambda setting: setting.name)
@pytest.mark.parametrize("text", ["", "many", "nan", "inf", "-inf", "1,5", "5 s", "0x10", "true"])
def test_text_that_is_no_number_in_range_is_refused(setting: Setting, text: str) -> None:
    message = refused(None, {f"EQUIPOISE_{setting.name.upper()}": text}, {})
    assert message.startswith(f"setting {setting.name} = {text!r} (from environment EQUIPOISE_{setting.name.upper()})")
    assert message.endswith(f"use {setting.range_text}")


@pytest.mark.parametrize(
    "line",
    [
        "interval_s = nan",
        "interval_s = inf",
        "interval_s = true",
        "interval_s = [1]",
        "interval_s = {s = 1}",
        "interval_s = 2026-01-31",
        f"interval_s = {'9' * 400}",
        "min_samples = 20.0",
        "min_samples = false",
        'min_samples = "20.0"',
        f"min_samples = {'9' * 400}",
        "host_name = 5",
        "host_name = true",
        "host_name = 1.5",
        'log_level = "loud"',
        'log_level = "INFO"',
        "log_level = 1",
    ],
)
def test_toml_values_of_a_wrong_type_are_refused(file: Path, line: str) -> None:
    file.write_text(line)
    name = line.partition(" ")[0]
    message = refused(file, {}, {})
    assert message.startswith(f"setting {name} = ")
    assert f"(from {file}) is refused: use {BY_NAME[name].range_text}" in message


@pytest.mark.parametrize(
    ("line", "value"),
    [("interval_s = 3", 3.0), ('interval_s = "3"', 3.0), ("interval_s = 3e0", 3.0), ('min_samples = "7"', 7)],
)
def test_toml_values_that_mean_the_same(file: Path, line: str, value: Value) -> None:
    file.write_text(line)
    found = load_settings(file, {}, {}).values[line.partition(" ")[0]]
    assert found == value
    assert type(found) is type(value)


def test_unknown_names_are_refused_wherever_they_stand(file: Path) -> None:
    file.write_text("intervall_s = 1")
    hint = "; `equipoise config` lists them all"
    assert refused(file, {}, {}) == f"{file} names an unknown setting 'intervall_s'{hint}"
    in_environment = "environment EQUIPOISE_INTERVALL_S names an unknown setting 'intervall_s'"
    assert refused(None, {"EQUIPOISE_INTERVALL_S": "1"}, {}) == in_environment + hint
    assert refused(None, {}, {"nonsense": "1"}) == f"flag --nonsense names an unknown setting 'nonsense'{hint}"
    file.write_text("[agent]\ninterval_s = 1")
    assert "unknown setting 'agent'" in refused(file, {}, {})


def test_a_named_file_must_exist_be_readable_and_be_toml(file: Path, tmp_path: Path) -> None:
    assert refused(file, {}, {}) == f"configuration file {file} does not exist"
    assert refused(tmp_path, {}, {}) == f"configuration file {tmp_path} cannot be read: Is a directory"
    file.write_text("interval_s = ")
    assert refused(file, {}, {}).startswith(f"configuration file {file} is not valid TOML: ")
    file.write_text("interval_s = 1\ninterval_s = 2")
    assert refused(file, {}, {}).startswith(f"configuration file {file} is not valid TOML: ")
    file.write_bytes(b'host_name = "\xff"')
    assert refused(file, {}, {}).startswith(f"configuration file {file} is not valid TOML: ")


@pytest.mark.parametrize("text", ["", "0", "0-3", "0-3,8,10-11"])
def test_managed_cpus_are_a_list(text: str) -> None:
    assert load_settings(None, {}, {"managed_cpus": text}).text("managed_cpus") == text


@pytest.mark.parametrize("text", ["all", "3-1", "0,x", "-1", "9000"])
def test_managed_cpus_that_are_no_list_are_refused(text: str) -> None:
    message = refused(None, {"EQUIPOISE_MANAGED_CPUS": text}, {})
    assert message.startswith("setting managed_cpus (from environment EQUIPOISE_MANAGED_CPUS) is refused: '")


def test_the_first_bad_setting_changes_nothing_but_the_error(file: Path) -> None:
    file.write_text("interval_s = 1000\n")
    assert "interval_s" in refused(file, {"EQUIPOISE_INTERVAL_S": "1"}, {}), "a later good value does not hide it"


def test_what_settings_answer(tmp_path: Path) -> None:
    settings = load_settings(None, {}, {"state_dir": str(tmp_path), "api_threads": 3})
    assert settings.state_dir == tmp_path
    assert settings.database_url == f"sqlite:///{tmp_path}/equipoise.db"
    assert (settings.whole("api_threads"), settings.number("interval_s")) == (3, 5.0)
    named = Settings(dict(settings.values) | {"database_url": "postgresql://db/e"}, settings.sources)
    assert named.database_url == "postgresql://db/e"


def test_a_relative_state_directory_makes_an_absolute_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(None, {}, {"state_dir": "trial"})
    assert settings.database_url == f"sqlite:///{tmp_path}/trial/equipoise.db"


@pytest.mark.parametrize("name", ["a?b", "100%25", "a b", "\u00fc#&@:'\""])
def test_the_database_is_in_the_state_directory_whatever_that_is_called(name: str, tmp_path: Path) -> None:
    settings = load_settings(None, {}, {"state_dir": str(tmp_path / name)})
    assert open_database(settings.database_url).file == tmp_path / name / "equipoise.db"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", ""),
        ("192.0.2.1", "192.0.2.1"),
        ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
    ],
)
def test_a_proxy_is_known_however_its_address_is_written(text: str, address: str) -> None:
    assert load_settings(None, {}, {"trusted_proxy": text}).trusted_proxy == address


@pytest.mark.parametrize("text", ["localhost", "192.0.2.0/24", "192.0.2.1,192.0.2.2", "[::1]", " 192.0.2.1"])
def test_a_proxy_that_is_no_address_is_refused(text: str) -> None:
    assert "setting trusted_proxy (from flag --trusted-proxy) is refused" in refused(None, {}, {"trusted_proxy": text})


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (Setting("a", 1, "", 1, 65_535), "1 to 65535"),
        (Setting("a", 0.5, "", 0.2, 300), "0.2 to 300"),
        (Setting("a", "x", "", choices=("x", "y", "z")), "x, y or z"),
        (Setting("a", "x", ""), "text"),
        (Setting("a", 1, ""), "a whole number"),
        (Setting("a", 1.0, ""), "a number"),
        (Setting("a", 1.0, "", minimum=0), "a number"),
    ],
)
def test_ranges_as_a_person_writes_them(setting: Setting, text: str) -> None:
    assert setting.range_text == text


SHARES = {"attainment_target"}
"""Settings that are shares of one: these have no unit."""


def test_every_setting_has_a_name_of_its_own_a_unit_and_help() -> None:
    assert len(BY_NAME) == len(SETTINGS)
    for setting in SETTINGS:
        assert setting.name == setting.name.lower()
        assert setting.help
        if isinstance(setting.default, float) and setting.name not in SHARES:
            assert setting.name.endswith(("_s", "_days", "_speed", "_pcpus")), "units are in names"
