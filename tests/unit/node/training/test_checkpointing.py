"""The thread that writes checkpoints: newest first, never more than two alive, and no failure ends
it.
"""

import gc
import threading
import weakref

from fedelmy_node.training.checkpointing import LatestOnly


class Item:
    """Something whose end can be noticed."""

    def __init__(self, name):
        self.name = name


def test_only_the_newest_waiting_one_is_done():
    done, began, release = [], threading.Event(), threading.Event()

    def do(item):
        done.append(item.name)
        began.set()
        release.wait(30)

    newest = LatestOnly(do, lambda error: None, "test")
    newest.offer(lambda: Item("first"))
    assert began.wait(30)
    for name in ("second", "third", "fourth"):
        newest.offer(lambda name=name: Item(name))
    release.set()
    newest.close(finish=True)
    assert done == ["first", "fourth"]


def test_at_most_two_are_alive():
    alive, most = weakref.WeakSet(), []
    began, release = threading.Event(), threading.Event()

    def do(item):
        began.set()
        release.wait(30)

    def make():
        item = Item("one of many")
        alive.add(item)
        gc.collect()
        most.append(len(alive))
        return item

    newest = LatestOnly(do, lambda error: None, "test")
    newest.offer(make)
    assert began.wait(30)
    for _ in range(5):
        newest.offer(make)
    release.set()
    newest.close(finish=True)
    assert max(most) == 2
    gc.collect()
    assert len(alive) == 0


def test_what_waits_can_be_given_up():
    done, began, release = [], threading.Event(), threading.Event()

    def do(item):
        done.append(item.name)
        began.set()
        release.wait(30)

    newest = LatestOnly(do, lambda error: None, "test")
    newest.offer(lambda: Item("first"))
    assert began.wait(30)
    newest.offer(lambda: Item("second"))
    threading.Timer(0.05, release.set).start()
    newest.close(finish=False)
    assert done == ["first"]


def test_a_failure_is_told_and_the_next_one_is_done():
    told, done, failed = [], [], threading.Event()

    def do(item):
        if item.name == "bad":
            raise ZeroDivisionError
        done.append(item.name)

    def tell(error):
        told.append(type(error))
        failed.set()

    newest = LatestOnly(do, tell, "test")
    newest.offer(lambda: Item("bad"))
    assert failed.wait(30)
    newest.offer(lambda: Item("good"))
    newest.close(finish=True)
    assert (told, done) == ([ZeroDivisionError], ["good"])
