"""A machine with threads, asynchronous copies, mbarriers and named barriers, which finds unordered
accesses to memory.

Every thread and every asynchronous operation has a vector clock. An access is a race if it meets
another one of the same word, one of them a write, that does not happen before it: whatever the
order in this run, another run may have the other. So one run finds a race whether or not it goes
wrong in it; other seeds try other orders of the waits.

Words that all accesses so far treat alike share one record; a set of words that splits a record
copies it.
"""

import random
from typing import NamedTuple

import numpy as np

MOST_CLOCKS = 1024  # threads and asynchronous operations that are in flight together


class Fault(Exception):
    """A race, a deadlock, or a barrier that is used against its rules."""


class Read(NamedTuple):
    """When an actor has read a word for the last time, and whether by the generic proxy."""

    when: int
    generic: bool


class Actor:
    """A thread or an asynchronous operation: what happens before its next action.

    fenced: what of it the async proxy sees; generic writes enter by a proxy fence.
    """

    def __init__(self, name, slot, seen, fenced):
        self.name, self.slot, self.seen, self.fenced = name, slot, seen, fenced


class Barrier:
    """An mbarrier: a phase ends when `arrivals` have arrived and all expected bytes are in."""

    def __init__(self, arrivals):
        self.arrivals = self.pending = arrivals
        self.bytes = self.phase = 0
        self.now, self.ended = (np.zeros((2, MOST_CLOCKS), np.int64) for _ in range(2))


