"""Artifacts: what their manifests say, how their bytes are cut, who may restore them. Pure."""
