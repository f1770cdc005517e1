"""Helm, which renders and installs our chart in tests."""

from __future__ import annotations

from tests.kit.gobuild import Program

_VERSION = "helm.sh/helm/v3/pkg/chartutil.k8sVersion"
PROGRAM = Program(
    "helm",
    "helm.sh/helm/v3/cmd/helm",
    "which installs charts, from source: two minutes or more",
    # Helm holds a chart's kubeVersion against this where it asks no cluster.
    (f"-ldflags=-X {_VERSION}Major=1 -X {_VERSION}Minor=34",),
)
why_not, ensure = PROGRAM.why_not, PROGRAM.ensure