class Machine:
    def __init__(self, words, seed):
        self.random = random.Random(seed)
        self.clocks = np.zeros(MOST_CLOCKS, np.int64)
        self.names = []
        self.free = []  # slots of operations that are over
        self.threads, self.operations = [], []  # [actor, generator, wanted], (actor, what it does)
        self.record = np.zeros(words, np.int64)  # of each word
        self.last = [
            ((None, 0, False), {})
        ]  # record -> (who wrote it, when, whether by the generic proxy), reads
        self.words, self.known = (
            {},
            {},
        )  # key -> words; key -> records. The end of a key is not for messages
        self.named = {}

    # ---- actors ----

    def _actor(self, name, parent=None):
        known = [
            slot
            for slot in self.free
            if parent is not None and parent.seen[slot] >= self.clocks[slot]
        ]
        if known:  # who happens after the slot's last operation may take it over
            slot = known[0]
            self.free.remove(slot)
            self.names[slot] = name
        else:
            slot = len(self.names)
            self.names.append(name)
        seen, fenced = (
            (np.zeros((2, MOST_CLOCKS), np.int64))
            if parent is None
            else (parent.seen, parent.fenced)
        )
        actor = Actor(name, slot, seen.copy(), fenced.copy())
        self._tick(actor)
        return actor

    def _tick(self, actor):
        self.clocks[actor.slot] += 1
        actor.seen[actor.slot] = self.clocks[actor.slot]

    def thread(self, name, body):
        """body(actor) yields what it waits for: a function of the actor that says whether it may go
        on.
        """
        actor = self._actor(name)
        self.threads.append([actor, body(actor), None])

    def start(self, actor, name, action):
        """An asynchronous operation after all that the actor has done so far; action(operation)
        happens later.

        Returns whether it is over, as something to wait for: waiting orders it before what follows.
        """
        operation = self._actor(name, actor)
        self._tick(actor)
        over = []
        self.operations.append((operation, action, over))

        def wait(waiter):
            if over:
                self._join(waiter, operation.seen, operation.fenced)
            return bool(over)

        return wait

    def _join(self, actor, seen, fenced):
        np.maximum(actor.seen, seen, out=actor.seen)
        np.maximum(actor.fenced, fenced, out=actor.fenced)

    def run(self):
        """Until all threads have ended. Raises Fault."""
        speed = [self.random.choice((0.05, 0.3, 1.0)) for _ in self.threads]
        laziness = self.random.choice((0.02, 0.3, 1.0))  # how soon operations happen
        left = list(range(len(self.threads)))
        idle = 0
        while left:
            if self.operations and self.random.random() < laziness:
                self._operate(self.random.randrange(len(self.operations)))
                idle = 0
            at = self.random.choices(left, [speed[i] for i in left])[0]
            actor, body, wanted = self.threads[at]
            if wanted is not None and not wanted(actor):
                idle += 1
                if idle > 50 and self.operations:
                    self._operate(0)
                    idle = 0
                elif idle > 50 and not any(self._may_go_on(i) for i in left):
                    raise Fault("deadlock: " + ", ".join(self.threads[i][0].name for i in left))
                continue
            idle = 0
            try:
                self.threads[at][2] = next(body)
            except StopIteration:
                left.remove(at)
        while self.operations:
            self._operate(0)

    def _may_go_on(self, at):
        actor, _, wanted = self.threads[at]
        return wanted is None or wanted(actor)

    def _operate(self, at):
        operation, action, over = self.operations.pop(at)
        action(operation)
        over.append(True)
        self.free.append(operation.slot)

    # ---- memory ----

    def _records(self, key):
        """Records of the words of a key, split so that they have no others."""
        if key in self.known:
            return self.known[key]
        words = self.words[key]
        found = []
        for record, count in zip(*np.unique(self.record[words], return_counts=True), strict=True):
            if count < (self.record == record).sum():
                writer, reads = self.last[record]
                self.last.append((writer, dict(reads)))
                inside = words[self.record[words] == record]
                self.record[inside] = len(self.last) - 1
                for others in self.known.values():
                    if record in others:
                        others.append(len(self.last) - 1)
                record = len(self.last) - 1
            found.append(int(record))
        self.known[key] = found
        return found

    def _ordered(self, actor, key, slot, when, did):
        if slot is not None and slot != actor.slot and actor.seen[slot] < when:
            raise Fault(f"race: {actor.name} {did} {key[:-1]} by {self.names[slot]}")

    def read(self, actor, key, async_proxy=False):
        for record in self._records(key):
            (writer, when, generic), reads = self.last[record]
            self._ordered(actor, key, writer, when, "reads what is written unordered:")
            if async_proxy and generic and actor.fenced[writer] < when:
                raise Fault(
                    f"no proxy fence: {actor.name} reads {key[:-1]} of {self.names[writer]}"
                )
            reads[actor.slot] = Read(actor.seen[actor.slot], not async_proxy)

    def write(self, actor, key, async_proxy=False):
        for record in self._records(key):
            (writer, when, _), reads = self.last[record]
            self._ordered(actor, key, writer, when, "overwrites what is written unordered:")
            for slot, read in reads.items():
                self._ordered(actor, key, slot, read.when, "overwrites what is read unordered:")
                if async_proxy and read.generic and actor.fenced[slot] < read.when:
                    raise Fault(
                        f"no proxy fence: {actor.name} overwrites {key[:-1]} that "
                        f"{self.names[slot]} reads"
                    )
            self.last[record] = ((actor.slot, actor.seen[actor.slot], not async_proxy), {})

    def fence_proxy(self, actor):
        np.maximum(actor.fenced, actor.seen, out=actor.fenced)

    # ---- barriers ----

    def _signal(self, barrier, actor, arrivals, expected):
        np.maximum(barrier.now[0], actor.seen, out=barrier.now[0])
        np.maximum(barrier.now[1], actor.fenced, out=barrier.now[1])
        barrier.pending -= arrivals
        barrier.bytes += expected
        self._tick(actor)
        if barrier.pending < 0:
            raise Fault(f"{actor.name} arrives once too often")
        if barrier.pending == 0 and barrier.bytes == 0:
            barrier.phase += 1
            barrier.pending = barrier.arrivals
            barrier.ended, barrier.now = barrier.now, np.zeros_like(barrier.now)

    def arrive(self, actor, barrier, arrivals=1, expected=0):
        self._signal(barrier, actor, arrivals, expected)

    def expect(self, actor, barrier, expected):
        barrier.bytes += expected  # relaxed: it releases nothing

    def complete(self, actor, barrier, count):
        self._signal(barrier, actor, 0, -count)

    def passed(self, barrier, parity):
        """To wait for: the phase of this parity has ended."""

        def wait(actor):
            if barrier.phase % 2 == parity:
                return False
            self._join(actor, *barrier.ended)
            return True

        return wait

    def together(self, actor, name, threads):
        """To wait for: a named barrier of so many threads."""
        at = self.named.setdefault(name, [[], np.zeros((2, MOST_CLOCKS), np.int64)])
        at[0].append(actor)
        np.maximum(at[1][0], actor.seen, out=at[1][0])
        np.maximum(at[1][1], actor.fenced, out=at[1][1])
        self._tick(actor)
        if len(at[0]) == threads:
            del self.named[name]

        def wait(waiter):
            if len(at[0]) < threads:
                return False
            self._join(waiter, *at[1])
            return True

        return wait
