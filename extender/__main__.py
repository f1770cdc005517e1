"""Start the extender."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import click

from extender.app import Verbs, create_app
from extender.binder import Binder
from extender.cluster import ApiCluster
from extender.server import Server, check_tls, refuse_caller
from extender.snapshot import Snapshot
from extender.watches import Watches
from kybernate.adapters.k8s import Api
from kybernate.core.placement import POLICIES
from kybernate.errors import ConfigError
from kybernate.runtime.load import command
from kybernate.runtime.serve import ProbeServer, configure_logging
from kybernate.settings.extender import ExtenderSettings


def run(settings: ExtenderSettings) -> None:
    """Wire the parts and serve until SIGTERM."""
    configure_logging(settings.log_level)
    try:
        check_tls(settings.tls_dir)
        api = Api(settings.kubeconfig, "kyb-extender")
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    snapshot = Snapshot(time.monotonic, settings.reserve_bytes)
    watches = Watches(api, snapshot)
    policy, cluster = POLICIES[settings.policy], ApiCluster(api, settings.api_timeout_s)
    binder = Binder(snapshot, cluster, policy, _now, settings.reservation_s)
    verbs = Verbs(snapshot, binder, policy)
    app = create_app(verbs, watches.not_ready, refuse_caller, settings.max_body_bytes)
    host, port = settings.probe_listen.rsplit(":", 1)
    probes = ProbeServer(host, int(port), watches.not_ready)

    def started() -> None:
        watches.start()
        probes.start()

    def stopped() -> None:
        watches.stop()
        if watches.started:
            probes.stop()

    Server(settings, app, started, stopped).run()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


main = command(ExtenderSettings, "KYB_EXTENDER", run, "Serve the kube-scheduler's extender calls.")

if __name__ == "__main__":
    main()
