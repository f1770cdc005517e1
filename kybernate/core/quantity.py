"""Kubernetes quantities of bytes: `80Gi`, `1.5G`, `2e9`, `0.5Ki`; and times: `30s`, `1m30s`.

Exact: decimal arithmetic only, and what is no whole number of bytes is refused rather than
rounded, since a seat's memory is compared with a GPU's.
"""

from __future__ import annotations

import re
from decimal import Decimal, localcontext

from kybernate.errors import ConfigError

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_LARGEST = 2**63 - 1
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TIME_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)")
_FORM = re.compile(
    r"(?P<sign>[+-]?)(?P<digits>[0-9]{1,64}(?:\.[0-9]{0,64})?|\.[0-9]{1,64})"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,3})|(?P<suffix>[KMGTPE]i|[mkMGTPE])?)"
)


def parse_quantity(text: str, field: str = "quantity") -> int:
    """The bytes that `text` names. Raises ConfigError, naming `field`, if it names no whole number.

    Suffixes are Ki…Ei (powers of 1024), m, k…E (powers of 1000) and exponents (`1e9`), which are
    case-sensitive as in Kubernetes. Negative amounts and those beyond 2^63-1 are refused.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(
            field, f"{text!r} is not a quantity of bytes; write for example 24Gi, 1.5G or 8e9"
        )
    amount = Decimal(match["digits"])
    if match["sign"] == "-" and amount:
        raise ConfigError(field, f"{text!r} is negative; write an amount of bytes, such as 24Gi")
    value = _scaled(amount, match["suffix"] or "", match["exponent"])
    # Comparing first keeps an exponent of 999 from becoming a number of 999 digits.
    if value > _LARGEST:
        raise ConfigError(field, f"{text!r} is more than the largest quantity, 2^63-1 bytes")
    whole = int(value)
    if whole != value:
        raise ConfigError(field, f"{text!r} is no whole number of bytes; leave out the fraction")
    return whole


def parse_number(text: str) -> Decimal | None:
    """The number that a quantity of anything names, such as CPUs; None if it is no quantity."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    value = _scaled(Decimal(match["digits"]), match["suffix"] or "", match["exponent"])
    return -value if match["sign"] == "-" else value


def parse_duration(text: str, field: str = "duration") -> float:
    """The seconds that `text` names: 30s, 1m30.5s, 200ms. Raises ConfigError, naming `field`."""
    parts = _TIME_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(field, f"{text!r} is not a time; write for example 30s or 2m")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def format_quantity(amount: int) -> str:
    """The shortest exact quantity: binary suffix if it divides evenly, else plain bytes.

    Raises ValueError for a negative amount.
    """
    if amount < 0:
        raise ValueError("an amount of bytes is not negative")
    for suffix, factor in reversed(_BINARY.items()):
        if amount and amount % factor == 0:
            return f"{amount // factor}{suffix}"
    return str(amount)


def _scaled(amount: Decimal, suffix: str, exponent: str | None) -> Decimal:
    # 64 digits either side of the point times 2^60 fit; the default of 28 digits would round.
    with localcontext(prec=400):
        if suffix in _BINARY:
            return amount * _BINARY[suffix]
        return amount.scaleb(int(exponent) if exponent else _DECIMAL[suffix])
