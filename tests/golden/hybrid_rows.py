"""gemm for hybrid: family rows, float32, layout nn.

template: gemm/hybrid/rows.py.j2, digest 1e055e4e2ba99d9f
configuration: {"devices": 2, "exchange": "peer", "panels": 2, "pieces": 4, "staging": "pinned",
    "threads": 4}

C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C by host threads that drive streams of GPUs.
`gemm` makes a plan for given sizes on a machine: the GPUs' memory, streams, events and copies, and
the product of matrices that lie on one GPU (autotune.distributed.hybrid.machine).
`python FILE [M N K]` tries it on the GPUs that are here.
"""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from autotune.runtime.emitted import open_machine

# GPUs, and host threads in all: thread t drives GPU t % DEVICES.
DEVICES = 2
THREADS = 4
# Parts that a thread's share of the work travels in, so that one is computed while others travel.
PIECES = 4
# Pieces of a thread that are on its GPU at a time: one comes, one is computed, one goes.
ROOMS = 3
# A cut through the reduction is at a multiple of this, where rows of A stay aligned.
GRAIN = 16

DTYPE = np.dtype("float32")

# Panels that every GPU's share of B comes in.
PANELS = 2


def span(extent, parts, index):
    """First and one past the last of part `index`; lengths differ by one at most."""
    return extent * index // parts, extent * (index + 1) // parts


