"""Who may write a pod's artifacts, and which pod continues with them: at most one, always.

A pod's writer is the node with the newest *token*; tokens only grow, and each grant gives a new
one, so that a writer who was cut off and comes back is told apart. A pod may be *claimed* by one
successor once there is proof that it has stopped; a claim never ends by itself, only by proof that
the successor has stopped. One that has ended before it continued hands the claim back: the next
successor continues from the same artifact. A pod may claim itself, to continue where it was given
up: then its own stop ends that claim. A line of successors has at most one pod in it that has not
stopped.

A state that people keep outlasts the successor's need of it: the successor *lets go* of it, and
keeps the claim. From then on no state is handed on, and the pod's own node is free to drop it.

Each function gives the record as it is afterwards, the same object if nothing changes. Times are
milliseconds since 1970.
"""

from __future__ import annotations

from dataclasses import replace

from kybernate.dataclass import dataclass
from kybernate.errors import ConflictError, RefusedError

BY_AGENT = "agent"
KNOWN_BEFORE = "known-before"


@dataclass(frozen=True, slots=True)
class PodRecord:
    """What is known of a pod. `node` is where it runs, for good; empty if nobody has said so.

    `holder` is the node that has `token`, until `until_ms`.

    `stopped` is the kind of proof, empty without one. `settled`: every claim on it that was ever
    granted is known. `ended`: its predecessor's state was given to another, so nobody continues
    from this one's.

    `artifact` is what the successor continues from. While there is a successor it is empty only
    once that one's node let go of it and people keep it (`let_go`): there is no way to hand it on
    but by the same successor's claim, made once more.
    """

    namespace: str
    uid: str
    version: int = 0
    node: str = ""
    token: int = 0
    holder: str = ""
    until_ms: int = 0
    stopped: str = ""
    stopped_by: str = ""
    stopped_why: str = ""
    successor: str = ""
    successor_node: str = ""
    artifact: str = ""
    settled: bool = True
    ended: bool = False

    def __str__(self) -> str:
        return f"{self.namespace}/{self.uid}"


@dataclass(frozen=True, slots=True)
class Asked:
    """A claim that somebody asks for; `version` is that of the record which it was decided on.
    `older`: it is known, and wanted, that the artifact may not be the pod's newest."""

    artifact: str
    successor: str
    node: str
    version: int | None = None
    again: bool = False
    older: bool = False


def lease(pod: PodRecord, node: str, until_ms: int, now_ms: int, *, runs: bool = True) -> PodRecord:
    """`node` becomes the writer, with a new token. `runs`: since the pod runs there.

    Raises ConflictError if it may not.
    """
    _may_write(pod, node)
    if runs and pod.node not in ("", node):
        raise ConflictError(f"pod {pod} runs on node {pod.node}, and no pod changes its node")
    if pod.stopped and not pod.successor:
        raise ConflictError(
            f"pod {pod} was reported stopped ({pod.stopped}): it may continue only with a claim"
        )
    if pod.until_ms > now_ms and pod.holder != node:
        raise ConflictError(
            f"node {pod.holder} writes for pod {pod} for {(pod.until_ms - now_ms) / 1000:.1f} s "
            "more; ask again then, or have it give its lease back"
        )
    home = node if runs else pod.node
    token = _newer(pod, now_ms)
    return _next(pod, node=home, token=token, holder=node, until_ms=until_ms)


def renew(pod: PodRecord, node: str, token: int, until_ms: int) -> PodRecord:
    """The lease continues. Raises ConflictError if the token isn't the newest, or `node`'s."""
    check(pod, node, token)
    return _next(pod, until_ms=max(pod.until_ms, until_ms))


def give_back(pod: PodRecord, node: str, token: int) -> PodRecord:
    """The lease ends. Raises ConflictError if the token isn't the newest, or `node`'s."""
    check(pod, node, token)
    return _next(pod, until_ms=0) if pod.until_ms else pod


def check(pod: PodRecord, node: str, token: int) -> None:
    """Raise ConflictError unless `node` may write for the pod with this token."""
    _may_write(pod, node)
    if token < pod.token:
        raise ConflictError(
            f"token {token} is older than {pod.token}: another writer has begun for pod {pod} "
            "since; write nothing more with it"
        )
    if token > pod.token or pod.holder != node:
        raise ConflictError(
            f"this registry gave node {node} no token {token} for pod {pod}; take a lease first"
        )


