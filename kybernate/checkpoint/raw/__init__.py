"""Artifacts as CRIU wrote them: sealed, lent to a restore while they are verified, mended."""
