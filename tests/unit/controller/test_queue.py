"""The queue: each key once, by one thread at a time, later after a failure."""

from __future__ import annotations

import threading

from controller.base.queue import Queue

A, B = ("shop", "a"), ("shop", "b")


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_key_is_due_once_and_at_the_first_of_its_times():
    queue = Queue(clock := Clock())
    queue.add(A, 5.0)
    queue.add(A, 1.0)
    queue.add(A, 9.0)
    assert len(queue) == 0
    clock.now = 1.0
    assert len(queue) == 1
    assert queue.get() == A
    clock.now = 20.0
    assert len(queue) == 0


def test_a_key_that_a_thread_has_waits_for_it_and_no_other_does():
    queue = Queue(Clock())
    queue.add(A)
    assert queue.get() == A
    queue.add(A)
    queue.add(B)
    assert queue.get() == B
    queue.done(A)
    assert queue.get() == A


def test_namespaces_take_turns_however_many_one_has():
    queue = Queue(clock := Clock())
    for number in range(1000):
        queue.add(("noisy", f"{number:03}"))
    clock.now = 1.0
    queue.add(("quiet", "a"))
    queue.add(("quiet", "b"))
    taken = [queue.get() for _ in range(5)]
    assert [namespace for namespace, _ in taken] == ["noisy", "quiet", "noisy", "quiet", "noisy"]
    for key in taken:
        queue.done(key)
    # Within a namespace it is who was due first.
    assert [name for namespace, name in taken if namespace == "noisy"] == ["000", "001", "002"]
    assert len(queue) == 997


def test_who_comes_first_in_its_namespace_takes_no_turn_of_others():
    queue = Queue(Clock())
    for name in ("a", "b", "c"):
        queue.add(("noisy", name))
    queue.add(("quiet", "a"))
    queue.add(("noisy", "c"), first=True)
    queue.add(("noisy", "d"), first=True)
    taken = [queue.get() for _ in range(5)]
    assert [name for namespace, name in taken if namespace == "noisy"] == ["c", "d", "a", "b"]
    assert taken[1] == ("quiet", "a")
    for key in taken:
        queue.done(key)
    queue.add(("noisy", "a"))
    queue.add(("noisy", "c"))
    assert queue.get() == ("noisy", "a"), "it comes first once, and not for good"


def test_a_namespace_whose_keys_are_all_held_keeps_no_other_one_waiting():
    queue = Queue(Clock())
    queue.add(A)
    assert queue.get() == A
    queue.add(A)
    queue.add(("yard", "c"))
    assert queue.get() == ("yard", "c")
    queue.done(A)
    assert queue.get() == A


def test_after_a_failure_it_is_due_later_each_time_until_it_succeeds():
    queue = Queue(clock := Clock())
    pauses = []
    for _ in range(4):
        queue.add(A)
        assert queue.get() == A
        queue.done(A, failed=True)
        pauses.append(queue._due[A] - clock.now)
        clock.now += 1000.0
        assert queue.get() == A
        queue.done(A, failed=True)
        clock.now += 1000.0
        assert queue.get() == A
        queue.done(A, failed=True)
        clock.now += 1000.0
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1] <= 70.0
    assert queue.get() == A
    queue.done(A)
    assert A not in queue._pauses


def test_who_waits_hears_of_a_key_and_of_the_end():
    queue, got = Queue(), []
    thread = threading.Thread(target=lambda: got.extend([queue.get(), queue.get()]))
    thread.start()
    queue.add(A)
    queue.close()
    thread.join(5)
    assert got[-1] is None
    assert not thread.is_alive()
