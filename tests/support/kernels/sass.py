"""Which loads from shared memory may be in flight where a stage is released, by following the
machine code of a compiled kernel.

A load from shared memory is over when its scoreboard says so, not when it is issued, and an
arrival at an mbarrier waits for no scoreboard that its own operands do not need. So on every path
to an arrival, each load must have been waited for. The waits are in the control bits of the
instructions: bits 105 to 125 of 128 hold, from the lowest, the stall count (4), yield (1), the
scoreboard that counts the result (3), the one that counts the operands' reads (3), the scoreboards
that are waited for before the issue (6), and the register reuse flags (4).
"""

import os
import re
import shutil
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import triton
from packed_sources import include_flags, write_texts

NVDISASM = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"

needs_compilers = pytest.mark.skipif(
    shutil.which("nvcc") is None or not os.access(NVDISASM, os.X_OK),
    reason="needs nvcc, cuobjdump and nvdisasm",
)

NO_SCOREBOARD = 7
FUNCTION = re.compile(r"^\.text\.(\S+):$")
LABEL = re.compile(r"^(\.L_\S+):$")
INSTRUCTION = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;"
    r"\s*/\* 0x[0-9a-f]{16} \*/$"
)
CONTROL = re.compile(r"^\s+/\* 0x([0-9a-f]{16}) \*/$")
TARGET = re.compile(r"`\((\.L_\S+?)\)")
WAIT_FOR_COUNT = re.compile(r"SB(\d), 0x([0-9a-f]+)(?:, \{([\d,]*)\})?")

LOADS = ("LDS", "LDSM")
# An arrival without bytes: consumers release so. With bytes (expect_tx) producers announce a copy.
ARRIVAL = re.compile(r"SYNCS\.ARRIVE\.TRANS64(\.RED)?\.A1T0$")
# Copies that the async proxy makes to shared memory.
COPY = re.compile(r"(UTMALDG|UBLKCP\.S\.G)\b")
ENDS = ("EXIT", "RET", "BRX", "JMP", "BRXU", "JMX", "KILL")


@dataclass
class Instruction:
    address: str
    guard: str | None
    opcode: str
    operands: str
    control: int = 0
    successors: list = field(default_factory=list)

    @property
    def name(self):
        return self.opcode.partition(".")[0]

    @property
    def result_scoreboard(self):
        return self.control >> 5 & 7

    @property
    def awaited_scoreboards(self):
        """The scoreboards that are at zero when the instruction is issued."""
        mask = self.control >> 11 & 0x3F
        awaited = {number for number in range(6) if mask >> number & 1}

        if self.opcode == "DEPBAR.LE":
            number, count, others = WAIT_FOR_COUNT.search(self.operands).groups()
            awaited |= {int(other) for other in (others or "").split(",") if other}
            if int(count, 16) == 0:
                awaited.add(int(number))
        return awaited

    @property
    def goes_on(self):
        """Whether the next instruction may follow."""
        if self.guard is not None:
            return True
        if self.opcode in ("BRA", "BRA.U") and "," not in self.operands:
            return False
        return self.name not in ENDS

    def __str__(self):
        guard = f"{self.guard} " if self.guard else ""
        return f"{self.address}: {guard}{self.opcode} {self.operands}"


@dataclass(frozen=True)
class InFlight:
    """A load that may be in flight at an arrival, or at a copy to shared memory."""

    function: str
    load: str
    release: str


def disassemble(cubin):
    """Return function -> instructions of a cubin file, with their successors."""
    shown = subprocess.run(
        [NVDISASM, "-hex", cubin], capture_output=True, text=True, check=True
    )
    return parse(shown.stdout)


def parse(text):
    """Return function -> instructions of what `nvdisasm -hex` prints."""
    functions = {}
    labels = {}
    waiting = []  # labels of the next instruction
    instructions = None

    for line in text.splitlines():
        begin = FUNCTION.match(line)
        label = LABEL.match(line)
        instruction = INSTRUCTION.match(line)
        control = CONTROL.match(line)
        if begin:
            instructions = functions.setdefault(begin[1], [])
        elif label:
            waiting.append(label[1])
        elif instruction and instructions is not None:
            instructions.append(Instruction(*instruction.groups()))
            labels |= dict.fromkeys(waiting, instructions[-1])
            waiting = []
        elif control and instructions:
            instructions[-1].control = int(control[1], 16) >> 41 & 0x1FFFFF

    for instructions in functions.values():
        connect(instructions, labels)
    return functions