def cut(extent, parts, index):
    """The same in whole grains; parts may be empty."""
    first, last = span(-(-extent // GRAIN), parts, index)
    return min(first * GRAIN, extent), min(last * GRAIN, extent)


def within(outer, inner):
    """A span that is relative to the beginning of another one."""
    return outer[0] + inner[0], outer[0] + inner[1]


def resident(matrix, device):
    """Whether a matrix lies on a GPU; NumPy's arrays lie on "cpu"."""
    return matrix.device == device


class HostThread:
    """One host thread's part of the machine: a GPU, and streams to carry in, compute, carry out."""

    def __init__(self, machine, number):
        self.device = number % DEVICES
        # Its number among the threads of its GPU, and how many those are.
        self.place = number // DEVICES
        self.mates = mates(self.device)
        self.inward, self.compute, self.outward = (machine.stream(self.device) for _ in range(3))
        # When the pieces that are on the GPU were last computed with, and carried out.
        self.computed = [None] * ROOMS
        self.sent = [None] * ROOMS
        self.entries = [Stage() for _ in range(STAGES)]
        self.exits = [Stage() for _ in range(STAGES)]


def mates(device):
    """How many threads drive a GPU."""
    return len(range(device, THREADS, DEVICES))


class ThreadFailed(Exception):
    """Another thread has failed: what this one waits for will not come."""


class Promise:
    """An event that somebody is going to record."""

    def __init__(self):
        self.event = None
        self.given = threading.Event()


class Handover:
    """Events by name, from the thread that recorded one to those that need it.

    A stream can only wait for an event that has been recorded. Threads wait here until it is, not
    until it has come to pass: nothing is computed or copied meanwhile that others wait for.
    """

    def __init__(self):
        self.promises = {}
        self.failure = None

    def give(self, name, event):
        """Let others have an event that has been recorded."""
        promise = self.promises.setdefault(name, Promise())
        promise.event = event
        promise.given.set()

    def take(self, name):
        """The event of that name, once it is given."""
        promise = self.promises.setdefault(name, Promise())
        if self.failure is None:  # if not, nobody may be left to give it
            promise.given.wait()
        if self.failure is not None:
            raise ThreadFailed
        return promise.event

    def fail(self, error):
        """Wake everybody up; the first failure counts."""
        self.failure = self.failure or error
        for promise in list(self.promises.values()):
            promise.given.set()


# Page-locked buffers that a thread has for either direction, and bytes in each: large enough that
# their number does not count, small enough that copying one hides behind sending another.
STAGES = 3
STAGE_BYTES = 16 << 20


class Stage:
    """A page-locked buffer that parts of host arrays go through."""

    def __init__(self):
        self.memory = None
        self.view = None
        self.event = None
        self.target = None


class Blocks:
    """A matrix in blocks of rows, one on every GPU; indexed by rows of one block."""

    def __init__(self, blocks, spans):
        self.blocks = blocks
        self.spans = spans

    def __getitem__(self, rows):
        for block, (first, last) in zip(self.blocks, self.spans):
            if first <= rows.start and rows.stop <= last:
                return block[rows.start - first : rows.stop - first]
        raise IndexError(f"rows {rows.start} to {rows.stop} are on several GPUs: {self.spans}")


class Plan:
    """One problem on one machine; what its calls share is made when first needed, until `free`.

    Operands are NumPy arrays on the host, or the machine's matrices on GPUs; rows may lie apart.
    One call is made at a time, and returns when C is there.
    """

    def __init__(self, machine, m, n, k):
        if machine.devices < DEVICES:
            here = machine.devices
            raise ValueError(f"the program drives {DEVICES} GPUs, the machine has {here}")
        self.machine = machine
        self.m, self.n, self.k = m, n, k
        self.rooms = {}
        self.rooms_lock = threading.Lock()
        self.threads = [HostThread(machine, number) for number in range(THREADS)]
        self.pool = ThreadPoolExecutor(THREADS, thread_name_prefix="gemm")
        self.handover = Handover()

    def from_host(self, a, b, c, alpha=1.0, beta=0.0):
        """C in place, all three in the memory of the host."""
        self.run(a, b, c, alpha, beta)

    def from_device(self, a, b, c, alpha=1.0, beta=0.0):
        """C in place, all three whole on GPU 0."""
        self.run(a, b, c, alpha, beta)

    def run(self, a, b, c, alpha, beta):
        """Have every thread do its work; what goes wrong in one of them is raised here."""
        self.handover = Handover()
        tasks = []
        try:
            for thread in self.threads:
                tasks.append(self.pool.submit(self.attempt, thread, a, b, c, alpha, beta))
        except BaseException as error:  # the threads that work wait for the one that is not there
            self.handover.fail(error)
        for task in tasks:
            task.result()
        self.machine.reuse_events()
        if self.handover.failure is not None:
            raise self.handover.failure

    def attempt(self, thread, a, b, c, alpha, beta):
        """One thread's work, to the end of all that it enqueued."""
        thread.computed = [None] * ROOMS
        thread.sent = [None] * ROOMS
        try:
            with self.machine.here(thread.device):
                self.work_and_finish(thread, a, b, c, alpha, beta)
        except BaseException as error:  # the others wait for what this thread was to record
            self.handover.fail(error)

    def work_and_finish(self, thread, a, b, c, alpha, beta):
        """One thread's work on its GPU."""
        try:
            self.work(thread, a, b, c, alpha, beta)
            for stage in thread.exits:
                self.settle(stage)
        except ThreadFailed:
            pass
        except BaseException as error:
            self.handover.fail(error)
        try:
            for stream in (thread.inward, thread.compute, thread.outward):
                self.machine.finish(stream)
        except BaseException as error:
            self.handover.fail(error)
        for stage in (*thread.entries, *thread.exits):
            stage.event = stage.target = None

    def wait(self, stream, event):
        """Let a stream wait for an event, where there is one."""
        if event is not None:
            self.machine.wait(stream, event)

    def room(self, name, device, rows, columns):
        """Memory of a GPU that is kept for the next call."""
        with self.rooms_lock:
            if (name, device) not in self.rooms:
                self.rooms[name, device] = self.machine.memory(device, rows, columns)
            return self.rooms[name, device]

    def carry_in(self, thread, target, source):
        """Copy to the thread's GPU; pageable memory of the host goes through stages."""
        if not resident(source, "cpu") or self.machine.is_locked(source):
            self.machine.copy(target, source, thread.inward)
            return
        for first, last in self.stretches(source):
            stage = self.stage(thread.entries, last - first, source.shape[1])
            np.copyto(stage.view, source[first:last])
            self.machine.copy(target[first:last], stage.view, thread.inward)
            stage.event = self.machine.record(thread.inward)

    def carry_out(self, thread, target, source):
        """Copy from the thread's GPU; pageable memory of the host gets it when stages settle."""
        if not resident(target, "cpu") or self.machine.is_locked(target):
            self.machine.copy(target, source, thread.outward)
            return
        for first, last in self.stretches(source):
            stage = self.stage(thread.exits, last - first, source.shape[1])
            stage.target = target[first:last]
            self.machine.copy(stage.view, source[first:last], thread.outward)
            stage.event = self.machine.record(thread.outward)

    def stretches(self, matrix):
        """Rows of a matrix, as many at a time as a stage holds."""
        rows, columns = matrix.shape
        height = max(1, STAGE_BYTES // (max(1, columns) * DTYPE.itemsize))
        return [(first, min(first + height, rows)) for first in range(0, rows, height)]

    def stage(self, stages, rows, columns):
        """The stage that was used longest ago, settled, as a matrix."""
        stages.append(stages.pop(0))
        stage = stages[-1]
        self.settle(stage)
        if stage.memory is None or stage.memory.size < rows * columns:
            if stage.memory is not None:
                self.machine.free(stage.memory)
            largest = max(self.m * self.n, self.n * self.k, self.m * self.k)
            count = min(STAGE_BYTES // DTYPE.itemsize, largest)
            stage.memory = self.machine.pinned(max(count, rows * columns))
        stage.view = stage.memory[: rows * columns].reshape(rows, columns)
        return stage

    def settle(self, stage):
        """Wait for the copy through a stage; what came out goes to where it belongs."""
        if stage.event is not None:
            self.machine.finish(stage.event)
            if stage.target is not None:
                np.copyto(stage.target, stage.view)
        stage.event = stage.target = None

    def free(self):
        """Give threads, streams and memory back."""
        self.pool.shutdown()
        for memory in self.rooms.values():
            self.machine.free(memory)
        self.rooms.clear()
        for thread in self.threads:
            for stage in (*thread.entries, *thread.exits):
                if stage.memory is not None:
                    self.machine.free(stage.memory)
                stage.memory = stage.view = None
            for stream in (thread.inward, thread.compute, thread.outward):
                self.machine.free(stream)
        self.threads = []
        self.handover = Handover()


class Rows(Plan):
    """Every thread computes rows of C, from its rows of A and all of B."""

    def blocks(self):
        """Spans of the rows of A and C, and of B, that each GPU keeps for `on_blocks`."""
        devices = range(DEVICES)
        return [(span(self.m, DEVICES, each), cut(self.n, DEVICES, each)) for each in devices]

    def on_blocks(self, a, b, c, alpha=1.0, beta=0.0):
        """C in place, each operand a list with every GPU's block."""
        of_rows, of_b = zip(*self.blocks())
        self.run(Blocks(a, of_rows), Blocks(b, of_b), Blocks(c, of_rows), alpha, beta)

    def pieces(self, thread):
        """The thread's rows of C, piece by piece."""
        of_device = span(self.m, DEVICES, thread.device)
        mine = within(of_device, span(of_device[1] - of_device[0], thread.mates, thread.place))
        parts = (within(mine, span(mine[1] - mine[0], PIECES, each)) for each in range(PIECES))
        return [(first, last) for first, last in parts if first < last]

    def panels(self, device):
        """Rows of B in the order in which a GPU takes them: whose share, which panel, its span.

        Everybody begins with its own share and goes on with the next GPU's, so that no two take
        from the same one.
        """
        for step in range(DEVICES):
            share = (device + step) % DEVICES
            whole = cut(self.n, DEVICES, share)
            for number in range(PANELS):
                first, last = within(whole, cut(whole[1] - whole[0], PANELS, number))
                if first < last:
                    yield share, number, (first, last)

    def work(self, thread, a, b, c, alpha, beta):
        """Multiply the thread's pieces; while one is computed the next comes and the last goes."""
        pieces = self.pieces(thread)
        coming = self.fetch(thread, pieces, 0, a, c, beta)
        if not pieces:
            for panel in self.panels(thread.device):
                self.bring(thread, b, panel)
        for number in range(len(pieces)):
            part_a, part_c, arrived = coming
            self.wait(thread.compute, arrived)
            if number == 0:
                self.multiply_arriving(thread, part_a, b, part_c, alpha, beta)
            else:
                self.multiply_all(thread, part_a, b, part_c, alpha, beta)
            thread.computed[number % ROOMS] = self.machine.record(thread.compute)
            coming = self.fetch(thread, pieces, number + 1, a, c, beta)
            if number:
                self.give_back(thread, pieces, number - 1, c)
        if pieces:
            self.give_back(thread, pieces, len(pieces) - 1, c)

    def fetch(self, thread, pieces, number, a, c, beta):
        """A piece's rows of A and C on the GPU, and the event of their arrival."""
        if number >= len(pieces):
            return None, None, None
        first, last = pieces[number]
        part_a, part_c = a[first:last], c[first:last]
        here_a = self.room_for(thread, "a", number, part_a, self.n)
        here_c = self.room_for(thread, "c", number, part_c, self.k)
        if here_a is not part_a:
            self.wait(thread.inward, thread.computed[number % ROOMS])
            self.carry_in(thread, here_a, part_a)
        if here_c is not part_c:
            self.wait(thread.inward, thread.sent[number % ROOMS])
            if beta:
                self.carry_in(thread, here_c, part_c)
        return here_a, here_c, self.machine.record(thread.inward)

    def room_for(self, thread, name, number, part, columns):
        """Where the part of a piece is on the GPU: in its place, or in a room."""
        if resident(part, thread.device):
            return part
        longest = -(-self.m // (DEVICES * thread.mates * PIECES))
        room = self.room((name, thread.place, number % ROOMS), thread.device, longest, columns)
        return room[: part.shape[0]]

    def give_back(self, thread, pieces, number, c):
        """A piece's rows of C to where they belong."""
        first, last = pieces[number]
        part = c[first:last]
        here = self.room_for(thread, "c", number, part, self.k)
        if here is not part:
            self.wait(thread.outward, thread.computed[number % ROOMS])
            self.carry_out(thread, part, here)
            thread.sent[number % ROOMS] = self.machine.record(thread.outward)

    def multiply_arriving(self, thread, a, b, c, alpha, beta):
        """One piece, by the panels of B in the order in which they come."""
        for share, number, (first, last) in self.panels(thread.device):
            panel = self.bring(thread, b, (share, number, (first, last)))
            if not resident(b[first:last], thread.device):
                for place in range(thread.mates):
                    arrived = self.handover.take((thread.device, share, number, place))
                    self.wait(thread.compute, arrived)
            self.machine.multiply(a[:, first:last], panel, c, alpha, beta, thread.compute)
            beta = 1.0

    def multiply_all(self, thread, a, b, c, alpha, beta):
        """One piece by all of B, in as few products as B lies on the GPU in."""
        ready = []
        for _, _, (first, last) in sorted(self.panels(thread.device), key=lambda panel: panel[2]):
            here = resident(b[first:last], thread.device)
            if ready and ready[-1][0] == here:
                first = ready.pop()[1]
            ready.append((here, first, last))
        for here, first, last in ready:
            panel = b[first:last] if here else self.room_of_b(thread.device)[first:last]
            self.machine.multiply(a[:, first:last], panel, c, alpha, beta, thread.compute)
            beta = 1.0

    def bring(self, thread, b, panel):
        """A panel of B on the thread's GPU, where it is; or this thread's part of it, coming."""
        share, number, (first, last) = panel
        source = b[first:last]
        if resident(source, thread.device):
            return source
        if resident(source, "cpu") and share != thread.device:
            # Its own GPU has it from the host.
            for place in range(mates(share)):
                arrived = self.handover.take((share, share, number, place))
                self.wait(thread.inward, arrived)
            source = self.room_of_b(share)[first:last]
        here = self.room_of_b(thread.device)[first:last]
        top, bottom = span(last - first, thread.mates, thread.place)
        if top < bottom:
            self.carry_in(thread, here[top:bottom], source[top:bottom])
        arrived = self.machine.record(thread.inward)
        self.handover.give((thread.device, share, number, thread.place), arrived)
        return here

    def room_of_b(self, device):
        """Where a GPU has what it was sent of B."""
        return self.room("b", device, self.n, self.k)


def gemm(machine, m, n, k):
    """A plan for C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C on a machine."""
    return Rows(machine, m, n, k)


def main(arguments):
    """Multiply random matrices of the sizes given and compare with NumPy."""
    sizes = arguments or ["4096", "4096", "4096"]
    if len(sizes) != 3 or not all(each.isdecimal() and int(each) for each in sizes):
        sys.exit(f"three sizes M N K are needed, at least 1 each, got: {' '.join(sizes)}")
    m, n, k = map(int, sizes)
    rng = np.random.default_rng(0)
    a, b = rng.random((m, n), DTYPE), rng.random((n, k), DTYPE)
    c = np.empty((m, k), DTYPE)
    with open_machine(m, n, k, DTYPE.name, DEVICES) as machine:
        plan = gemm(machine, m, n, k)
        for _ in range(2):  # the second call finds memory and kernels there
            start = time.perf_counter()
            plan.from_host(a, b, c)
            seconds = time.perf_counter() - start
        plan.free()
    error = np.abs(c - a @ b).max() / (n * np.finfo(DTYPE).eps)
    print(f"{1e3 * seconds:.3f} ms, largest error {error:.2g} times n eps")


if __name__ == "__main__":
    main(sys.argv[1:])
