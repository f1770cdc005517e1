"""What commands that make a request have in common: options, following it, and how it ended."""

from __future__ import annotations

import contextlib
import sys
import time
from math import ceil
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click
from rich.console import Console
from rich.text import Text

from kybernate import keys
from kybernate.cli.cluster.link import Source, cluster_options, link_to, watched
from kybernate.cli.options import together
from kybernate.cli.output import human, plain, text_of
from kybernate.core.quantity import parse_duration
from kybernate.core.reasons import Standing
from kybernate.core.requests.asked import Asked
from kybernate.core.requests.reasons import Reason
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.cli.cluster.link import Link
    from kybernate.core.requests.asked import Copied

    Json = dict[str, Any]

R = TypeVar("R", bound=Asked)

REFUSED, TIMED_OUT, INTERRUPTED = 1, 3, 130
"""Exit statuses. What click says of the words of a command line is 2."""
KEPT_S = 86_400
"""Seconds for which a request stays once it has ended, so that somebody may look at it."""
LATE_S = 15.0
"""Seconds after a request's deadline at which nobody answers any more."""
_LONGEST_S = 86_400
_LONGEST_WHY = 1024
_UNHEARD = "nobody answers yet"
_NOBODY = "no controller answers: is kyb-controller running?"


def request_options(
    how_long: str,
    timeout: str = "10m",
    *,
    tried: str = "Only say whether it may be asked for, and ask nothing.",
    told: str = "A sentence, or the request as it is at the end.",
    namespaced: bool = True,
) -> Callable[[Any], Any]:
    """The options of commands that make a request or have one carried out.

    `how_long` is the help of --timeout, which is `timeout` if none is given; `tried` that of
    --dry-run and `told` that of -o.
    """
    return together(
        click.option("--timeout", default=timeout, show_default=True, help=how_long),
        making_options(tried, told, namespaced=namespaced),
    )


def making_options(tried: str, told: str, *, namespaced: bool = True) -> Callable[[Any], Any]:
    """The options of commands that make an object; `tried` is the help of --dry-run and `told` that
    of -o."""
    return together(
        click.option(
            "-o",
            "--output",
            type=click.Choice(("text", "json", "yaml", "name")),
            default="text",
            show_default=True,
            help=told,
        ),
        click.option("--dry-run", is_flag=True, help=tried),
        cluster_options(namespaced=namespaced),
    )


def once_options(how_long: str, **helps: Any) -> Callable[[Any], Any]:
    """The same for those that are done at once, or say that they may be."""
    told = "Return once it is asked for."
    return together(
        click.option("--no-wait", is_flag=True, help=told),
        request_options(how_long, **helps),
        why_option,
    )


why_option = click.option(
    "--why", default=None, help="Why, in a sentence; the request keeps it, as kyb.ai/why."
)


def because(body: Json, why: str | None) -> Json:
    """The request with an annotation that says why it is made, if that is said. Raises
    click.BadParameter."""
    if why is None:
        return body
    if not 1 <= len(why.strip()) <= _LONGEST_WHY:
        raise click.BadParameter(f"write 1 to {_LONGEST_WHY} characters", param_hint="--why")
    return {**body, "metadata": {**body["metadata"], "annotations": {keys.WHY: why.strip()}}}


def limit_of(timeout: str) -> int:
    """Whole seconds of a --timeout. Raises click.BadParameter."""
    try:
        seconds = ceil(parse_duration(timeout))
    except ConfigError as error:
        raise click.BadParameter(error.problem, param_hint="--timeout") from error
    if not 1 <= seconds <= _LONGEST_S:
        raise click.BadParameter("write 1s to 24h", param_hint="--timeout")
    return seconds


def _message(request: Asked) -> list[str]:
    return [plain(request.status.message)]


