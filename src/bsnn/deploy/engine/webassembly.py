"""The engine as WebAssembly: `engine.wasm`, compiled once from the C of this folder, and the same for all networks.

It ships with the package, so that an export needs no compiler. After a change of the C, `make wasm` compiles it again.
"""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from bsnn.atomic import write_file
from bsnn.errors import UserError

STACK_BYTES = 2 * 65536

_FILE = Path(__file__).with_name("engine.wasm")
_OWN, _SHARED = Path(__file__).with_name("csrc"), Path(__file__).parents[2] / "csrc"
_SOURCES = (
    *(_OWN / name for name in ("engine.c", "engine.h")),
    *(_SHARED / name for name in ("convolution.h", "count.h", "count_width.h", "words.h")),
)
_SECTION = b"bsnn.sources"
_FLAGS = (
    *("--target=wasm32-freestanding", "-mcpu=generic+bulk_memory+simd128", "-O2", "-std=c99", "-nostdlib"),
    *("-Wl,--no-entry", "-Wl,--strip-all", f"-Wl,-z,stack-size={STACK_BYTES}"),
    *("-Wl,--export=bsnn_run", "-Wl,--export=__heap_base"),
)
# All that the engine takes from the standard library; both are instructions of WebAssembly.
_STRING_H = "#define memcpy __builtin_memcpy\n#define memset __builtin_memset\n"


def engine_wasm() -> bytes:
    r"""The compiled engine, whose one function is `bsnn_run`; it imports nothing.

    Raises:
        UserError: If it was compiled from other sources than those that are here.

    Example:
        >>> engine_wasm()[:4]
        b'\x00asm'
    """
    try:
        content = _FILE.read_bytes()
    except OSError as error:
        raise UserError(f"{_FILE} cannot be read ({error.strerror}); install bsnn again, or run make wasm.") from error
    if not content.endswith(_stamp()):
        raise UserError(f"{_FILE} was compiled from other sources than those beside it; run make wasm.")
    return content


def compile_engine() -> bytes:
    """Compiles the engine with the compiler of the package `ziglang`, and stamps it with its sources."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "string.h").write_text(_STRING_H)
        made = Path(folder) / "engine.wasm"
        source = [f"-I{folder}", f"-I{_SHARED}", str(_SOURCES[0]), "-o", str(made)]
        done = subprocess.run([sys.executable, "-m", "ziglang", "cc", *_FLAGS, *source], check=False)
        if done.returncode:
            raise UserError("engine.wasm was not compiled; it takes: pip install ziglang==0.17.0")
        return made.read_bytes() + _stamp()


def _stamp() -> bytes:
    """A section, which runtimes ignore, with a digest of the sources."""
    digest = hashlib.sha256()
    for path in _SOURCES:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    content = bytes([len(_SECTION)]) + _SECTION + digest.digest()
    return bytes([0, len(content)]) + content


if __name__ == "__main__":
    write_file(_FILE, compile_engine())
    print(f"{_FILE}: {_FILE.stat().st_size:,} bytes")
