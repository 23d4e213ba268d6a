#!/usr/bin/env python3
"""Compiles every CUDA kernel to machine code with NVRTC, without a GPU or driver, and says what each needs.

    python3 scripts/compile_kernels.py --nvrtc DIR [--kernels DIR] ARCH...

DIR holds libnvrtc.so.13 and libnvrtc-builtins.so.13.0, as the Python package nvidia-cuda-nvrtc brings them; ARCH is sm_80 or the like. Exit 1 if
a kernel does not compile, spills registers, keeps arrays in local memory, or brings a warning. NVRTC's API: docs.nvidia.com/cuda/nvrtc.
"""

import argparse
import ctypes
import pathlib
import re
import sys

KERNELS = pathlib.Path(__file__).resolve().parent.parent / "cpp-exec-cuda" / "kernels"
# ptxas tells of each kernel in this order.
ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for '(?P<arch>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?:[^\n]*?(?P<shared>\d+) bytes smem)?[^\n]*",
    re.DOTALL,
)


class Nvrtc:
    def __init__(self, folder: pathlib.Path):
        # The compiler opens its builtins by name; one that is loaded is found wherever it lies.
        for builtins in folder.glob("libnvrtc-builtins.so*"):
            ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(str(folder / "libnvrtc.so.13"))
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments) -> None:
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {self.library.nvrtcGetErrorString(result).decode()}")

    def version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def compile(self, file: pathlib.Path, headers: list[pathlib.Path], options: list[str]) -> tuple[str, bytes]:
        """The log and the machine code, which is empty if the file does not compile."""
        program = ctypes.c_void_p()
        texts = (ctypes.c_char_p * len(headers))(*[header.read_bytes() for header in headers])
        names = (ctypes.c_char_p * len(headers))(*[header.name.encode() for header in headers])
        self.call("nvrtcCreateProgram", ctypes.byref(program), file.read_bytes(), file.name.encode(), len(headers), texts, names)
        given = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        failed = self.library.nvrtcCompileProgram(program, len(options), given) != 0
        log = self.text(program, "ProgramLog").rstrip(b"\0").decode()
        code = b"" if failed else self.text(program, "CUBIN")
        self.call("nvrtcDestroyProgram", ctypes.byref(program))
        return log, code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvrtc", type=pathlib.Path, required=True, help="folder of libnvrtc.so.13")
    parser.add_argument("--kernels", type=pathlib.Path, default=KERNELS, help="folder of the kernels")
    parser.add_argument("arch", nargs="+")
    arguments = parser.parse_args()
    nvrtc = Nvrtc(arguments.nvrtc)
    headers = sorted(arguments.kernels.glob("*.cuh"))
    print(f"NVRTC {nvrtc.version()}")
    print(f"{'kernel':<24}" + "".join(f"{arch:>8} registers, shared" for arch in arguments.arch))
    bad, kernels = 0, 0
    for file in sorted(arguments.kernels.glob("*.cu")):
        needs: dict[str, dict[str, str]] = {}
        for arch in arguments.arch:
            options = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v"]
            log, code = nvrtc.compile(file, headers, options)
            entries = list(ENTRY.finditer(log))
            if not code or "warning" in log or not entries:
                print(f"{file.name} for {arch}: {'no machine code' if not code else 'a warning, or no kernel'}\n{log}")
                bad += 1
                continue
            if not code.startswith(b"\x7fELF"):
                print(f"{file.name} for {arch}: what came out is no machine code")
                bad += 1
            for entry in entries:
                needs.setdefault(entry["name"], {})[arch] = f"{entry['registers']:>18}, {entry['shared'] or 0:>6}"
                if any(int(entry[memory]) for memory in ("stack", "stores", "loads")):
                    stack, stores, loads = entry["stack"], entry["stores"], entry["loads"]
                    print(f"{entry['name']} for {arch}: stack of {stack} bytes, spills {stores} bytes, reads back {loads}")
                    bad += 1
        for name, of_arch in needs.items():
            print(f"{name:<24}" + "".join(f"{of_arch.get(arch, '-'):>26}" for arch in arguments.arch))
            kernels += 1
    print(f"{kernels} kernels for {len(arguments.arch)} architectures, {bad} faults")
    return 1 if bad or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