@dataclass(frozen=True)
class Asking(Generic[R]):
    """A kind of request that a command makes and follows."""

    path: str
    kind: str
    deletion: str
    """What deleting it does."""
    read: Callable[[Json], R]
    """The request that an object is."""
    called: Callable[[R], str]
    """What is done, for people, such as "park of llama"."""
    lines: Callable[[R], list[str]] = _message
    """What is told of one that is done."""
    name: Callable[[Json], str] | None = None
    """What `-o name` prints; without it the request's own."""
    brief: bool = False
    """Its progress is told without what is done."""

    @property
    def plural(self) -> str:
        """What its objects are called in paths."""
        return self.path.rpartition("/")[2]

    @property
    def resource(self) -> str:
        """What kubectl calls them."""
        return f"{self.kind.lower()}.{keys.GROUP}"

    def name_of(self, item: Json) -> str:
        """What `-o name` prints."""
        if self.name is not None:
            return self.name(item)
        meta = item["metadata"]
        return f"{self.resource}/{meta.get('name') or meta.get('generateName', '')}"

    def progress(self, request: R, now: float) -> str:
        """How far it is, in a line, at so many seconds since 1970."""
        status = request.status
        said = status.message or _UNHEARD
        text = plain(said if self.brief else f"{self.called(request)}: {said}")
        copied: Copied | None = getattr(status, "copied", None)
        if copied and not request.ended:
            text += f"; {human(copied.done)} of {human(copied.total)}"
        left = (copied.ready_at if copied else getattr(status, "ready_at", 0.0)) - now
        return f"{text}, about {left:.0f} s left" if left > 0 and not request.ended else text

    def ask(self, body: Json, options: dict[str, Any]) -> None:
        """Make it, follow it to its end unless told otherwise, and exit with its status."""
        limit, link, form = limit_of(options["timeout"]), link_to(options), options["output"]
        path, body = link.of(self.plural), because(body, options["why"])
        if options["dry_run"]:
            found = link.api.post(path, body, {"dryRun": "All"})
            self.tell(found, form, "it may be asked for; nothing was")
            return
        made = link.api.post(path, body)
        if options["no_wait"]:
            self.tell(made, form, f"it is asked for ({self.name_of(made)})")
            return
        ended = self.followed(link, made, time.monotonic() + limit + LATE_S)
        if form != "text":
            self.tell(ended, form, "")
        sys.exit(self.outcome(self.read(ended), quiet=form != "text"))

    def tell(self, item: Json, form: str, sentence: str) -> None:
        """Print the request, for people by a sentence."""
        if form == "name":
            click.echo(self.name_of(item))
        elif form == "text":
            click.echo(sentence)
        else:
            click.echo(text_of(item, form), nl=False)

    def tell_all(self, items: list[Json], form: str) -> None:
        """Print several for programs: a document with all of them, or a name a line."""
        if form == "name":
            for item in items:
                click.echo(self.name_of(item))
        elif form != "text":
            click.echo(text_of(items, form), nl=False)

    def followed(
        self, link: Link, made: Json, until: float, over: Callable[[R], bool] = lambda _: False
    ) -> Json:
        """The request as it is once it has ended, is `over` for this command, or else at that
        monotonic time."""
        name, last, told = made["metadata"]["name"], made, ""
        with status_line() as say:
            try:
                for item in self._states(link, name, until):
                    last, request = item, self.read(item)
                    if (text := self.progress(request, time.time())) != told:
                        say(text)
                        told = text
                    if request.ended or over(request):
                        break
            except KeyboardInterrupt:
                click.echo(
                    f"\nit continues: kubectl -n {link.namespace} get {self.resource} {name} says "
                    f"how far it is, and kubectl -n {link.namespace} delete {self.resource} {name} "
                    f"{self.deletion}",
                    err=True,
                )
                sys.exit(INTERRUPTED)
        return last

    def _states(self, link: Link, name: str, until: float) -> Iterator[Json]:
        """The request each time that it changes. Raises click.ClickException if it is deleted."""
        source = Source(link.of(self.plural), {"fieldSelector": f"metadata.name={name}"})
        for (found,) in watched(link.api, [source], until):
            if not found:
                gone = f"somebody has deleted {self.resource}/{name}, which {self.deletion}"
                raise click.ClickException(gone)
            yield found[0]

    def outcome(self, request: R, *, quiet: bool) -> int:
        """Tell it, and answer with the exit status."""
        status, what = request.status, self.called(request)
        message = plain(status.message)
        if not request.ended:
            click.echo(f"{what} is not done in time: {message or _NOBODY}", err=True)
            return TIMED_OUT
        if status.reason is not None and status.reason.standing is Standing.SUCCESS:
            if not quiet:
                click.echo("\n".join(self.lines(request)))
            return 0
        reason = status.reason or "a reason that only a newer kybernate knows"
        click.echo(f"{what} failed ({reason}): {message}", err=True)
        return TIMED_OUT if reason == Reason.DEADLINE_EXCEEDED else REFUSED


@contextlib.contextmanager
def status_line() -> Iterator[Any]:
    """What tells people how far it is: one line that changes, or a line for each change."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: click.echo(text, err=True)
        return
    with console.status("asked for") as shown:
        yield lambda text: shown.update(Text(text))
