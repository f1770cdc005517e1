"""Settings of each service: frozen, validated, with units."""
