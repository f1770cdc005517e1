"""Keys in a real PKCS#11 token, Debian's SoftHSM2: in processes of their own, since a module is
loaded once, and reads where its tokens are when it is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kybernate.adapters.keys.pkcs11kms import TokenKms
from kybernate.errors import ConfigError, KybernateError, RetryableError
from tests.kit.servers import softhsm

_BEFORE = """
import sys
from pathlib import Path
from kybernate.adapters.keys.pkcs11kms import TokenKms
from kybernate.errors import *
module, label, pin, tokens = Path(sys.argv[1]), *sys.argv[2:4], Path(sys.argv[4])
kms = TokenKms(module, label, pin, "kyb-wrap", 5.0)
def said(work, *kinds):
    try:
        work()
    except kinds as error:
        return str(error)
    raise AssertionError("nothing was raised")
"""


@pytest.fixture
def token(tmp_path: Path) -> softhsm.Token:
    try:
        return softhsm.make_token(tmp_path)
    except KybernateError as error:
        pytest.skip(f"no SoftHSM2 here: {error}")


def run(token: softhsm.Token, script: str, pin: str = softhsm.PIN, label: str = softhsm.LABEL):
    told = (str(token.module), label, pin, str(token.folder))
    done = subprocess.run(
        [sys.executable, "-c", _BEFORE + script, *told],
        cwd=Path(__file__).parents[4],
        env={**os.environ, **token.environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_what_the_token_wrapped_it_alone_opens_and_for_the_same_alone(token: softhsm.Token) -> None:
    by, wrapped = run(token, "kms.renew(); print(*kms.wrap(b's' * 32, 'team-a/1'))")
    assert (b"s" * 32).hex() not in wrapped
    run(
        token,
        f"""
assert kms.unwrap({by!r}, {wrapped!r}, "team-a/1") == b"s" * 32
assert "was not wrapped" in said(lambda: kms.unwrap({by!r}, {wrapped!r}, "team-a/2"), RefusedError)
changed = {wrapped[:-2]!r} + f"{{{int(wrapped[-2:], 16)} ^ 1:02x}}"
assert "was not wrapped" in said(lambda: kms.unwrap({by!r}, changed, "team-a/1"), RefusedError)
""",
    )


def test_a_new_key_wraps_from_then_on_and_the_old_one_still_opens(token: softhsm.Token) -> None:
    run(
        token,
        """
first = kms.renew()
by, wrapped = kms.wrap(b"s" * 32, "x")
second = kms.renew()
assert by == first != second == kms.newest == kms.wrap(b"s" * 32, "x")[0]
assert kms.unwrap(by, wrapped, "x") == b"s" * 32
""",
    )


def test_the_key_never_leaves_the_token(token: softhsm.Token) -> None:
    run(
        token,
        """
kms.renew()
import pkcs11
(key,) = kms._keys(kms._session)
assert key[pkcs11.Attribute.SENSITIVE] and not key[pkcs11.Attribute.EXTRACTABLE]
try:
    print(key[pkcs11.Attribute.VALUE])
except pkcs11.AttributeSensitive:
    pass
else:
    raise AssertionError("it was read")
""",
    )


def test_a_token_that_is_away_is_waited_for(token: softhsm.Token) -> None:
    """Not given up: what it wrapped can't be opened now, and can be once it is back."""
    run(
        token,
        """
kms.renew()
by, wrapped = kms.wrap(b"s" * 32, "x")
tokens.rename(tokens.with_name("away"))
assert "can't be used now" in said(lambda: kms.unwrap(by, wrapped, "x"), RetryableError)
assert "can't be used now" in said(lambda: kms.unwrap(by, wrapped, "x"), RetryableError)
tokens.with_name("away").rename(tokens)
for _ in range(2):
    try:
        assert kms.unwrap(by, wrapped, "x") == b"s" * 32
        break
    except RetryableError:
        pass
else:
    raise AssertionError("it was not found again")
""",
    )


def test_a_wrong_pin_is_tried_once(token: softhsm.Token) -> None:
    """A token locks itself after a few wrong ones."""
    run(
        token,
        """
assert "pkcs11_pin" in said(lambda: kms.newest, ConfigError)
import pkcs11
tried = []
pkcs11.lib = lambda so: tried.append(so)
assert "pkcs11_pin" in said(lambda: kms.newest, ConfigError)
assert not tried
""",
        pin="000000",
    )


def test_a_token_without_a_key_says_how_to_make_one(token: softhsm.Token) -> None:
    run(token, "assert 'kms --new-key' in said(lambda: kms.wrap(b's', 'x'), ConfigError)")


def test_another_token_than_there_is_is_away(token: softhsm.Token) -> None:
    run(token, "assert 'other' in said(lambda: kms.newest, RetryableError)", label="other")


def test_a_module_that_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pkcs11_module"):
        TokenKms(tmp_path / "none.so", "t", "1", "kyb-wrap", 1.0)


def test_a_token_that_hangs_holds_nobody_longer_than_said(token: softhsm.Token) -> None:
    """And calls don't pile up behind the one that hangs."""
    kms = TokenKms(token.module, "t", "1", "kyb-wrap", 0.2)
    hangs, done = threading.Event(), []
    kms._opened = lambda: done.append(1) or hangs.wait(30)  # type: ignore[method-assign]
    try:
        for said in ("no answer", "earlier call", "earlier call"):
            with pytest.raises(RetryableError, match=said):
                kms.wrap(b"s", "x")
        assert len(done) == 1
    finally:
        hangs.set()