def stop(pod: PodRecord, proof: str, by: str, why: str) -> PodRecord:
    """The pod has stopped. `by` is a node for an agent's word, and needs to be the pod's own.

    Raises RefusedError if it isn't.
    """
    if proof == BY_AGENT and pod.node != by:
        raise RefusedError(
            f"only the agent of node {pod.node} can say that pod {pod} stopped"
            if pod.node
            else f"no agent has said that pod {pod} runs on its node; take a lease first, then say "
            "that it stopped"
        )
    told = {"stopped": proof, "stopped_by": by, "stopped_why": why, "until_ms": 0}
    if pod.successor == pod.uid:
        return _next(pod, successor="", successor_node="", artifact="", **told)
    return pod if pod.stopped else _next(pod, **told)


def claim(
    pod: PodRecord, successor: PodRecord, asked: Asked, now_ms: int
) -> tuple[PodRecord, PodRecord]:
    """`successor` continues with the pod's state, and no token of before counts any more.

    A successor that let go of the state has its claim still: to tell it again changes nothing, and
    to make it once more, as after a reboot, hands the state on once more.

    Raises ConflictError if another one has it, if nothing proves that the pod stopped, if the
    successor did, if the record is of another version by now, or if claims may exist that are not
    known.
    """
    mine = (pod.successor, pod.successor_node) == (asked.successor, asked.node)
    if mine and (pod.artifact == asked.artifact or (asked.again and not pod.artifact)):
        return pod, successor
    if pod.successor and not (mine and not pod.artifact):
        raise ConflictError(
            f"pod {pod.successor} on node {pod.successor_node} holds the claim on pod {pod}; it "
            "ends only with proof that this one stopped"
        )
    _may_be_claimed(pod, asked)
    if successor.node not in ("", asked.node):
        raise ConflictError(f"pod {successor} runs on node {successor.node}, not {asked.node}")
    if successor.uid != pod.uid and (successor.stopped or successor.successor or successor.ended):
        raise ConflictError(f"pod {successor} has stopped itself; a successor is one that runs")
    taken = {"successor": asked.successor, "successor_node": asked.node}
    new = {"artifact": asked.artifact, "token": _newer(pod, now_ms), "holder": "", "until_ms": 0}
    if asked.again and not pod.stopped:
        new |= {"stopped": KNOWN_BEFORE, "stopped_by": asked.node, "stopped_why": "claimed before"}
    if successor.uid == pod.uid:
        continued = _next(pod, settled=True, node=asked.node, **taken, **new)
        return continued, continued
    # Whose agent's word will count when this one stops, too.
    there = successor if successor.node else _next(successor, node=asked.node)
    return _next(pod, settled=True, **taken, **new), there


def release(pod: PodRecord, successor: PodRecord, by: str = "") -> tuple[PodRecord, PodRecord]:
    """The claim ends, and nobody continues from what the successor may have saved. `by`: the node
    whose agent says that its pod, the successor, has ended before it continued; empty for others,
    who need proof that it has stopped.

    Raises ConflictError if the successor doesn't hold the claim, if it continued itself or in
    another pod, or if nothing proves that it has stopped; RefusedError for another node's agent.
    """
    if pod.successor != successor.uid:
        if successor.ended and not pod.successor:
            return pod, successor
        raise ConflictError(f"pod {successor.uid} holds no claim on pod {pod}")
    if by and by != pod.successor_node:
        raise RefusedError(
            f"pod {successor} is on node {pod.successor_node}, whose agent alone can say that it "
            f"has ended before it continued with the state of pod {pod}"
        )
    if successor.uid == pod.uid:
        raise ConflictError(f"pod {pod} continued itself: report its stop, which ends the claim")
    if not successor.settled:
        raise ConflictError(_unknown(successor))
    if successor.successor:
        raise ConflictError(
            f"the state continued: pod {successor.successor} took it over from {successor}; "
            "restore "
            "from what that one saves"
        )
    if by:
        successor = stop(successor, BY_AGENT, by, "it has ended before it continued")
    if not successor.stopped:
        raise ConflictError(
            f"nothing proves that pod {successor} stopped: report how that is known first"
        )
    free = _next(pod, successor="", successor_node="", artifact="")
    return free, successor if successor.ended else _next(successor, ended=True)


