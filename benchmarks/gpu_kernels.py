"""What each Triton kernel becomes on an A100 and an H100, and what it moves, found without a GPU.

    python benchmarks/gpu_kernels.py [--check] [--only NAME]

Every kernel is compiled ahead of time to machine code for sm_80 and sm_90 (ptxas is part of Triton): registers, spilled
bytes, shared memory. A second process runs it in Triton's interpreter and counts the bytes that its loads and stores
touch, each address once per instruction, beside the least: the size of what it must read and write. With --check,
nothing is written, and a spilled register is an error. Writes results/gpu_kernels.json.
"""

import argparse
import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bsnn.atomic import write_file

RESULTS = Path(__file__).parent / "results" / "gpu_kernels.json"
TARGETS = (80, 90)
BATCH, CHANNELS, SIZE = 8, 64, 16
MODULES = ("_signs", "_moments", "_fire", "_through", "_momentum", "_flips", "_loss")
TYPES = {
    torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16", torch.uint8: "u8",
    torch.int8: "i8", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip

ALIGNED = [["tt.divisibility", 16]]


def images(size: int = SIZE) -> Tensor:
    return torch.randn(BATCH, CHANNELS, size, size).contiguous(memory_format=torch.channels_last)


def cases() -> dict[str, tuple[Callable[[], object], int]]:
    """Calls of every operator, and the least number of bytes that each must move."""
    ops = torch.ops.bsnn
    number, weights = images().numel(), CHANNELS * CHANNELS * 9
    rows = number // CHANNELS
    bits = torch.zeros(rows, CHANNELS // 8, dtype=torch.uint8)
    packed = torch.zeros(weights // 8, dtype=torch.uint8)
    channel = torch.ones(CHANNELS)
    half, scalar, refused = SIZE // 2, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    gradient, codes, scales = torch.randn(weights), torch.zeros(weights, dtype=torch.int8), torch.ones(weights // 256)
    count = torch.zeros(1, dtype=torch.int64)
    found: dict[str, tuple[Callable[[], object], int]] = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        made = torch.empty(CHANNELS, CHANNELS, 3, 3, dtype=dtype, memory_format=torch.channels_last)
        least = weights // 8 + made.nbytes
        found[f"unpack_signs {TYPES[dtype]}"] = (lambda made=made: ops.unpack_signs(packed, made)), least
    running = channel.clone(), channel.clone(), torch.zeros((), dtype=torch.int64)
    statistics = torch.empty(4, CHANNELS)
    found["moments"] = (lambda: ops.moments(images(), channel, channel, *running, statistics, 0.1, 1e-5)), 4 * number
    folded = torch.empty(2, CHANNELS)
    found["fold_norm"] = (lambda: ops.fold_norm(channel, channel, channel, channel, folded, 1e-5)), 24 * CHANNELS
    for kind, name in enumerate(("sltt", "ottt", "ndot", "ndot without clamp")):
        for pooled in (False, True):
            sent = images(half) if pooled else images()
            trace, sent_trace = images() if kind else None, images(half) if kind and pooled else None
            ratios = torch.zeros(2, dtype=torch.int64) if kind > 1 else None
            parts = (channel, channel, images(), trace, sent, sent_trace, bits, ratios)
            # The current is read, membrane and trace are read and written, what is sent on is written.
            least = number * (4 + 8 + 8 * (kind > 0)) + bits.nbytes + sent.nbytes
            least += 0 if sent_trace is None else sent_trace.nbytes
            call = lambda parts=parts, kind=kind: ops.fire(images(), *parts, 0.5, 1.0, kind)  # noqa: E731
            found[f"fire {name}{' pooled' if pooled else ''}"] = call, least
    for surrogate, name in enumerate(("sigmoid", "rectangle", "triangle", "arctan")):
        for pooled in (False, True):
            sent, five = images(half) if pooled else images(), torch.empty(5, CHANNELS)
            parts = (sent, images(), bits, images(), channel, channel, channel, images(), five)
            call = lambda parts=parts, surrogate=surrogate: ops.through(*parts, 1.0, 4.0, surrogate)  # noqa: E731
            found[f"through {name}{' pooled' if pooled else ''}"] = call, number * 12 + bits.nbytes + sent.nbytes
    five = torch.ones(5, CHANNELS)
    found["through_norm"] = (lambda: ops.through_norm(images(), images(), five)), 12 * number
    found["mean_square"] = (lambda: ops.mean_square(gradient, scalar, refused)), 4 * weights
    found["fold"] = (lambda: ops.fold(gradient, gradient.clone(), refused, 0.1, False)), 12 * weights
    eight = (codes, scales, None, refused, 1, 0.1, False)
    found["fold_8"] = (lambda: ops.fold_8(gradient, *eight)), 6 * weights + 8 * len(scales)
    least = 4 * weights + 2 * packed.nbytes
    settings = refused, count, [weights], 0.1, 0.0
    found["flip"] = (lambda: ops.flip([packed], [gradient], None, [scalar], *settings)), least
    many = [packed.clone() for _ in range(16)], [gradient] * 16, None, [scalar] * 16, refused
    sixteen = torch.zeros(16, dtype=torch.int64), [weights] * 16, 0.1, 0.0
    found["flip of 16 parameters"] = (lambda: ops.flip(*many, *sixteen)), 16 * least
    least = weights + 4 * len(scales) + 2 * packed.nbytes
    found["flip 8 bits"] = (lambda: ops.flip([packed], [codes], [scales], [scalar], *settings)), least
    logits, loss, labels = torch.randn(128, 100), torch.zeros(()), torch.zeros(128, dtype=torch.int64)
    shares = loss, torch.empty_like(logits), 0.01, 0.001, 0.1
    found["mixed_loss"] = (lambda: ops.mixed_loss(logits, labels, *shares)), 2 * logits.nbytes + labels.nbytes
    found["mixed_loss of mixtures"] = (lambda: ops.mixed_loss(logits, logits, *shares)), 3 * logits.nbytes
    return found


def type_of(value: Any) -> str:
    """The type of an argument as the compiler knows it."""
    if isinstance(value, Tensor):
        return f"*{TYPES[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i64" if abs(value) >= 2**31 else "i32"


def loaded() -> list[Any]:
    return [importlib.import_module(f"bsnn.kernels.triton.{name}") for name in MODULES]


def compiled(call: Callable[[], object]) -> dict[str, dict[str, int]]:
    """Resources of the kernel that a call launches, by target."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile as compile_kernel

    launches: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
    modules = loaded()
    originals = [module.launch for module in modules]
    for module in modules:
        module.launch = lambda kernel, grid, *arguments, **constants: launches.append((kernel, arguments, constants))
    try:
        call()
    finally:
        for module, original in zip(modules, originals, strict=True):
            module.launch = original
    ((kernel, arguments, constants),) = launches
    signature, fixed, attributes = {}, dict(constants), {}
    for index, (name, value) in enumerate(zip(kernel.arg_names, arguments, strict=False)):
        if value is None:
            fixed[name] = None
        elif isinstance(value, tuple):
            signature[name] = tuple(type_of(one) for one in value)
            attributes |= {(index, k): ALIGNED for k, one in enumerate(value) if isinstance(one, Tensor)}
        else:
            signature[name] = type_of(value)
            attributes |= {(index,): ALIGNED} if isinstance(value, Tensor) else {}
    signature |= dict.fromkeys(fixed, "constexpr")
    signature = {name: signature[name] for name in kernel.arg_names}
    found = {}
    for target in TARGETS:
        source = ASTSource(kernel, signature, fixed, attributes)
        made = compile_kernel(source, target=GPUTarget("cuda", target, 32), options={"enable_fp_fusion": False})
        found[f"sm_{target}"] = resources(made.asm["ptx"], target) | {"shared_bytes": made.metadata.shared}
    return found


def resources(ptx: str, target: int) -> dict[str, int]:
    """Registers and spilled bytes, as ptxas reports them."""
    from triton.backends.nvidia.compiler import get_ptxas

    with tempfile.TemporaryDirectory() as room:
        source = Path(room, "kernel.ptx")
        source.write_text(ptx)
        architecture = re.findall(r"\.target (\w+)", ptx)[0]
        command = [
            get_ptxas(target).path,
            "-v",
            "--fmad=false",
            "--regAllocOptLevel=2",
            f"--gpu-name={architecture}",
            source,
        ]
        done = subprocess.run([*command, "-o", Path(room, "kernel.cubin")], capture_output=True, text=True)
    text = done.stderr + done.stdout
    if done.returncode:
        sys.exit(f"ptxas: {text}")
    spilled = sum(int(number) for number in re.findall(r"(\d+) bytes spill", text))
    (registers,) = re.findall(r"Used (\d+) registers", text)
    return {"registers": int(registers), "spilled_bytes": spilled}


@contextlib.contextmanager
def counting_bytes() -> Iterator[list[int]]:
    """Adds up what the interpreter's loads and stores touch, each address once per instruction."""
    import numpy as np
    from triton.runtime import interpreter

    builder, total = interpreter.InterpreterBuilder, [0]
    load, store = builder.create_masked_load, builder.create_masked_store

    def count(pointers: Any, mask: Any) -> None:
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        total[0] += size * len(np.unique(pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]))

    def counted_load(self: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        count(pointers, mask)
        return load(self, pointers, mask, *others)

    def counted_store(self: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        count(pointers, mask)
        return store(self, pointers, value, mask, *others)

    builder.create_masked_load, builder.create_masked_store = counted_load, counted_store
    try:
        yield total
    finally:
        builder.create_masked_load, builder.create_masked_store = load, store


def moved(only: str) -> dict[str, int]:
    """Bytes that kernels move, by the interpreter."""
    loaded()
    found = {}
    for name, (call, _) in cases().items():
        if not name.startswith(only):
            continue
        with counting_bytes() as total:
            call()
        found[name] = total[0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compile only, and fail if a register is spilled")
    parser.add_argument(
        "--only", default="", metavar="NAME", help="kernels whose name begins so; others stay as they are"
    )
    parser.add_argument("--moved", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.moved:
        print(json.dumps(moved(options.only)))
        return
    loaded()
    kernels: dict[str, Any] = {}
    for name, (call, least) in cases().items():
        if not name.startswith(options.only):
            continue
        kernels[name] = {**compiled(call), "least_bytes": least}
        print(name, kernels[name], flush=True)
    spilled = [name for name, found in kernels.items() if any(found[f"sm_{t}"]["spilled_bytes"] for t in TARGETS)]
    if options.check:
        sys.exit(f"spilled registers: {', '.join(spilled)}" if spilled else 0)
    command = [sys.executable, __file__, "--moved", "--only", options.only]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    for name, number in json.loads(output).items():
        kernels[name] |= {"moved_bytes": number, "ratio": round(number / kernels[name]["least_bytes"], 3)}
    import triton

    record = {"triton": triton.__version__, "torch": torch.__version__, "images": [BATCH, CHANNELS, SIZE, SIZE]}
    if options.only:
        kernels = json.loads(RESULTS.read_text())["kernels"] | kernels
    write_file(RESULTS, json.dumps(record | {"kernels": kernels}, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
