"""Where limits of providers come from, and which of them wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harn import InvalidOption, ManifestError, ProviderLimits, Runtime, llm_rate_limit
from harn.ratelimit.provider_limits import Providers, from_environment

TOML = """
[providers.acme]
rpm = 600
base_url = "https://example.invalid"

[providers.acme.rate_limits]
tpm = 90000
concurrency = 8

[providers.acme.models."big-2"]
rate_limits = { rpm = 60 }

[providers.quiet]
base_url = "https://example.invalid"

[models."small-1"]
provider = "acme"
rate_limits = { input_tpm = 5000 }
"""


@pytest.fixture
async def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_force(provider: str, model: str | None = None) -> dict[str, Any] | None:
    found = llm_rate_limit(provider, model)
    assert found is None or isinstance(found, ProviderLimits)
    return found.as_dict() if found else None


@pytest.mark.parametrize("name", ["providers.toml", "harn.toml", "elsewhere.toml"])
async def test_the_catalogue_is_read_from_either_file_or_from_the_one_named(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (here / name).write_text(TOML)
    if name == "elsewhere.toml":
        monkeypatch.setenv("HARN_PROVIDERS", str(here / name))
    async with Runtime():
        assert in_force("acme") == {"rpm": 600, "tpm": 90_000, "concurrency": 8}
        assert in_force("acme", "big-2") == {"rpm": 60}
        assert in_force("acme", "small-1") == {"input_tpm": 5000}
        assert in_force("quiet") is None
        assert in_force("acme", "unknown") is None


async def test_the_table_of_limits_wins_over_the_entry_beside_it(here: Path) -> None:
    (here / "providers.toml").write_text("[providers.x]\nrpm = 1\nrate_limits = { rpm = 2 }\n")
    async with Runtime():
        assert in_force("x") == {"rpm": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[providers.x.rate_limits]\ninputtpm = 5", "did you mean 'input_tpm'"),
        ("[providers.x]\nrpm = 'many'", "rpm='many' is not accepted: a whole number from 0"),
        ("[providers.x]\nrpm = true", "rpm=True is not accepted: a whole number from 0"),
        ("[providers.x]\nrpm = -5", "rpm=-5 is not accepted: a whole number from 0"),
        ("[providers]\nx = 5", "x is a table"),
        ("providers = 5", "table of tables"),
        ("[providers.x]\nrate_limits = 5", "rate_limits is a table"),
        ("not toml", "providers.toml"),
        ("x = " + "[" * 5000, "providers.toml"),
    ],
)
async def test_a_mistake_in_the_catalogue_is_named(here: Path, text: str, message: str) -> None:
    (here / "providers.toml").write_text(text)
    async with Runtime():
        with pytest.raises(ManifestError, match=message):
            llm_rate_limit("x")


@pytest.mark.parametrize("name", ["providers.toml", "harn.toml"])
async def test_a_byte_order_mark_in_front_of_a_catalogue_does_not_matter(
    here: Path, name: str
) -> None:
    (here / name).write_text("[providers.x]\nrpm = 5\n", "utf-8-sig")
    async with Runtime():
        assert in_force("x") == {"rpm": 5}


async def test_a_catalogue_that_was_named_must_exist(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARN_PROVIDERS", "missing.toml")
    async with Runtime():
        with pytest.raises(ManifestError, match="cannot be read"):
            llm_rate_limit("x")


async def test_the_environment_overrides_the_catalogue_field_by_field(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "providers.toml").write_text(TOML)
    monkeypatch.setenv("HARN_RATE_LIMIT_ACME_TPM", "5")
    monkeypatch.setenv("HARN_RATE_LIMIT_ACME_CONCURRENCY", "0")
    monkeypatch.setenv("HARN_RATE_LIMIT_ACME_BIG_2_OUTPUT_TPM", "7")
    monkeypatch.setenv("HARN_RATE_LIMIT_ACME_INPUT_TPM", "many")
    async with Runtime():
        assert in_force("acme") == {"rpm": 600, "tpm": 5}
        assert in_force("acme", "big-2") == {"rpm": 60, "output_tpm": 7}


@pytest.mark.parametrize(
    ("variables", "route", "found"),
    [
        ({"TOGETHER": 600}, ("together",), {"rpm": 600}),
        ({"TOGETHER": 600, "TOGETHER_RPM": 1000}, ("together",), {"rpm": 1000}),
        ({"A_B": 1}, ("a--b",), {"rpm": 1}),
        ({"X_RPM": 1}, ("x_rpm",), {}),
        ({"X_RPM": 1}, ("x",), {"rpm": 1}),
        ({"X": 0}, ("x",), dict.fromkeys(("rpm", "tpm", "input_tpm", "output_tpm", "concurrency"))),
        ({"X_M_1_TPM": 9}, ("x", "m.1"), {"tpm": 9}),
        ({"X": 9}, ("x", "m"), {}),
        ({"X_TPM": -1}, ("x",), {"tpm": None}),
    ],
)
def test_every_form_of_the_variables_is_understood(
    variables: dict[str, Any], route: Any, found: Any
) -> None:
    assert from_environment(variables, *route) == found


async def test_what_is_set_at_run_time_wins_and_replaces_what_was_set_before(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARN_RATE_LIMIT_ACME", "10")
    async with Runtime():
        assert llm_rate_limit("acme", rpm=20, tpm=30) is True
        assert in_force("acme") == {"rpm": 20, "tpm": 30}

        llm_rate_limit("acme", concurrency=2)
        assert in_force("acme") == {"rpm": 10, "concurrency": 2}

        llm_rate_limit("acme", rpm=0)
        assert in_force("acme") is None


async def test_limits_of_one_runtime_are_not_those_of_the_next(here: Path) -> None:
    async with Runtime():
        llm_rate_limit("acme", rpm=5)
    async with Runtime() as runtime:
        assert runtime.service(Providers).limits("acme") is None


@pytest.mark.parametrize("value", [1.5, True, "5", 2**60])
async def test_limits_that_are_not_whole_numbers_are_refused(runtime: Runtime, value: Any) -> None:
    with pytest.raises(InvalidOption, match="rpm"):
        llm_rate_limit("acme", rpm=value)


async def test_a_misspelt_limit_is_a_type_error(runtime: Runtime) -> None:
    with pytest.raises(TypeError):
        llm_rate_limit("acme", rmp=5)  # type: ignore[call-overload]
