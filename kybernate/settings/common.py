"""What the settings of all services have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict


def _host_and_port(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("write it as host:port, for example 127.0.0.1:8080")
    return value


def _https_or_empty(value: str) -> str:
    if value and not value.startswith("https://"):
        raise ValueError("must be written as https://host:port")
    return value


Address = Annotated[str, AfterValidator(_host_and_port)]
"""host:port, an IPv6 host in brackets."""

AnyAddress = Annotated[str, AfterValidator(lambda value: value and _host_and_port(value))]
"""The same, or empty."""

RegistryUrl = Annotated[str, AfterValidator(_https_or_empty)]
"""https://host:port, or empty where there is no registry."""

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
"""Of the log."""


class Settings(BaseModel):
    """Of one service: nothing changes them, and one that isn't known is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def host_port(address: str) -> tuple[str, int]:
    """Host, without brackets, and port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
