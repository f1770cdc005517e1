"""The proxy alone: what it costs a request, and what a proxy that dies costs the others."""
