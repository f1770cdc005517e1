"""Wrapping keys that never leave a PKCS#11 token, such as an HSM: `ports.Kms`.

Keys are AES-256, called `<prefix>-<N>`, of which the highest N wraps new secrets by AES-GCM in the
token. Each has a random CKA_ID, by which it is named in what it wrapped. The calls of a module may
block for ever, so each runs in a thread that is left alone when its time is over; until that one
comes back no other call begins. PKCS#11 3.1, https://docs.oasis-open.org/pkcs11/pkcs11-spec/v3.1/.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from kybernate.errors import ConfigError, RefusedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

R = TypeVar("R")

log = logging.getLogger(__name__)

_NONCE = 12
_TAG_BITS = 128
_KEY_BITS = 256
_ID = 8
_DELAY_S = 5.0


class TokenKms:
    """Implements `ports.Kms` by a token. One in a process: a module is loaded once."""

    def __init__(self, module: Path, token: str, pin: str, prefix: str, limit_s: float) -> None:
        """`module`: the vendor's PKCS#11 library; `token`: the token's label; `limit_s`: seconds
        that a call may take. Raises ConfigError if the library can't be loaded."""
        try:
            import pkcs11  # noqa: PLC0415 - only who has a token installs it
        except ImportError as error:
            raise ConfigError(
                "kms", "pkcs11 needs the Python package python-pkcs11; install kybernate[pkcs11]"
            ) from error
        if not module.is_file():
            raise ConfigError(
                "pkcs11_module", f"{module} is no file; name the PKCS#11 library of your token"
            )
        self._api: Any = pkcs11
        self._module, self._token, self._pin = module, token, pin
        self._name = re.compile(rf"{re.escape(prefix)}-([0-9]{{1,6}})")
        self._prefix = prefix
        self._limit_s = limit_s
        self._busy = threading.Lock()
        self._session: Any = None
        self._wrong = ""

    @property
    def newest(self) -> str:
        """See `ports.Kms.newest`."""
        return self._call(lambda session: _id(self._newest(session)))

    def wrap(self, secret: bytes, bound_to: str) -> tuple[str, str]:
        """See `ports.Kms.wrap`. Raises ConfigError if the token has no key yet."""
        nonce = secrets.token_bytes(_NONCE)

        def wrapped(session: Any) -> tuple[str, str]:
            key = self._newest(session)
            sealed = key.encrypt(secret, **self._gcm(nonce, bound_to))
            return _id(key), (nonce + sealed).hex()

        return self._call(wrapped)

    def unwrap(self, by: str, wrapped: str, bound_to: str) -> bytes:
        """See `ports.Kms.unwrap`."""
        try:
            data = bytes.fromhex(wrapped)
        except ValueError as error:
            raise RefusedError(f"the key of {bound_to} was not wrapped by key {by}") from error

        def opened(session: Any) -> bytes | None:
            key = next((one for one in self._keys(session) if _id(one) == by), None)
            if key is None:
                # A module shows a token that was taken away as an empty one, too.
                raise _away(
                    self._token,
                    f"it doesn't hold key {by}, which has wrapped the key of {bound_to}; put it "
                    "back",
                )
            try:
                plain: bytes = key.decrypt(data[_NONCE:], **self._gcm(data[:_NONCE], bound_to))
            except self._api.exceptions.PKCS11Error:
                # Modules say what they like of a wrong tag. Is it the secret, or the token?
                nonce = secrets.token_bytes(_NONCE)
                sealed = key.encrypt(b"probe", **self._gcm(nonce, ""))
                if key.decrypt(sealed, **self._gcm(nonce, "")) == b"probe":
                    return None
                raise
            return plain

        found = self._call(opened)
        if found is None:
            raise RefusedError(f"the key of {bound_to} was not wrapped by key {by}")
        return found

    def renew(self) -> str:
        """See `ports.Kms.renew`."""
        attribute = self._api.Attribute

        def made(session: Any) -> str:
            number = max((self._number(key) for key in self._keys(session)), default=0) + 1
            name = secrets.token_bytes(_ID)
            session.generate_key(
                self._api.KeyType.AES,
                _KEY_BITS,
                id=name,
                label=f"{self._prefix}-{number}",
                store=True,
                template={
                    attribute.SENSITIVE: True,
                    attribute.EXTRACTABLE: False,
                    attribute.ENCRYPT: True,
                    attribute.DECRYPT: True,
                },
            )
            return name.hex()

        return self._call(made)

    def _gcm(self, nonce: bytes, bound_to: str) -> dict[str, Any]:
        parameters = self._api.GCMParams(nonce, aad=bound_to.encode(), tag_bits=_TAG_BITS)
        return {"mechanism": self._api.Mechanism.AES_GCM, "mechanism_param": parameters}

    def _keys(self, session: Any) -> list[Any]:
        """Oldest first."""
        wanted = {self._api.Attribute.CLASS: self._api.ObjectClass.SECRET_KEY}
        found = [key for key in session.get_objects(wanted) if self._name.fullmatch(key.label)]
        return sorted(found, key=self._number)

    def _number(self, key: Any) -> int:
        found = self._name.fullmatch(key.label)
        return int(found[1]) if found else 0

    def _newest(self, session: Any) -> Any:
        found = self._keys(session)
        if not found:
            raise ConfigError(
                "pkcs11_key",
                f"token {self._token} holds no AES key called {self._prefix}-1; make one by "
                "`kyb-registry kms --new-key`",
            )
        return found[-1]

    def _call(self, work: Callable[[Any], R]) -> R:
        """What `work` gives of a session, in time. Raises RetryableError, ConfigError."""
        if self._wrong:
            raise ConfigError("pkcs11_pin", self._wrong)
        if not self._busy.acquire(timeout=self._limit_s):
            raise _away(self._token, f"an earlier call has not come back in {self._limit_s:g} s")
        given: list[R] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                given.append(work(self._opened()))
            except BaseException as error:  # noqa: BLE001 - raised below, by who waits
                failed.append(error)
            finally:
                self._busy.release()

        threading.Thread(target=run, name="pkcs11", daemon=True).start()
        if not self._ended(given, failed):
            raise _away(self._token, f"no answer in {self._limit_s:g} s")
        if failed:
            raise self._told(failed[0]) from failed[0]
        return given[0]

    def _ended(self, given: list[R], failed: list[BaseException]) -> bool:
        if self._busy.acquire(timeout=self._limit_s):
            self._busy.release()
        return bool(given or failed)

    def _opened(self) -> Any:
        if self._session is None:
            library = self._api.lib(str(self._module))
            token = library.get_token(token_label=self._token)
            self._session = token.open(rw=True, user_pin=self._pin)
        return self._session

    def _told(self, error: BaseException) -> BaseException:
        """What is raised for it; after an error of the token the next call opens it again."""
        api = self._api.exceptions
        if isinstance(error, (ConfigError, RefusedError)):
            return error
        self._forget()
        if isinstance(error, RetryableError):
            return error
        name = type(error).__name__
        if isinstance(error, (api.PinIncorrect, api.PinInvalid, api.PinLenRange, api.PinLocked)):
            # Asked again and again, a token locks itself.
            self._wrong = f"token {self._token} does not take it ({name}); correct it and restart"
            return ConfigError("pkcs11_pin", self._wrong)
        if isinstance(error, api.MechanismInvalid):
            return ConfigError("pkcs11_module", f"token {self._token} can't do AES-GCM")
        return _away(self._token, f"{name} {error}".strip())

    def _forget(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):
                session.close()
        with suppress(Exception):
            # Modules look for tokens once, when they are loaded.
            self._api.lib(str(self._module)).reinitialize()


def _id(key: Any) -> str:
    found: bytes = key.id
    return found.hex()


def _away(token: str, why: str) -> RetryableError:
    return RetryableError(f"the PKCS#11 token {token} can't be used now: {why}", _DELAY_S)
