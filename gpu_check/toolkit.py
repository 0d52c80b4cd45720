"""Where the CUDA toolkit is, for torch's build of an extension.

torch takes the folder above nvcc's for the toolkit, which is wrong where `nvcc` on the path is a script that starts the
real one. And a toolkit may be the compiler alone: the headers of cuBLAS and the like, which torch's own headers
include, then come from the packages of NVIDIA's that torch has brought along.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_ROOTS = Path("/usr/local")
_RUNTIME = "libcudart.so"
_HEADERS = ("cublas_v2.h", "cublasLt.h", "cusparse.h", "cusolverDn.h", "curand_kernel.h")
"""Of torch's headers and of exllamav3's kernels, beside the compiler's own."""


def toolkit_environment(nvcc: str | None, state: Path) -> dict[str, str]:
    """What is to be set, over what is set; nothing where no toolkit is found."""
    home = _find_home(nvcc)
    if home is None:
        return {}
    packages = nvidia_packages()
    found = {"CUDA_HOME": str(home)}
    # Searched behind the toolkit's own.
    missing = [name for name in _HEADERS if not (home / "include" / name).is_file()]
    headers = [str(folder / "include") for folder in packages if (folder / "include").is_dir()]
    if headers and missing:
        found["CPLUS_INCLUDE_PATH"] = _joined(os.environ.get("CPLUS_INCLUDE_PATH"), headers)
    libraries = [home / "lib64", home / "lib", home / "targets" / "x86_64-linux" / "lib"]
    there = [folder for folder in libraries if (folder / _RUNTIME).is_file()]
    if not there and (linked := _link_runtime(packages, state / "lib")) is not None:
        there = [linked]
    found["LIBRARY_PATH"] = _joined(os.environ.get("LIBRARY_PATH"), map(str, there))
    return found


def nvidia_packages() -> list[Path]:
    """Folders with `include` and `lib` of NVIDIA's packages from PyPI: one for all of CUDA 13, one each before."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations if spec is not None else None
    return [folder for root in roots or () for folder in sorted(Path(root).iterdir()) if folder.is_dir()]


def _find_home(nvcc: str | None) -> Path | None:
    return next((home for home in _homes(nvcc) if _is_toolkit(home)), None)


def _homes(nvcc: str | None) -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if named := os.environ.get(variable):
            yield Path(named)
    if nvcc is not None:
        yield Path(nvcc).parents[1]
        yield Path(nvcc).resolve().parents[1]
    yield _ROOTS / "cuda"
    yield from sorted(_ROOTS.glob("cuda-*"), reverse=True)


def _is_toolkit(home: Path) -> bool:
    return (home / "bin" / "nvcc").is_file() and (home / "include" / "cuda_runtime.h").is_file()


def _link_runtime(packages: Iterable[Path], folder: Path) -> Path | None:
    """The linker asks for it by a name without a version, which the packages lack."""
    versions = [file for package in packages for file in (package / "lib").glob(f"{_RUNTIME}.*")]
    if not versions:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / _RUNTIME
    link.unlink(missing_ok=True)
    link.symlink_to(versions[0])
    return folder


def _joined(before: str | None, folders: Iterable[str]) -> str:
    return os.pathsep.join([*filter(None, [before]), *folders])