def let_go(pod: PodRecord, node: str, artifact: str) -> PodRecord:
    """`node`'s agent says that nobody there needs this state any more, which people keep. Of
    another state than the claimed one, or of a pod of its own, that says nothing new."""
    there = pod.successor not in ("", pod.uid) and pod.successor_node == node != pod.node
    return _next(pod, artifact="") if there and pod.artifact == artifact else pod


def is_own(pod: PodRecord, node: str) -> bool:
    """Whether `node` knows what people keep of the pod's states: the pod runs or ran there, or it
    writes for it."""
    return node in (pod.node, pod.holder)


def see_newest(pod: PodRecord, asked: Asked, newest: str) -> None:
    """Raise ConflictError if the claim is on an older state than `newest`, the newest one of the
    pod that can be restored, empty if none can; and nobody has said that this is meant.

    A pod that claims itself takes nobody's place. A claim of before was on what was newest then.
    """
    if asked.older or asked.again or asked.successor == pod.uid:
        return
    if newest not in ("", asked.artifact):
        raise ConflictError(
            f"{asked.artifact} is not the newest artifact of pod {pod}, which is {newest}: "
            "claim that one, or start from the older one as a copy, which needs no claim"
        )


def may_speak(pod: PodRecord, node: str) -> bool:
    """Whether `node` may say what became of the pod's states in an object store: the pod runs or
    ran there, it writes for it, or the pod's successor is there. Of a pod of which nothing is known
    everybody may."""
    known = {pod.node, pod.holder, pod.successor_node} - {""}
    return not known or node in known


def handed_on(pod: PodRecord, node: str, artifact: str) -> bool:
    """Whether a pod of another node than `node` holds the claim on this very state, and needs it:
    then it is that node's to say that nobody needs it."""
    successor = pod.successor not in ("", pod.uid)
    return successor and pod.successor_node != node and pod.artifact == artifact


def settle(pod: PodRecord) -> PodRecord:
    """Somebody made sure that nobody holds a claim which isn't known here."""
    return pod if pod.settled else _next(pod, settled=True)


def _may_write(pod: PodRecord, node: str) -> None:
    if pod.ended:
        raise ConflictError(
            f"pod {pod} lost its claim after it was reported stopped; what it saves has no use"
        )
    if pod.successor and pod.successor != pod.uid:
        raise ConflictError(
            f"pod {pod.successor} continues with the state of pod {pod}; nothing may be written "
            "for "
            "the former any more"
        )
    if pod.successor and pod.successor_node != node:
        raise ConflictError(f"pod {pod} continues at node {pod.successor_node} alone")


def _may_be_claimed(pod: PodRecord, asked: Asked) -> None:
    if asked.version is not None and asked.version != pod.version:
        raise ConflictError(
            f"pod {pod} is at version {pod.version}, not {asked.version}: read it again and decide "
            "again"
        )
    if pod.ended:
        raise ConflictError(f"the state that pod {pod} began with was given to another pod")
    if asked.again and pod.settled:
        raise ConflictError(
            f"all claims on pod {pod} are known, and pod {asked.successor} holds none: claim it "
            "without `again`"
        )
    if not asked.again and not pod.settled:
        raise ConflictError(_unknown(pod))
    if not asked.again and not pod.stopped:
        raise ConflictError(
            f"nothing proves that pod {pod} stopped: its agent, or the controller, must report "
            "that first"
        )


def _unknown(pod: PodRecord) -> str:
    return (
        f"the registry lost its database since pod {pod} began, so a claim on it may exist that "
        "isn't known: tell claims again, then settle it"
    )


def _newer(pod: PodRecord, now_ms: int) -> int:
    # By the clock, so that tokens also grow over the loss of the database.
    return max(pod.token + 1, now_ms)


def _next(pod: PodRecord, **changes: object) -> PodRecord:
    return replace(pod, version=pod.version + 1, **changes)  # type: ignore[arg-type]