def connect(instructions, labels):
    """Set the successors of the instructions of a function.

    Raises ValueError for a branch whose targets are not printed, since paths would be missed.
    """
    following = [*instructions[1:], None]

    for instruction, after in zip(instructions, following, strict=True):
        targets = TARGET.findall(instruction.operands)
        if instruction.name in ("BRX", "BRXU", "JMX") and not targets:
            raise ValueError(
                f"{instruction}: got a branch without targets, want them named"
            )

        if instruction.name != "BSSY":
            # it names where threads meet again, and goes nowhere
            known_targets = [target for target in targets if target in labels]
            instruction.successors += [labels[target] for target in known_targets]
        if instruction.goes_on and after is not None:
            instruction.successors.append(after)


def loads_in_flight(function, instructions, is_release):
    """Return the loads that some path leaves in flight at an instruction that is_release names."""
    # id of an instruction -> (scoreboard, load) that may be in flight
    before = defaultdict(set)
    changed = [instructions[0]] if instructions else []
    reached = set()

    while changed:
        instruction = changed.pop()
        reached.add(id(instruction))
        after = pending_after(instruction, before[id(instruction)])
        for successor in instruction.successors:
            new = after - before[id(successor)]
            if new or id(successor) not in reached:
                before[id(successor)] |= new
                changed.append(successor)

    in_flight = set()
    for instruction in instructions:
        if is_release(instruction):
            for _, load in not_awaited(instruction, before[id(instruction)]):
                in_flight.add(InFlight(function, load, str(instruction)))
    return in_flight


def not_awaited(instruction, pending):
    """Return those of the pending loads that the instruction does not wait for."""
    awaited = instruction.awaited_scoreboards
    return {
        (scoreboard, load) for scoreboard, load in pending if scoreboard not in awaited
    }


def pending_after(instruction, pending):
    """Return the loads that may be in flight behind an instruction, given those before it."""
    left = not_awaited(instruction, pending)
    if instruction.name in LOADS and instruction.result_scoreboard != NO_SCOREBOARD:
        left.add((instruction.result_scoreboard, str(instruction)))
    return left


def is_arrival(instruction):
    return ARRIVAL.match(instruction.opcode) is not None


def is_copy(instruction):
    return COPY.match(instruction.opcode) is not None


def opcodes(functions):
    """Return the opcodes, without their modifiers, of what `disassemble` returns."""
    names = set()
    for instructions in functions.values():
        names |= {instruction.name for instruction in instructions}
    return names


def arrivals(functions):
    """Return the arrivals at which a stage may be released."""
    listed = []
    for instructions in functions.values():
        listed += filter(is_arrival, instructions)
    return listed


def released_in_flight(functions):
    """Return the loads from shared memory that may be in flight where what they read may be
    overwritten: at an arrival, or at a copy that the reading warp itself requests.
    """
    in_flight = set()
    for function, instructions in functions.items():
        in_flight |= loads_in_flight(function, instructions, is_arrival)
        copied = loads_in_flight(function, instructions, is_copy)
        in_flight |= {at for at in copied if " LDS.128 " in f" {at.load} "}
    return in_flight


def read_only_loads(functions):
    """Return function -> how many loads are ld.global.nc, which no other thread may write to."""
    counts = {}
    for function, instructions in functions.items():
        loads = [each for each in instructions if each.name == "LDG"]
        counts[function] = sum(".CONSTANT" in load.opcode for load in loads)
    return counts


@dataclass(frozen=True)
class Compiled:
    """A source as nvcc compiles it."""

    cubin: Path
    log: str  # what ptxas said


def compiled(texts, source, folder, architecture, flags=()):
    """Compile one of a solution's files (path -> text) for "90a", say, in a folder.

    Raises AssertionError with what nvcc says if it does not compile.
    """
    write_texts(folder, texts)
    cubin = folder / "kernel.cubin"
    target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    command = [
        "nvcc",
        "-std=c++17",
        "-O2",
        target,
        "-cubin",
        *flags,
        *include_flags(folder),
    ]
    done = subprocess.run(
        [*command, "-o", cubin, folder / source], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return Compiled(cubin, done.stderr)
