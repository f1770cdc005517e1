"""What wraps the namespaces' keys, by the settings: files of a Secret, or a PKCS#11 token."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from kybernate.adapters.keys.artifactkeys import read_wrap_keys
from kybernate.errors import ConfigError, RefusedError

if TYPE_CHECKING:
    from kybernate.adapters.keys.artifactkeys import WrapKeys
    from kybernate.ports import Kms
    from kybernate.settings.registry import RegistrySettings

_PROBE = "probe"


class BothKms:
    """Implements `ports.Kms` by a token, and opens what files wrapped before there was one."""

    def __init__(self, token: Kms, files: WrapKeys) -> None:
        self._token, self._files = token, files

    @property
    def newest(self) -> str:
        """See `ports.Kms.newest`."""
        return self._token.newest

    def wrap(self, secret: bytes, bound_to: str) -> tuple[str, str]:
        """See `ports.Kms.wrap`."""
        return self._token.wrap(secret, bound_to)

    def unwrap(self, by: str, wrapped: str, bound_to: str) -> bytes:
        """See `ports.Kms.unwrap`."""
        of_file = self._files.holds(by)
        return (self._files if of_file else self._token).unwrap(by, wrapped, bound_to)

    def renew(self) -> str:
        """See `ports.Kms.renew`."""
        return self._token.renew()


def open_kms(settings: RegistrySettings) -> Kms:
    """The one that the settings choose. Raises ConfigError, naming the setting or file."""
    files = read_wrap_keys(settings.wrap_keys)
    if settings.kms == "files":
        return files
    if settings.pkcs11_module is None:
        raise ConfigError(
            "pkcs11_module", "kms is pkcs11; name the PKCS#11 library of your token, too"
        )
    for name, value in (
        ("pkcs11_token", settings.pkcs11_token),
        ("pkcs11_pin", settings.pkcs11_pin.get_secret_value()),
        ("pkcs11_key", settings.pkcs11_key),
    ):
        if not value:
            raise ConfigError(name, "kms is pkcs11, which needs it; it may not be empty")
    from kybernate.adapters.keys.pkcs11kms import TokenKms  # noqa: PLC0415 - only with a token

    pin = settings.pkcs11_pin.get_secret_value()
    token = TokenKms(
        settings.pkcs11_module, settings.pkcs11_token, pin, settings.pkcs11_key, settings.kms_s
    )
    return BothKms(token, files)


def tried(kms: Kms) -> str:
    """The ID of the key that wraps, once it has wrapped and opened something.

    Raises ConfigError, RetryableError.
    """
    secret = secrets.token_bytes(32)
    by, wrapped = kms.wrap(secret, _PROBE)
    try:
        opened = kms.unwrap(by, wrapped, _PROBE)
    except RefusedError as error:
        raise ConfigError("kms", f"key {by} does not open what it has wrapped") from error
    if opened != secret:
        raise ConfigError("kms", f"key {by} opens another secret than it has wrapped")
    return by
