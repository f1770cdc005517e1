"""What the settings of all services have in common."""

from __future__ import annotations

import pytest

from kybernate.errors import ConfigError
from kybernate.runtime.load import load
from kybernate.settings.agent import AgentSettings
from kybernate.settings.controller import ControllerSettings
from kybernate.settings.extender import ExtenderSettings
from kybernate.settings.plugin import PluginSettings
from kybernate.settings.proxy import ProxySettings
from kybernate.settings.registry import RegistrySettings
from kybernate.settings.webhook import WebhookSettings

SERVICES = (
    AgentSettings,
    ControllerSettings,
    ExtenderSettings,
    PluginSettings,
    ProxySettings,
    RegistrySettings,
    WebhookSettings,
)
PLACES = [
    (one, name)
    for one in SERVICES
    for name in ("listen", "probe_listen", "advertise")
    if name in one.model_fields
]


def refused(service, **given):
    with pytest.raises(ConfigError) as found:
        load(service, "KYB", {"node": "n1"} | given, {}, None)
    return found.value


@pytest.mark.parametrize(("service", "field"), PLACES)
@pytest.mark.parametrize("text", ["9443", ":9443", "host:http", "host:65536", "host:\u0663"])
def test_each_address_is_checked_alike(service, field, text):
    error = refused(service, **{field: text})
    assert (error.field, "write it as host:port" in error.problem) == (field, True)


@pytest.mark.parametrize("service", SERVICES)
def test_a_level_of_the_log_is_one_that_there_is(service):
    assert refused(service, log_level="loud").field == "log_level"
