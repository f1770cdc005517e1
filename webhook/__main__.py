"""`kyb-webhook`: the admission webhook."""

from __future__ import annotations

import sys

from kybernate.errors import ConfigError
from kybernate.runtime.load import command
from kybernate.settings.webhook import WebhookSettings


def run(settings: WebhookSettings) -> None:
    """Serve until stopped by a signal."""
    from webhook.service import make_server  # noqa: PLC0415 - so that --help needs neither gunicorn

    try:
        server = make_server(settings)
    except ConfigError as error:
        sys.exit(f"kyb-webhook: {error}")
    server.run()


main = command(
    WebhookSettings,
    "KYB_WEBHOOK",
    run,
    "Gives pods that ask for a GPU seat what a seat needs, and refuses wrong ones in words.",
)

if __name__ == "__main__":
    main()
