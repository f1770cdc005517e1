"""Real servers that tests start: of Debian's, built from source, or ours."""
