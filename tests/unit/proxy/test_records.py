"""What the proxy asks the registry, and what becomes of it while nobody answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from kybernate.adapters.registry import wire
from kybernate.core.tiers.tiers import Artifact
from kybernate.errors import DeadlineError, KybernateError, NotFoundError
from kybernate.types import NodeName, PodUid, Tier
from proxy.actions import Verify
from proxy.aside.records import Records, Words

A, B = PodUid("a"), PodUid("b")
SAID = Verify(NodeName("n2"), "shop", B, A)


class Registry:
    """Answers with what stands first in `answers`: a record, or an error."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def pod(self, namespace, uid, deadline_s):
        assert 0 < deadline_s <= 5
        self.asked.append((namespace, uid))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return wire.Pod(namespace=namespace, uid=uid, **answer)


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"successor": "b", "artifact": ""}, "b"),
        ({"successor": "b", "settled": False}, "b"),
        ({}, ""),
        (NotFoundError("no such pod"), ""),
        ({"settled": False}, None),
        (DeadlineError("away"), None),
        (OSError("no route"), None),
    ],
)
async def test_a_pods_successor_is_what_its_record_says(answer, found):
    registry, failed, opened = Registry(answer, {}), [], []
    records = Records(lambda: opened.append(1) or registry, failed.append)
    if found is None:
        with pytest.raises((KybernateError, OSError)):
            await records.successor("shop", A)
    else:
        assert await records.successor("shop", A) == found
    await records.successor("shop", A)
    assert failed == ["pod"] * (found is None)
    assert len(opened) == 1 + (found is None), "the next call is by the certificates of then"


class Desk:
    """Whose admission still hears what is in `says`."""

    def __init__(self, *says):
        self.admission, self.says_, self.told = self, set(says), []

    def says(self, uid, predecessor):
        return any((one.uid, one.predecessor) == (uid, predecessor) for one in self.says_)

    def verified(self, said, *, confirmed):
        self.told.append((said, confirmed))


class Answers:
    """Records whose answers are listed; an error stands for nobody's."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def successor(self, namespace, uid):
        self.asked.append(uid)
        await asyncio.sleep(0.01)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def asked(answers, says, seconds=1.0):
    """What a desk that hears these words was told, after so many seconds."""
    desk, records = Desk(*says), Answers(*answers)
    words = Words(records, desk)
    words.start()
    for one in says:
        words.verify(one)
    await asyncio.sleep(seconds)
    await words.stop()
    return desk, records


async def test_a_word_is_asked_once_and_again_until_somebody_answers():
    desk, records = await asked([DeadlineError("away"), OSError("away"), "b"], [SAID, SAID], 600)
    assert (desk.told, records.asked) == ([(SAID, True)], [A, A, A])


async def test_what_is_denied_is_asked_again_after_a_minute():
    desk, _ = await asked(["", "x", "b"], [SAID], 150)
    assert desk.told == [(SAID, False), (SAID, False), (SAID, True)]


async def test_what_nobody_says_any_more_is_not_asked():
    desk, records = Desk(), Answers()
    words = Words(records, desk)
    words.verify(SAID)
    words.start()
    await asyncio.sleep(1)
    await words.stop()
    assert (desk.told, records.asked) == ([], [])


async def test_a_node_that_says_much_delays_another_by_one_call():
    much = [Verify(NodeName("n9"), "shop", B, PodUid(f"p{number}")) for number in range(100)]
    desk, _ = await asked(["b"] * 101, [*much, SAID], 0.025)
    assert [said for said, _ in desk.told] == [much[0], SAID]


@pytest.mark.real_time
async def test_copies_are_those_that_can_be_restored_once_the_pod_is_gone():
    copies = [
        {"place": Tier.RAM, "node": "n1", "state": wire.CopyState.VERIFIED},
        {"place": Tier.NVME, "node": "n1", "state": wire.CopyState.VERIFIED},
        {"place": Tier.OBJECT, "store": "s3://x", "state": wire.CopyState.PENDING},
    ]

    class Latest:
        def latest(self, wanted, deadline_s):
            assert (wanted.namespace, wanted.pod_uid, wanted.any) == ("shop", A, False)
            return SimpleNamespace(
                size=7, copies=[wire.KnownCopy(**one, told_ms=1) for one in copies]
            )

    records = Records(Latest, [].append)
    assert await records.copies("shop", A) == (Artifact(Tier.NVME, 7),)
