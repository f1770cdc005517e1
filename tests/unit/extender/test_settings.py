"""What the extender can't be told, and the sentence it says."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from extender.__main__ import main
from kybernate.errors import ConfigError
from kybernate.runtime.load import load
from kybernate.settings.extender import ExtenderSettings


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"lease": "l", "lease_s": "5"}, "lease_s.*write at least 12, or a shorter api_timeout_s"),
        ({"lease": "l", "scheduler_lease": "s"}, "scheduler_lease.*the setting lease decides"),
        ({"advertise": "10.0.0.1"}, "advertise.*write it as host:port"),
        ({"listen": ""}, "listen.*write it as host:port"),
    ],
)
def test_what_does_not_fit_is_named(values: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(ExtenderSettings, "X", values, {}, None)


def test_a_short_lease_fits_short_calls() -> None:
    values = {"lease": "l", "lease_s": "3", "api_timeout_s": "1", "advertise": "[::1]:9444"}
    assert load(ExtenderSettings, "X", values, {}, None).lease_s == 3
    assert load(ExtenderSettings, "X", {"lease_s": "3"}, {}, None).lease == ""


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--weights=1,2", "weights: '1,2' is not 4 whole numbers"),
        ("--namespace-policies=a=fast", "namespace_policies: there is no policy 'fast'"),
        ("--profile-policies=a", "profile_policies: 'a' is no NAME=POLICY"),
        ("--sharing=all", "sharing: 'all' is no rule"),
    ],
)
def test_rules_that_can_not_be_read_end_the_start_with_a_sentence(
    option: str, sentence: str
) -> None:
    run = CliRunner().invoke(main, [option])
    assert run.exit_code == 2
    assert sentence in " ".join(run.output.split())
