"""Certificates and requests of strangers."""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

UNREADABLE = (
    *(ValueError, TypeError, KeyError, InvalidSignature, UnsupportedAlgorithm),
    *(x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType),
)
"""What `cryptography` raises for one that isn't well made."""
